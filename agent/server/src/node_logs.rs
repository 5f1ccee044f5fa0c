//! `/logs/`: the files below `/var/log`, for `kubectl get --raw .../proxy/logs/`, and logs of the
//! node's services with `?query=`.
//!
//! Effects: reads folders and files, on another thread, because their disk may hang. Bounds:
//! `ENTRIES_MAX` names of a folder, `CHUNK_BYTES` at a time of a file. A path with `..` is refused;
//! links are followed, as by the kubelet; pipes and devices are neither waited for nor read.
// k8s: pkg/kubelet/kubelet.go (logServer), pkg/kubelet/kubelet_server_journal.go

use std::fs::{self, File, Metadata};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    LAST_MODIFIED, LOCATION,
};
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use pintle_agent_config::KubeletConfiguration;
use pintle_agent_host::volume::dir_fd::magic_path;
use pintle_agent_runtime::logs::log_read::open_regular;
use pintle_api_types::url::escaped;
use pintle_daemon::blocking;
use pintle_daemon::blocking::{Blocked, JobPlace};
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::body::{self, Broken, Reply, StreamSink};
use pintle_daemon::serve::query::Query;

use super::api::{HeldTurn, StreamTurn};
use super::file_part::{self, FilePart};
use super::journal;
use super::node_query::NodeQuery;

/// The served folder.
const ROOT: &str = "/var/log";
/// Names of one folder that are shown.
const ENTRIES_MAX: usize = 4096;
/// Bytes of a file that are read at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// Pause while too many readers wait.
const FULL_PAUSE: Duration = Duration::from_millis(50);

/// Answers a request for `rest` below `/logs/`.
///
/// `turn` is held for as long as services' logs are written.
pub(super) async fn answer(
    config: &KubeletConfiguration,
    rest: &str,
    query: &Query,
    headers: &HeaderMap,
    turn: impl FnOnce() -> Result<StreamTurn, HttpAnswer>,
) -> Reply {
    if !config.enable_system_log_query {
        return below(Path::new(ROOT), rest, headers).await;
    }
    match queried(Path::new(ROOT), rest, query, headers, turn).await {
        Ok(Some(reply)) => reply,
        Ok(None) => below(Path::new(ROOT), rest, headers).await,
        Err(answer) => answer.into(),
    }
}

/// Logs of services, or the file or folder that is named as one; `None` without such a query.
async fn queried(
    root: &'static Path,
    rest: &str,
    query: &Query,
    headers: &HeaderMap,
    turn: impl FnOnce() -> Result<StreamTurn, HttpAnswer>,
) -> Result<Option<Reply>, HttpAnswer> {
    let Some(asked) = NodeQuery::parse(query)? else { return Ok(None) };
    if !rest.trim_matches('/').is_empty() {
        return Err(HttpAnswer::text(406, "path not allowed in query mode\n"));
    }
    let looked = off(move || {
        asked.check(|name| journal::stat(root, name))?;
        let found = match asked.files.as_slice() {
            [name] => Some(named(root, name)),
            _ => None,
        };
        Ok::<_, HttpAnswer>((asked, found))
    });
    let (asked, found) = looked.await??;
    if let Some(found) = found {
        return Ok(Some(found.into_reply(headers)));
    }
    let turn = turn()?;
    let (sink, text) = body::streamed();
    pintle_daemon::tasks::serve("node log", async move {
        if turn.hold(journal::copy(root, &asked, &sink)).await == HeldTurn::Displaced {
            sink.break_off(Broken::Displaced);
        }
    });
    let mut response = Response::new(text);
    let plain = HeaderValue::from_static("text/plain;charset=UTF-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    Ok(Some(response))
}

/// The page or file at a path.
enum PageOrFile {
    Page(Reply),
    File(File, Metadata),
}

impl PageOrFile {
    fn into_reply(self, headers: &HeaderMap) -> Reply {
        match self {
            Self::Page(reply) => reply,
            Self::File(file, meta) => sent(file, &meta, headers),
        }
    }

    fn refused(status: u16, text: &str) -> Self {
        Self::Page(HttpAnswer::text(status, text).into())
    }
}

async fn below(root: &Path, rest: &str, headers: &HeaderMap) -> Reply {
    if rest.split('/').any(|part| part == "..") || rest.contains('\0') {
        return HttpAnswer::text(400, "invalid URL path\n").into();
    }
    let (root, rest) = (root.to_owned(), rest.to_owned());
    match off(move || found(&root, &rest)).await {
        Ok(found) => found.into_reply(headers),
        Err(answer) => answer.into(),
    }
}

/// Runs `look` where it may wait for its disk.
async fn off<T: Send + 'static>(
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HttpAnswer> {
    let late = |error: Blocked| HttpAnswer::text(503, format!("{error}\n"));
    blocking::run(JobPlace::serve_node("node logs"), look).await.map_err(late)
}

/// A folder's links lead to the right places only behind a slash, and a file has none.
// k8s: Go's net/http fs.go serveFile
fn found(root: &Path, rest: &str) -> PageOrFile {
    let parts = rest.split('/').filter(|part| !part.is_empty());
    let name = escaped(parts.clone().next_back().unwrap_or_default());
    let path: PathBuf = parts.fold(root.to_owned(), |path, part| path.join(part));
    let has_slash = rest.is_empty() || rest.ends_with('/');
    match fs::metadata(&path) {
        Ok(meta) if meta.is_dir() && !has_slash => PageOrFile::Page(moved(&format!("{name}/"))),
        Ok(meta) if meta.is_dir() => PageOrFile::Page(listing(&path)),
        Ok(meta) if meta.is_file() && has_slash => PageOrFile::Page(moved(&format!("../{name}"))),
        Ok(meta) if meta.is_file() => match opened(&path) {
            Ok((file, meta)) => PageOrFile::File(file, meta),
            Err(_) => PageOrFile::refused(403, "403 Forbidden\n"),
        },
        _ => PageOrFile::refused(404, "404 page not found\n"),
    }
}

/// The metadata of the open file: another file may have its name already.
fn opened(path: &Path) -> std::io::Result<(File, Metadata)> {
    let file = open_regular(path)?;
    let meta = file.metadata()?;
    Ok((file, meta))
}

/// The file that a query names; a folder is one as well.
fn named(root: &Path, name: &str) -> PageOrFile {
    let opened = journal::find(root, name).and_then(|file| Ok((file.metadata()?, file)));
    match opened {
        Ok((meta, file)) if meta.is_file() => PageOrFile::File(file, meta),
        Ok((meta, file)) if meta.is_dir() => {
            PageOrFile::Page(listing(&magic_path(&OwnedFd::from(file))))
        }
        _ => PageOrFile::refused(404, "404 page not found\n"),
    }
}

fn moved(to: &str) -> Reply {
    let mut reply = Reply::from(HttpAnswer::text(301, ""));
    put(&mut reply, LOCATION, to);
    reply
}

fn listing(dir: &Path) -> Reply {
    let Ok(entries) = fs::read_dir(dir) else {
        return HttpAnswer::text(500, "Error reading directory\n").into();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .take(ENTRIES_MAX)
        .map(|entry| {
            let slash = if entry.file_type().is_ok_and(|kind| kind.is_dir()) { "/" } else { "" };
            entry.file_name().to_string_lossy().into_owned() + slash
        })
        .collect();
    names.sort();
    let links = names.iter().map(|name| {
        let (plain, slash) = name.strip_suffix('/').map_or((&**name, ""), |plain| (plain, "/"));
        format!("<a href=\"{}{slash}\">{}</a>\n", escaped(plain), escape(name))
    });
    let page = format!(
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n\
            <pre>\n{}</pre>\n",
        links.collect::<String>()
    );
    let mut response = Response::new(body::whole(page));
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, html);
    response
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// A file, or the part of it that the headers ask for.
fn sent(file: File, meta: &Metadata, headers: &HeaderMap) -> Reply {
    let (size, changed) = (meta.len(), Timestamp::from_second(meta.mtime()).ok());
    let part = match file_part::asked(headers, size, changed) {
        FilePart::Whole => None,
        FilePart::Bytes(part) => Some(part),
        FilePart::Known => {
            let mut reply = Response::new(body::whole(Bytes::new()));
            *reply.status_mut() = StatusCode::NOT_MODIFIED;
            return reply;
        }
        FilePart::Refused(why) => {
            let mut reply = Reply::from(HttpAnswer::text(416, format!("{why}\n")));
            put(&mut reply, CONTENT_RANGE, &format!("bytes */{size}"));
            return reply;
        }
    };
    let (sink, text) = body::streamed();
    let mut reply = Response::new(text);
    put(&mut reply, CONTENT_TYPE, "text/plain; charset=utf-8");
    put(&mut reply, ACCEPT_RANGES, "bytes");
    if let Some(date) = changed.and_then(file_part::http_date) {
        put(&mut reply, LAST_MODIFIED, &date);
    }
    if let Some(Range { start, end }) = part {
        *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
        put(&mut reply, CONTENT_RANGE, &format!("bytes {start}-{}/{size}", end.saturating_sub(1)));
    }
    let part = part.unwrap_or(0..size);
    put(&mut reply, CONTENT_LENGTH, &(part.end - part.start).to_string());
    pintle_daemon::tasks::serve("node log", async move { copy_part(file, part, &sink).await });
    reply
}

fn put(reply: &mut Reply, name: HeaderName, value: &str) {
    reply.headers_mut().extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
}

/// Sends a file to its end, piece by piece, as fast as it is read.
pub(super) async fn copy(file: File, sink: &StreamSink) {
    copy_part(file, 0..u64::MAX, sink).await;
}

async fn copy_part(file: File, mut part: Range<u64>, sink: &StreamSink) {
    let file = Arc::new(file);
    loop {
        let (from, at) = (Arc::clone(&file), part.start);
        let left = usize::try_from(part.end - part.start).unwrap_or(usize::MAX);
        let read = move || {
            let mut buffer = vec![0; CHUNK_BYTES.min(left)];
            let read = from.read_at(&mut buffer, at)?;
            buffer.truncate(read);
            Ok::<_, std::io::Error>(buffer)
        };
        match blocking::run(JobPlace::serve_node("node logs"), read).await {
            Ok(Ok(piece)) if !piece.is_empty() => {
                part.start += piece.len() as u64;
                if sink.send(Bytes::from(piece)).await.is_err() {
                    return;
                }
            }
            Err(Blocked::Full) => tokio::time::sleep(FULL_PAUSE).await,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::RANGE;

    async fn get(root: &Path, rest: &str) -> (u16, String) {
        read(below(root, rest, &HeaderMap::new()).await).await
    }

    async fn read(reply: Reply) -> (u16, String) {
        let status = reply.status().as_u16();
        let bytes = crate::tests::read(reply.into_body()).await;
        (status, String::from_utf8_lossy(&bytes).into_owned())
    }

    #[tokio::test]
    async fn node_log_queries_on_files_or_with_invalid_names_are_rejected() {
        let config = KubeletConfiguration { enable_system_log_query: true, ..Default::default() };
        let no_turn = || Err(HttpAnswer::text(429, "busy"));
        for (rest, query, status) in [
            ("a.log", "query=kubelet", 406),
            ("", "query=a%20b", 406),
            ("", "query=/no/such", 406),
            ("", "query=../../etc/passwd", 406),
            ("", "query=+", 400),
            ("", "query=kubelet", 429),
        ] {
            let reply =
                answer(&config, rest, &Query::parse(query), &HeaderMap::new(), no_turn).await;
            assert_eq!(reply.status().as_u16(), status, "{rest} {query}");
        }
        let off = KubeletConfiguration::default();
        let reply =
            answer(&off, "", &Query::parse("query=kubelet"), &HeaderMap::new(), no_turn).await;
        assert_eq!(reply.status().as_u16(), 200, "switched off: the listing");
    }

    #[tokio::test]
    async fn pipes_are_neither_listed_as_files_nor_waited_for() {
        let root = tempfile::tempdir().expect("a folder");
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
        nix::unistd::mkfifo(&root.path().join("pipe"), mode).expect("made");
        std::os::unix::fs::symlink("/dev/zero", root.path().join("zero")).expect("linked");
        for name in ["pipe", "zero"] {
            assert_eq!(get(root.path(), name).await.0, 404, "{name}");
            // As if it were swapped after the check.
            assert!(open_regular(&root.path().join(name)).is_err(), "{name}");
        }
    }

    #[tokio::test]
    async fn folders_are_listed_and_files_served_but_paths_outside_the_root_are_rejected() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("pods")).expect("made");
        let long = "x".repeat(3 * CHUNK_BYTES);
        fs::write(root.path().join("pods/a<b"), &long).expect("written");
        let (status, page) = get(root.path(), "").await;
        assert_eq!(status, 200);
        assert!(page.contains("<a href=\"pods/\">pods/</a>\n"), "{page}");
        assert!(get(root.path(), "pods/").await.1.contains("a&lt;b"));
        assert_eq!(get(root.path(), "pods/a<b").await, (200, long));
        assert_eq!(get(root.path(), "nope").await.0, 404);
        assert_eq!(get(root.path(), "pods/../..").await.0, 400);
    }

    #[tokio::test]
    async fn links_are_escaped_and_lead_to_the_named_file_or_folder() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("a b")).expect("made");
        fs::write(root.path().join("a b/50%#?.log"), "text").expect("written");
        let page = get(root.path(), "a b/").await.1;
        assert!(page.contains("<a href=\"50%25%23%3F.log\">50%#?.log</a>\n"), "{page}");
        assert!(get(root.path(), "").await.1.contains("<a href=\"a%20b/\">a b/</a>\n"));
        for (rest, to) in [("a b", "a%20b/"), ("a b/50%#?.log/", "../50%25%23%3F.log")] {
            let reply = below(root.path(), rest, &HeaderMap::new()).await;
            assert_eq!(reply.status().as_u16(), 301, "{rest}");
            assert_eq!(reply.headers()[LOCATION], to);
        }
        // A query may name the folder.
        let (status, page) = read(named(root.path(), "a b/").into_reply(&HeaderMap::new())).await;
        assert_eq!((status, page.contains("50%#?.log</a>")), (200, true), "{page}");
        assert_eq!(read(named(root.path(), "/etc").into_reply(&HeaderMap::new())).await.0, 404);
    }

    #[tokio::test]
    async fn range_request_returns_only_that_part_and_a_full_request_has_a_content_length() {
        let root = tempfile::tempdir().expect("a folder");
        let text = "0123456789".repeat(CHUNK_BYTES / 4);
        fs::write(root.path().join("log"), &text).expect("written");
        let ask = async |range: &str| {
            let mut headers = HeaderMap::new();
            headers.extend(HeaderValue::from_str(range).ok().map(|range| (RANGE, range)));
            let reply = below(root.path(), "log", &headers).await;
            let header = |name| {
                let value = reply.headers().get(name).and_then(|value| value.to_str().ok());
                value.unwrap_or_default().to_owned()
            };
            let (bytes, range) = (header(CONTENT_LENGTH), header(CONTENT_RANGE));
            let (status, text) = read(reply).await;
            (status, bytes, range, text)
        };
        let size = text.len();
        let part = &text[5..=CHUNK_BYTES + 5];
        let bytes = (CHUNK_BYTES + 1).to_string();
        let range = format!("bytes 5-{}/{size}", CHUNK_BYTES + 5);
        let asked = format!("bytes=5-{}", CHUNK_BYTES + 5);
        assert_eq!(ask(&asked).await, (206, bytes, range, part.to_owned()));
        assert_eq!(ask("bytes=x").await.0, 416);
        assert_eq!(ask("lines=-1\n").await, (200, size.to_string(), String::new(), text));
    }
}
