//! Files that users name, read whole.
//!
//! Input: a path, or `-` for standard input. Output: bytes. Effects: reads. Bounds:
//! `FILE_BYTES_MAX`; a file that is not text, such as a device or an archive, is rejected by its
//! first `SNIFF_BYTES`.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};

/// Largest file: 5,000 nodes and 150,000 pods are a tenth of that.
const FILE_BYTES_MAX: u64 = 8 << 30;
/// Bytes searched for one that no text contains.
const SNIFF_BYTES: u64 = 4096;

/// Reads the file of a flag, or standard input.
pub(crate) fn read(flag: &str, path: &Path) -> Result<Vec<u8>> {
    if path == Path::new("-") {
        return bounded(std::io::stdin().lock()).context("standard input");
    }
    let shown = path.display();
    let named =
        |error: std::io::Error| anyhow!("{flag}={shown}: {error}; check the path and its rights");
    let file = File::open(path).map_err(named)?;
    bounded(file).map_err(|error| match error.downcast::<std::io::Error>() {
        Ok(error) => named(error),
        Err(other) => anyhow!("{flag}={shown}: {other}"),
    })
}

fn bounded(mut file: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.by_ref().take(SNIFF_BYTES).read_to_end(&mut bytes)?;
    if bytes.contains(&0) && !has_utf16_mark(&bytes) {
        bail!(
            "is not text: JSON or YAML is expected, as kubectl get nodes,pods -A -o json writes it"
        );
    }
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        bail!("is larger than {} GiB", FILE_BYTES_MAX >> 30);
    }
    Ok(bytes)
}

fn has_utf16_mark(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")
}

/// Returns the text in UTF-8, without a byte order mark. PowerShell redirects in UTF-16.
pub(super) fn text_of(bytes: &[u8]) -> Cow<'_, [u8]> {
    if let Some(rest) = bytes.strip_prefix(b"\xef\xbb\xbf") {
        return Cow::Borrowed(rest);
    }
    if !has_utf16_mark(bytes) {
        return Cow::Borrowed(bytes);
    }
    let is_little = bytes.starts_with(b"\xff\xfe");
    let units = bytes[2..].chunks_exact(2).map(|pair| {
        let pair = [pair[0], pair[1]];
        if is_little { u16::from_le_bytes(pair) } else { u16::from_be_bytes(pair) }
    });
    let text: String =
        char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
    Cow::Owned(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_refused_at_once_and_utf_16_is_read() {
        let error = read("--pods", Path::new("/dev/zero")).expect_err("no text");
        assert_eq!(error.to_string().split(": is not text").next(), Some("--pods=/dev/zero"));
        let error = read("--pods", Path::new("/")).expect_err("a folder");
        assert!(error.to_string().starts_with("--pods=/: Is a directory"), "{error}");
        for is_little in [true, false] {
            let units = "\u{feff}{\"a\": \"\u{1F600}\"}".encode_utf16();
            let bytes: Vec<u8> = units
                .flat_map(|u| if is_little { u.to_le_bytes() } else { u.to_be_bytes() })
                .collect();
            assert_eq!(&*text_of(&bytes), "{\"a\": \"\u{1F600}\"}".as_bytes());
        }
    }
}
