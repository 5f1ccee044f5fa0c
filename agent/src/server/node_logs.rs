//! `/logs/`: the files below `/var/log`, for `kubectl get --raw .../proxy/logs/`, and logs of the
//! node's services with `?query=`.
//!
//! Effects: reads folders and files. Bounds: `ENTRIES_MAX` names of a folder, `CHUNK_BYTES` at a
//! time of a file. A path with `..` is refused; links are followed, as by the kubelet.
// k8s: pkg/kubelet/kubelet.go (logServer), pkg/kubelet/kubelet_server_journal.go

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use super::answer::Answer;
use super::api::Turn;
use super::body::{self, Reply, Sink};
use super::journal;
use super::node_query::NodeQuery;
use super::query::Query;
use crate::config::KubeletConfiguration;

/// What is served.
const ROOT: &str = "/var/log";
/// Names of one folder that are shown.
const ENTRIES_MAX: usize = 4096;
/// Bytes of a file that are read at once.
const CHUNK_BYTES: usize = 16 * 1024;

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
        return below(Path::new(ROOT), rest);
    }
    match queried(Path::new(ROOT), rest, query, turn) {
        Ok(Some(reply)) => reply,
        Ok(None) => below(Path::new(ROOT), rest),
        Err(answer) => answer.into(),
    }
}

/// Logs of services, or the file that is named as one; `None` when nothing is asked that way.
fn queried(
    root: &'static Path,
    rest: &str,
    query: &Query,
    turn: impl FnOnce() -> Result<Turn, Answer>,
) -> Result<Option<Reply>, Answer> {
    let Some(asked) = NodeQuery::parse(query)? else { return Ok(None) };
    if !rest.trim_matches('/').is_empty() {
        return Err(Answer::text(406, "path not allowed in query mode\n"));
    }
    asked.check(|name| journal::stat(root, name))?;
    if let [name] = asked.files.as_slice() {
        let opened = journal::open(root, name);
        let opened = opened.map_err(|_| Answer::text(404, "404 page not found\n"))?;
        return Ok(Some(sent(opened)));
    }
    let turn = turn()?;
    let (sink, text) = body::streamed();
    tokio::spawn(async move {
        journal::copy(root, &asked, &sink).await;
        drop(turn);
    });
    let mut response = Response::new(text);
    let plain = HeaderValue::from_static("text/plain;charset=UTF-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    Ok(Some(response))
}

fn below(root: &Path, rest: &str) -> Reply {
    if rest.split('/').any(|part| part == "..") || rest.contains('\0') {
        return Answer::text(400, "invalid URL path\n").into();
    }
    let path: PathBuf = rest
        .split('/')
        .filter(|part| !part.is_empty())
        .fold(root.to_owned(), |path, part| path.join(part));
    match fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => listing(&path),
        Ok(meta) if meta.is_file() => file(&path),
        _ => Answer::text(404, "404 page not found\n").into(),
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

fn file(path: &Path) -> Reply {
    let Ok(file) = File::open(path) else {
        return Answer::text(403, "403 Forbidden\n").into();
    };
    sent(file)
}

fn sent(file: File) -> Reply {
    let (sink, text) = body::streamed();
    tokio::spawn(send(file, sink));
    let mut response = Response::new(text);
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

async fn send(mut file: File, sink: Sink) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(read @ 1..) = file.read(&mut buffer) {
        if sink.send(Bytes::copy_from_slice(&buffer[..read])).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    async fn get(root: &Path, rest: &str) -> (u16, String) {
        let reply = below(root, rest);
        let status = reply.status().as_u16();
        let bytes = reply.into_body().collect().await.expect("a body").to_bytes();
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
