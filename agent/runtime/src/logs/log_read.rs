//! Reads a container's log file and its termination message.
//!
//! Input: paths on the node. Output: text, as `kubectl logs` and `state.terminated.message` show
//! it. Bounds: `LINE_BYTES_MAX` per line (the rest of a longer one is skipped), one buffer, and the
//! caller's own limits; a tail is found from the end, so a huge file costs only its tail, and in a
//! file without lines as much of it as so many of the longest lines are. Follows nothing and waits
//! for nothing; a caller that streams calls `LogReader::next` again.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use flate2::read::GzDecoder;
use pintle_agent_core::logs::line::{LogStream, parse};
use pintle_agent_core::observed::termination::{LOG_BYTES_MAX, LOG_LINES_MAX, MESSAGE_BYTES_MAX};
use pintle_daemon::regular_file;

/// Longest line that is read; the runtime cuts lines at 16 KiB.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Bytes read at once when searching for the start of a tail.
const TAIL_BLOCK_BYTES: u64 = 64 * 1024;
/// The part of a log to read.
#[derive(Clone, Debug, Default)]
pub struct LogQuery {
    /// Only that many last lines of the file.
    pub tail_lines: Option<u64>,
    /// Only lines written at or after this time.
    pub since: Option<jiff::Timestamp>,
    /// At most that many bytes of output.
    pub limit_bytes: Option<u64>,
    /// Each line starts with its time.
    pub timestamps: bool,
    /// Only this stream.
    pub stream: Option<LogStream>,
}

/// Reads a log file from some point on.
pub struct LogReader {
    file: BufReader<Box<dyn Read + Send>>,
    id: FileId,
    query: LogQuery,
    remaining: Option<u64>,
    line: Vec<u8>,
    /// The next text starts a line of output: the one before was not partial.
    at_line_start: bool,
    /// Time of the last line that was read, as written.
    last_time: String,
    /// Lines up to this time are known already.
    after: Option<jiff::Timestamp>,
    /// Bytes read so far.
    read: u64,
    /// Lines read so far, wanted or not, but for those that are none.
    lines: u64,
}

/// The result of one step through a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStep {
    /// A wanted line was found.
    Wrote,
    /// A line was read, but not a wanted one, or not its end.
    Skipped,
    /// There is nothing more, for now or for good.
    End,
}

/// Identifies a file among others of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file at that path.
    pub fn of(path: &Path) -> io::Result<Self> {
        fs::symlink_metadata(path).map(|meta| Self::from(&meta))
    }
}

impl From<&fs::Metadata> for FileId {
    fn from(meta: &fs::Metadata) -> Self {
        Self { device: meta.dev(), inode: meta.ino() }
    }
}

impl LogReader {
    /// Opens the file and seeks to the start of the query.
    pub fn open(path: &Path, query: LogQuery) -> io::Result<Self> {
        let mut file = regular_file::open_log(path)?;
        let start = match query.tail_lines {
            Some(lines) => tail_start(&mut file, lines)?,
            None => 0,
        };
        file.seek(SeekFrom::Start(start))?;
        let remaining = query.limit_bytes;
        let id = FileId::from(&file.metadata()?);
        let file = BufReader::new(Box::new(file) as Box<dyn Read + Send>);
        Ok(Self {
            file,
            id,
            query,
            remaining,
            line: Vec::new(),
            at_line_start: true,
            last_time: String::new(),
            after: None,
            read: 0,
            lines: 0,
        })
    }

    /// Continues at the start of another file of the same log. With `skip_known` lines that are not
    /// newer than the last one are left out, for a file that may be the one just read, compressed.
    pub fn go_on(&mut self, path: &Path, skip_known: bool) -> io::Result<()> {
        let file = regular_file::open_log(path)?;
        self.id = FileId::from(&file.metadata()?);
        let compressed = path.extension().is_some_and(|end| end == "gz");
        let file: Box<dyn Read + Send> =
            if compressed { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
        self.file = BufReader::new(file);
        self.after = skip_known.then(|| self.last_time.parse().ok()).flatten();
        self.line.clear();
        Ok(())
    }

    /// The file that is being read.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Nothing more will come: the limit was met.
    pub fn is_done(&self) -> bool {
        self.remaining == Some(0)
    }

    /// Appends the next wanted text to `out`. False at the end of the file, for now, or of the
    /// limit, for good. An unfinished last line is left for the next call.
    pub fn next(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            match self.step(out)? {
                ReadStep::Wrote => return Ok(true),
                ReadStep::Skipped => {}
                ReadStep::End => return Ok(false),
            }
        }
    }

    /// Appends the unfinished last line, for a caller that does not wait for the rest of it. A
    /// complete tail leaves it out.
    // k8s: staging/src/k8s.io/cri-client/pkg/logs/logs.go ReadLogs
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let is_whole = self.query.tail_lines.is_some_and(|wanted| self.lines >= wanted);
        if self.line.is_empty() || is_whole || self.is_done() {
            return;
        }
        let line = std::mem::take(&mut self.line);
        self.append(&line, out);
    }

    /// Looks at one more line, or at `LINE_BYTES_MAX` of it, and appends its wanted part, so that a
    /// large file can be filtered in pieces.
    pub fn step(&mut self, out: &mut Vec<u8>) -> io::Result<ReadStep> {
        if self.remaining == Some(0) {
            return Ok(ReadStep::End);
        }
        match self.read_line()? {
            ReadStep::Wrote => {}
            other => return Ok(other),
        }
        let line = std::mem::take(&mut self.line);
        let wrote = self.append(&line, out);
        self.line = line;
        self.line.clear();
        Ok(if wrote { ReadStep::Wrote } else { ReadStep::Skipped })
    }

    /// Bytes of the files that were read so far, compressed ones inflated.
    pub fn bytes_read(&self) -> u64 {
        self.read
    }

    /// Fills `line`: `Wrote` for a whole one, `End` when there is none yet.
    fn read_line(&mut self) -> io::Result<ReadStep> {
        let begun = self.read;
        loop {
            let buffer = self.file.fill_buf()?;
            if buffer.is_empty() {
                return Ok(ReadStep::End);
            }
            let newline = buffer.iter().position(|b| *b == b'\n');
            let used = newline.map_or(buffer.len(), |at| at + 1);
            let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(&buffer[..used.min(room)]);
            self.file.consume(used);
            self.read += used as u64;
            if newline.is_some() {
                if self.line.last() != Some(&b'\n') {
                    self.line.push(b'\n');
                }
                return Ok(ReadStep::Wrote);
            }
            if self.read - begun >= LINE_BYTES_MAX as u64 {
                return Ok(ReadStep::Skipped);
            }
        }
    }

    fn append(&mut self, line: &[u8], out: &mut Vec<u8>) -> bool {
        let Ok(parsed) = parse(line) else {
            tracing::debug!("a line of a container's log cannot be parsed");
            return false;
        };
        if let Some(after) = self.after
            && parsed.timestamp().is_some_and(|time| time <= after)
        {
            return false;
        }
        self.lines += 1;
        self.last_time.clear();
        self.last_time.push_str(&parsed.time);
        if self.query.stream.is_some_and(|stream| stream != parsed.stream) {
            return false;
        }
        if let Some(since) = self.query.since
            && parsed.timestamp().is_some_and(|time| time < since)
        {
            return false;
        }
        let start = out.len();
        if self.query.timestamps && self.at_line_start {
            push_time(&parsed.time, out);
            out.push(b' ');
        }
        out.extend_from_slice(&parsed.text);
        self.at_line_start = parsed.text.ends_with(b"\n");
        if let Some(remaining) = &mut self.remaining {
            let allowed = usize::try_from(*remaining).unwrap_or(usize::MAX);
            out.truncate(start.saturating_add(allowed));
            *remaining -= (out.len() - start) as u64;
        }
        true
    }
}

/// Opens a regular file that another process may replace by anything at any time: a pipe or a
/// device is never waited for, and never read. A link is followed, as upstream does, to a file that
/// is one.
// k8s: staging/src/k8s.io/cri-client/pkg/logs/logs.go ReadLogs (EvalSymlinks)
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let open = |path: &Path| fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = match open(path) {
        Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => {
            open(&fs::canonicalize(path)?)?
        }
        opened => opened?,
    };
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file")),
    }
}

/// Appends a time with nine digits of a second, whatever the runtime's format.
// k8s: staging/src/k8s.io/cri-client/pkg/logs/logs.go timeFormatOut
fn push_time(time: &str, out: &mut Vec<u8>) {
    let dot = time.find('.');
    let fraction = dot.map_or("", |at| &time[at + 1..]);
    let digits = fraction.bytes().take_while(u8::is_ascii_digit).count().min(9);
    // Without a fraction the zone begins after `hh:mm:ss`.
    let zone = dot.map_or_else(|| time.len().min(19), |at| at + 1 + digits);
    out.extend_from_slice(&time.as_bytes()[..dot.unwrap_or(zone)]);
    out.push(b'.');
    out.extend_from_slice(&fraction.as_bytes()[..digits]);
    out.extend(std::iter::repeat_n(b'0', 9 - digits));
    out.extend_from_slice(&time.as_bytes()[zone..]);
}

/// Offset of the `lines`-th last line; one that is unfinished does not count.
// k8s: staging/src/k8s.io/cri-client/pkg/logs/tail.go findTailLineStartIndex
fn tail_start(file: &mut File, lines: u64) -> io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    // A file's last newline ends its last line, it does not start another one.
    let mut wanted = lines.saturating_add(1);
    let mut block = Vec::new();
    if lines == 0 {
        return Ok(end);
    }
    // Lines are no longer than this, so bytes before it are not part of the tail: a sparse file of
    // a terabyte is not searched for its newlines.
    let bytes_max = lines.saturating_add(2).saturating_mul(LINE_BYTES_MAX as u64);
    let floor = end.saturating_sub(bytes_max);
    while end > floor {
        let start = end.saturating_sub(TAIL_BLOCK_BYTES);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        file.by_ref().take(end - start).read_to_end(&mut block)?;
        for (index, _) in block.iter().enumerate().rev().filter(|(_, b)| **b == b'\n') {
            wanted -= 1;
            if wanted == 0 {
                return Ok(start + index as u64 + 1);
            }
        }
        end = start;
    }
    Ok(end)
}

/// The message of a terminated container: its message file's end, else the end of its log if
/// `fallback_to_log` is set (policy `FallbackToLogsOnError` and a failure). `message_file` is the
/// node's path of the mount at `terminationMessagePath`.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go getTerminationMessage
pub fn termination_message(
    message_file: Option<&Path>,
    log: &Path,
    fallback_to_log: bool,
) -> String {
    if let Some(path) = message_file {
        let read = |mut file| regular_file::read_end(&mut file, MESSAGE_BYTES_MAX);
        match regular_file::open_at(path).and_then(read) {
            Ok(bytes) if bytes.is_empty() => {}
            Ok(bytes) => return String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return format!("Error on reading termination log {}: {e}", path.display()),
        }
    }
    match fallback_to_log {
        true => end_of_log(log),
        false => String::new(),
    }
}

// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go readLastStringFromContainerLogs
fn end_of_log(log: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let query = LogQuery { tail_lines: Some(LOG_LINES_MAX as u64), ..LogQuery::default() };
        let mut reader = LogReader::open(log, query)?;
        let mut text = Vec::new();
        // The container has ended; a process that still writes is not waited for.
        for _ in 0..LOG_LINES_MAX {
            let is_end = !reader.next(&mut text)?;
            if is_end {
                reader.finish(&mut text);
            }
            text.drain(..text.len().saturating_sub(LOG_BYTES_MAX));
            if is_end {
                break;
            }
        }
        Ok(text)
    };
    match read() {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(e) => format!("Error on reading termination message from logs: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn log(lines: &[&str]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("file");
        for (number, line) in lines.iter().enumerate() {
            let second = number % 60;
            write!(file, "2026-01-01T00:00:{second:02}.000000000Z {line}").expect("write");
        }
        file
    }

    fn read(file: &tempfile::NamedTempFile, query: LogQuery) -> String {
        let mut reader = LogReader::open(file.path(), query).expect("open");
        let mut out = Vec::new();
        while reader.next(&mut out).expect("read") {}
        String::from_utf8(out).expect("text")
    }

    fn sample() -> tempfile::NamedTempFile {
        log(&[
            "stdout F a\n",
            "stderr F b\n",
            "stdout P c1 \n",
            "stdout F c2\n",
            "junk\n",
            "stdout F d\n",
        ])
    }

    #[test]
    fn a_query_selects_lines_stream_time_and_bytes() {
        let all = LogQuery::default;
        let table = [
            (all(), "a\nb\nc1 c2\nd\n"),
            (LogQuery { stream: Some(LogStream::Stderr), ..all() }, "b\n"),
            (LogQuery { tail_lines: Some(1), ..all() }, "d\n"),
            (LogQuery { tail_lines: Some(3), ..all() }, "c2\nd\n"),
            (LogQuery { tail_lines: Some(0), ..all() }, ""),
            (LogQuery { tail_lines: Some(99), ..all() }, "a\nb\nc1 c2\nd\n"),
            (LogQuery { limit_bytes: Some(5), ..all() }, "a\nb\nc"),
            (LogQuery { since: "2026-01-01T00:00:03Z".parse().ok(), ..all() }, "c2\nd\n"),
            (
                LogQuery { timestamps: true, tail_lines: Some(4), ..all() },
                "2026-01-01T00:00:02.000000000Z c1 c2\n2026-01-01T00:00:05.000000000Z d\n",
            ),
        ];
        for (query, expected) in table {
            assert_eq!(read(&sample(), query.clone()), expected, "{query:?}");
        }
    }

    #[test]
    fn an_unfinished_line_appears_once_it_is_finished() {
        let mut file = log(&["stdout F a\n"]);
        write!(file, "2026-01-01T00:00:09Z stdout F hal").expect("write");
        let mut reader = LogReader::open(file.path(), LogQuery::default()).expect("open");
        let mut out = Vec::new();
        while reader.next(&mut out).expect("read") {}
        assert_eq!(out, b"a\n");
        writeln!(file, "f").expect("write");
        assert!(reader.next(&mut out).expect("read"));
        assert_eq!(out, b"a\nhalf\n");
    }

    #[test]
    fn unterminated_last_line_is_shown_except_after_a_full_tail() {
        let file = log(&["stdout F a\n", "stdout F b\n", "stdout F hal"]);
        let all = LogQuery::default;
        for (query, expected) in [
            (all(), "a\nb\nhal"),
            (LogQuery { tail_lines: Some(1), ..all() }, "b\n"),
            (LogQuery { tail_lines: Some(2), ..all() }, "a\nb\n"),
            (LogQuery { tail_lines: Some(3), ..all() }, "a\nb\nhal"),
            (LogQuery { limit_bytes: Some(3), ..all() }, "a\nb"),
            (LogQuery { limit_bytes: Some(5), ..all() }, "a\nb\nh"),
            (LogQuery { stream: Some(LogStream::Stderr), ..all() }, ""),
        ] {
            let mut reader = LogReader::open(file.path(), query.clone()).expect("open");
            let mut out = Vec::new();
            while reader.next(&mut out).expect("read") {}
            reader.finish(&mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected, "{query:?}");
        }
        assert_eq!(termination_message(None, file.path(), true), "a\nb\nhal");
    }

    #[test]
    fn overlong_line_is_truncated_and_the_next_line_is_read() {
        let long = format!("stdout F {}\n", "x".repeat(3 * LINE_BYTES_MAX));
        let file = log(&[&long, "stdout F after\n"]);
        let text = read(&file, LogQuery::default());
        assert!(text.len() <= LINE_BYTES_MAX + 10);
        assert!(text.ends_with("after\n"));
    }

    #[test]
    fn a_tail_is_found_across_blocks() {
        let lines: Vec<String> = (0..5000).map(|n| format!("stdout F line {n}\n")).collect();
        let file = log(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let tail = read(&file, LogQuery { tail_lines: Some(3000), ..LogQuery::default() });
        assert_eq!(tail.lines().count(), 3000);
        assert!(tail.starts_with("line 2000\n"));
    }

    #[test]
    fn the_message_is_the_files_end_else_the_logs_end() {
        let dir = tempfile::tempdir().expect("dir");
        let message = dir.path().join("message");
        let logged = sample();
        let none = dir.path().join("none");
        let said = |fallback| termination_message(Some(&message), logged.path(), fallback);
        assert_eq!(said(false), "", "no file, no fallback");
        assert_eq!(said(true), "a\nb\nc1 c2\nd\n");
        fs::write(&message, "").expect("write");
        assert_eq!(said(true), "a\nb\nc1 c2\nd\n", "an empty file falls back too");
        fs::write(&message, format!("{}end", "x".repeat(5000))).expect("write");
        assert_eq!(said(true).len(), 4096);
        assert!(said(true).ends_with("end"));
        assert!(termination_message(None, &none, true).starts_with("Error on reading"));
        let long: Vec<String> = (0..200).map(|n| format!("stdout F {n:0>60}\n")).collect();
        let long = log(&long.iter().map(String::as_str).collect::<Vec<_>>());
        let text = termination_message(None, long.path(), true);
        assert_eq!(text.len(), LOG_BYTES_MAX);
        assert!(text.ends_with("199\n"));
    }

    #[test]
    fn non_regular_log_or_message_file_is_an_error_and_never_waited_for() {
        for (what, put) in xtask::disk::STRANGE {
            let dir = tempfile::tempdir().expect("dir");
            let path = dir.path().join("0.log");
            put(&path);
            assert!(LogReader::open(&path, LogQuery::default()).is_err(), "{what}");
            let mut reader = LogReader::open(sample().path(), LogQuery::default()).expect("open");
            assert!(reader.go_on(&path, false).is_err(), "{what} in place of a rotated log");
            let message = termination_message(Some(&path), &path, true);
            assert!(message.starts_with("Error on reading termination log"), "{what}: {message}");
            let end = termination_message(None, &path, true);
            assert!(end.starts_with("Error on reading termination message"), "{what}: {end}");
        }
    }

    #[test]
    fn the_tail_of_a_huge_file_without_lines_is_found_soon() {
        let file = tempfile::NamedTempFile::new().expect("file");
        file.as_file().set_len(1 << 40).expect("sparse");
        let mut opened = file.reopen().expect("opened");
        let start = tail_start(&mut opened, 3).expect("found");
        assert!((1 << 40) - start <= 5 * LINE_BYTES_MAX as u64, "{start}");
    }

    #[test]
    fn file_without_newlines_is_read_in_bounded_steps() {
        let file = tempfile::NamedTempFile::new().expect("file");
        file.as_file().set_len(5 * LINE_BYTES_MAX as u64).expect("a file of zeros");
        let mut reader = LogReader::open(file.path(), LogQuery::default()).expect("open");
        let mut out = Vec::new();
        let mut steps = 0;
        while reader.step(&mut out).expect("read") == ReadStep::Skipped {
            steps += 1;
        }
        assert_eq!((steps, out.len()), (5, 0));
        assert_eq!(reader.bytes_read(), 5 * LINE_BYTES_MAX as u64);
    }

    #[test]
    fn times_are_shown_with_nine_digits() {
        for (written, shown) in [
            ("2026-01-01T00:00:02.5Z", "2026-01-01T00:00:02.500000000Z"),
            ("2026-01-01T00:00:02Z", "2026-01-01T00:00:02.000000000Z"),
            ("2026-01-01T00:00:02.123456789+02:00", "2026-01-01T00:00:02.123456789+02:00"),
            ("2026-01-01T00:00:02-05:00", "2026-01-01T00:00:02.000000000-05:00"),
        ] {
            let mut out = Vec::new();
            push_time(written, &mut out);
            assert_eq!(String::from_utf8(out).expect("text"), shown);
        }
    }

    #[test]
    fn reader_continues_in_the_next_log_file_and_can_skip_known_lines() {
        let mut reader = LogReader::open(sample().path(), LogQuery::default()).expect("open");
        let mut out = Vec::new();
        while reader.next(&mut out).expect("read") {}
        let known = sample();
        for (skip, expected) in [(true, ""), (false, "a\nb\nc1 c2\nd\n")] {
            out.clear();
            reader.go_on(known.path(), skip).expect("open");
            while reader.next(&mut out).expect("read") {}
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
    }

    #[test]
    fn a_message_file_that_is_a_link_is_not_followed() {
        let dir = tempfile::tempdir().expect("dir");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).expect("symlink");
        let text = termination_message(Some(&link), &link, false);
        assert!(text.starts_with("Error on reading termination log"), "{text}");
    }
}
