//! One line of a container's log file: pure.
//!
//! ```text
//!   2016-10-06T00:17:09.669794202Z stdout F the text            CRI; P instead of F: not ended yet
//!   {"log":"the text\n","stream":"stdout","time":"2016-…"}       what Docker once wrote
//! ```
//! Input: the bytes of one line, with or without its newline. Output: time, stream and text, or why
//! it is no log line. Any bytes are tolerated; a line is never copied except when JSON forces it.
//! Readers skip lines that do not parse, so one torn line does not hide the others.
// k8s: staging/src/k8s.io/cri-client/pkg/logs/logs.go parseCRILog, parseDockerJSONLog

use std::borrow::Cow;

/// Which stream the container wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// Time as written, RFC 3339.
    pub time: Cow<'a, str>,
    /// Stream.
    pub stream: LogStream,
    /// Text; ends with a newline unless the line continues in the next one.
    pub text: Cow<'a, [u8]>,
}

impl LogLine<'_> {
    /// The time as a number; `None` when it is none.
    pub fn timestamp(&self) -> Option<jiff::Timestamp> {
        self.time.parse().ok()
    }
}

/// Why a line is no log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLine {
    /// Fewer fields than time, stream and tag.
    #[error("log line has no time, stream and tag")]
    Fields,
    /// The time is none.
    #[error("log line starts with no time")]
    Time,
    /// Neither `stdout` nor `stderr`.
    #[error("log line has an unknown stream")]
    Stream,
    /// Not the JSON that Docker writes.
    #[error("log line is no JSON of a log")]
    Json,
}

/// Parses one line of either format.
pub fn parse(line: &[u8]) -> Result<LogLine<'_>, BadLine> {
    match line.first() {
        Some(b'{') => parse_json(line),
        _ => parse_cri(line),
    }
}

fn parse_cri(line: &[u8]) -> Result<LogLine<'_>, BadLine> {
    let (time, rest) = split(line).ok_or(BadLine::Fields)?;
    let (stream, rest) = split(rest).ok_or(BadLine::Fields)?;
    let (tags, text) = split(rest).ok_or(BadLine::Fields)?;
    let time = std::str::from_utf8(time).map_err(|_| BadLine::Time)?;
    time.parse::<jiff::Timestamp>().map_err(|_| BadLine::Time)?;
    let stream = stream_of(stream)?;
    // Only the first of the colon-separated tags has a meaning.
    let partial = tags.split(|b| *b == b':').next() == Some(b"P");
    let text = if partial { text.strip_suffix(b"\n").unwrap_or(text) } else { text };
    Ok(LogLine { time: Cow::Borrowed(time), stream, text: Cow::Borrowed(text) })
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|b| *b == b' ')?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

fn stream_of(name: &[u8]) -> Result<LogStream, BadLine> {
    match name {
        b"stdout" => Ok(LogStream::Stdout),
        b"stderr" => Ok(LogStream::Stderr),
        _ => Err(BadLine::Stream),
    }
}

#[derive(serde::Deserialize)]
struct DockerLine {
    #[serde(default)]
    log: String,
    #[serde(default)]
    stream: String,
    time: String,
}

fn parse_json(line: &[u8]) -> Result<LogLine<'_>, BadLine> {
    let parsed: DockerLine = serde_json::from_slice(line).map_err(|_| BadLine::Json)?;
    parsed.time.parse::<jiff::Timestamp>().map_err(|_| BadLine::Time)?;
    let stream = stream_of(parsed.stream.as_bytes())?;
    let text = Cow::Owned(parsed.log.into_bytes());
    Ok(LogLine { time: Cow::Owned(parsed.time), stream, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TIME: &str = "2016-10-06T00:17:09.669794202Z";

    #[test]
    fn both_formats_are_read_and_broken_lines_are_refused() {
        let ok = |stream, text: &'static [u8]| Ok((stream, text));
        let table = [
            (format!("{TIME} stdout F a line\n"), ok(LogStream::Stdout, b"a line\n")),
            (format!("{TIME} stderr P half\n"), ok(LogStream::Stderr, b"half")),
            (format!("{TIME} stdout F:TAG2 x\n"), ok(LogStream::Stdout, b"x\n")),
            (format!("{TIME} stdout P:TAG2 x\n"), ok(LogStream::Stdout, b"x")),
            (format!("{TIME} stdout F \n"), ok(LogStream::Stdout, b"\n")),
            (format!("{TIME} stdout F no newline"), ok(LogStream::Stdout, b"no newline")),
            (
                format!(r#"{{"log":"json\n","stream":"stderr","time":"{TIME}"}}"#),
                ok(LogStream::Stderr, b"json\n"),
            ),
            (format!("{TIME} stdout F"), Err(BadLine::Fields)),
            (format!("{TIME} stdin F x"), Err(BadLine::Stream)),
            ("yesterday stdout F x".to_owned(), Err(BadLine::Time)),
            ("{}".to_owned(), Err(BadLine::Json)),
            (String::new(), Err(BadLine::Fields)),
        ];
        for (line, expected) in table {
            let found = parse(line.as_bytes());
            let found = found.as_ref().map(|l| (l.stream, &*l.text)).map_err(|e| *e);
            assert_eq!(found, expected, "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }

        #[test]
        fn any_log_text_is_parsed_unchanged(
            text in proptest::collection::vec(any::<u8>().prop_filter("newline", |b| *b != b'\n'), 0..100),
            partial in any::<bool>(),
        ) {
            let mut line = format!("{TIME} stdout {} ", if partial { "P" } else { "F" }).into_bytes();
            line.extend_from_slice(&text);
            line.push(b'\n');
            let mut expected = text;
            if !partial {
                expected.push(b'\n');
            }
            prop_assert_eq!(parse(&line).map(|l| l.text.into_owned()), Ok(expected));
        }
    }
}
