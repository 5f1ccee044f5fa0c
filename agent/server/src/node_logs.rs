//! `/logs/`: the files below `/var/log`, for `kubectl get --raw .../proxy/logs/`, and logs of the
//! node's services with `?query=`.
//!
//! Effects: reads folders and files, on another thread, because their disk may hang. Bounds:
//! `ENTRIES_MAX` names of a folder, `CHUNK_BYTES` at a time of a file. A path with `..` is refused;
//! links are followed, as by the kubelet; pipes and devices are neither waited for nor read.
// k8s: pkg/kubelet/kubelet.go (logServer), pkg/kubelet/kubelet_server_journal.go

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use pintle_agent_config::KubeletConfiguration;
use pintle_agent_runtime::log_read::open_regular;
use pintle_daemon::blocking;
use pintle_daemon::blocking::{Blocked, Place};
use pintle_daemon::serve::answer::Answer;
use pintle_daemon::serve::body::{self, Reply, Sink};
use pintle_daemon::serve::query::Query;

use super::api::Turn;
use super::journal;
use super::node_query::NodeQuery;

/// What is served.
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
    turn: impl FnOnce() -> Result<Turn, Answer>,
) -> Reply {
    if !config.enable_system_log_query {
        return below(Path::new(ROOT), rest).await;
    }
    match queried(Path::new(ROOT), rest, query, turn).await {
        Ok(Some(reply)) => reply,
        Ok(None) => below(Path::new(ROOT), rest).await,
        Err(answer) => answer.into(),
    }
}

/// Logs of services, or the file that is named as one; `None` when nothing is asked that way.
async fn queried(
    root: &'static Path,
    rest: &str,
    query: &Query,
    turn: impl FnOnce() -> Result<Turn, Answer>,
) -> Result<Option<Reply>, Answer> {
    let Some(asked) = NodeQuery::parse(query)? else { return Ok(None) };
    if !rest.trim_matches('/').is_empty() {
        return Err(Answer::text(406, "path not allowed in query mode\n"));
    }
    let looked = off(move || {
        asked.check(|name| journal::stat(root, name))?;
        let not_found = |_| Answer::text(404, "404 page not found\n");
        let file = match asked.files.as_slice() {
            [name] => Some(journal::open(root, name).map_err(not_found)?),
            _ => None,
        };
        Ok::<_, Answer>((asked, file))
    });
    let (asked, file) = looked.await??;
    if let Some(file) = file {
        return Ok(Some(sent(file)));
    }
    let turn = turn()?;
    let (sink, text) = body::streamed();
    pintle_daemon::tasks::serve("node log", async move {
        journal::copy(root, &asked, &sink).await;
        drop(turn);
    });
    let mut response = Response::new(text);
    let plain = HeaderValue::from_static("text/plain;charset=UTF-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    Ok(Some(response))
}

/// What a path leads to.
enum PageOrFile {
    Page(Reply),
    File(File),
}

async fn below(root: &Path, rest: &str) -> Reply {
    if rest.split('/').any(|part| part == "..") || rest.contains('\0') {
        return Answer::text(400, "invalid URL path\n").into();
    }
    let path: PathBuf = rest
        .split('/')
        .filter(|part| !part.is_empty())
        .fold(root.to_owned(), |path, part| path.join(part));
    match off(move || found(&path)).await {
        Ok(PageOrFile::Page(reply)) => reply,
        Ok(PageOrFile::File(file)) => sent(file),
        Err(answer) => answer.into(),
    }
}

/// Runs `look` where it may wait for its disk.
async fn off<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Result<T, Answer> {
    let late = |error: Blocked| Answer::text(503, format!("{error}\n"));
    blocking::run(Place::serve_node("node logs"), look).await.map_err(late)
}

fn found(path: &Path) -> PageOrFile {
    let refused = |status, text: &str| PageOrFile::Page(Answer::text(status, text).into());
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => PageOrFile::Page(listing(path)),
        Ok(meta) if meta.is_file() => match open_regular(path) {
            Ok(file) => PageOrFile::File(file),
            Err(_) => refused(403, "403 Forbidden\n"),
        },
        _ => refused(404, "404 page not found\n"),
    }
}

fn listing(dir: &Path) -> Reply {
    let Ok(entries) = fs::read_dir(dir) else {
        return Answer::text(500, "Error reading directory\n").into();
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
        let name = escape(name);
        format!("<a href=\"{name}\">{name}</a>\n")
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

fn sent(file: File) -> Reply {
    let (sink, text) = body::streamed();
    pintle_daemon::tasks::serve("node log", send(file, sink));
    let mut response = Response::new(text);
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

async fn send(file: File, sink: Sink) {
    copy(file, &sink).await;
}

/// Sends a file to its end, piece by piece, as fast as it is read.
pub(super) async fn copy(file: File, sink: &Sink) {
    let file = Arc::new(file);
    loop {
        let from = Arc::clone(&file);
        let read = move || {
            let mut buffer = vec![0; CHUNK_BYTES];
            let read = (&*from).read(&mut buffer)?;
            buffer.truncate(read);
            Ok::<_, std::io::Error>(buffer)
        };
        match blocking::run(Place::serve_node("node logs"), read).await {
            Ok(Ok(piece)) if !piece.is_empty() => {
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

    async fn get(root: &Path, rest: &str) -> (u16, String) {
        let reply = below(root, rest).await;
        let status = reply.status().as_u16();
        let bytes = crate::tests::read(reply.into_body()).await;
        (status, String::from_utf8_lossy(&bytes).into_owned())
    }

    #[tokio::test]
    async fn queries_are_refused_where_they_do_not_belong() {
        let config = KubeletConfiguration { enable_system_log_query: true, ..Default::default() };
        let no_turn = || Err(Answer::text(429, "busy"));
        for (rest, query, status) in [
            ("a.log", "query=kubelet", 406),
            ("", "query=a%20b", 406),
            ("", "query=/no/such", 406),
            ("", "query=../../etc/passwd", 406),
            ("", "query=+", 400),
            ("", "query=kubelet", 429),
        ] {
            let reply = answer(&config, rest, &Query::parse(query), no_turn).await;
            assert_eq!(reply.status().as_u16(), status, "{rest} {query}");
        }
        let off = KubeletConfiguration::default();
        let reply = answer(&off, "", &Query::parse("query=kubelet"), no_turn).await;
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
            // As if it were swapped after the look at it.
            assert!(open_regular(&root.path().join(name)).is_err(), "{name}");
        }
    }

    #[tokio::test]
    async fn folders_are_listed_and_files_sent_and_nothing_outside_is() {
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
}
