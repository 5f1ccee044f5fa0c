//! Standard output of commands.
//!
//! Input: text. Output: standard output. Owner: the command line. A reader may close the pipe
//! early, as `head` does; a full disk is an error. Control characters in text from input files are
//! never sent to a terminal.

use std::borrow::Cow;
use std::io::{self, BufWriter, ErrorKind, Write};

use anyhow::{Context as _, Result};

/// Runs `write` on standard output.
pub(crate) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    print_to(io::stdout().lock(), write)
}

fn print_to(out: impl Write, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let mut out = BufWriter::new(out);
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}

/// Replaces characters that move the cursor, ring or change the direction of text by their code.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let obeyed = |c: char| c.is_control() || turns(c);
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if obeyed(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ends(ErrorKind);

    impl Write for Ends {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn closed_reader_is_no_error_but_a_full_disk_is_an_error() {
        let text = vec![b'x'; 100_000];
        for size in [1, 100_000] {
            let write = |kind| print_to(Ends(kind), |out| out.write_all(&text[..size]));
            write(ErrorKind::BrokenPipe).expect("a closed reader is no error");
            let error = write(ErrorKind::StorageFull).expect_err("nothing is written");
            assert!(error.to_string().contains("standard output"), "{error}");
        }
        let json = |kind| print_to(Ends(kind), |out| Ok(serde_json::to_writer_pretty(out, &text)?));
        json(ErrorKind::BrokenPipe).expect("a closed reader is no error");
        json(ErrorKind::StorageFull).expect_err("nothing is written");
    }
}
