//! Logs of the node's services: from the journal, or from their files below `/var/log`.
//!
//! Effects. Input: a query that was checked. Output: text, as it comes. Bounds: `RUNS_MAX` answers
//! at once; journalctl and the files together may take `TIME_MAX`; only `CHUNK_BYTES` are held; a
//! client that stops reading ends journalctl.
// k8s: pkg/kubelet/kubelet_server_journal.go copyForBoot, heuristicsCopyFileLogs

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use hyper::body::Bytes;
use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag};
use pintle_agent_host::volume::dir_fd::{open_beneath, open_dir};
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use pintle_daemon::serve::body::StreamSink;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::Command;
use tokio::sync::Semaphore;

use super::node_logs;
use super::node_query::NodeQuery;

/// Timeout of an answer.
const TIME_MAX: Duration = Duration::from_secs(30);
/// Answers in flight at a time, each with a journalctl of its own.
const RUNS_MAX: usize = 4;
/// Bytes that are read at once.
const CHUNK_BYTES: usize = 16 * 1024;
const PROGRAM: &str = "journalctl";

/// Writes the requested logs into `sink`.
pub(super) async fn copy(root: &Path, query: &NodeQuery, sink: &StreamSink) {
    static TURNS: Semaphore = Semaphore::const_new(RUNS_MAX);
    let copied = async {
        let _turn = TURNS.acquire().await;
        copy_all(root, query, sink).await;
    };
    // When the time is up the answer ends without a message, as the kubelet's does.
    let _ = tokio::time::timeout(TIME_MAX, copied).await;
}

async fn copy_all(root: &Path, query: &NodeQuery, sink: &StreamSink) {
    let units = units(&query.services).await;
    let services = query.services.iter().map(String::as_str);
    let (native, others): (Vec<_>, Vec<_>) = services.partition(|service| units.contains(service));
    if !native.is_empty() && copy_journal(&query.arguments(&native), sink).await.is_err() {
        say(sink, "\nerror: journal output not available\n").await;
    }
    if !others.is_empty() && query.has_options() {
        let names = others.join(" ");
        say(
            sink,
            &format!(
                "\noptions present and query resolved to log files for [{names}]\n\
                 try without specifying options\n"
            ),
        )
        .await;
        return;
    }
    for service in others {
        copy_file(root, service, sink).await;
    }
}

/// The services that the journal has units of; none without a journal. A node that runs its pods
/// in scopes has a unit for each container that it ever had, so the list is not kept.
// k8s: pkg/kubelet/kubelet_server_journal_linux.go checkForNativeLogger
async fn units(services: &[String]) -> BTreeSet<&str> {
    let mut cmd = Command::new(PROGRAM);
    cmd.args(["--field", "_SYSTEMD_UNIT"]).stdin(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = cmd.stdout(Stdio::piped()).kill_on_drop(true).spawn() else {
        return BTreeSet::new();
    };
    let Some(out) = child.stdout.take() else { return BTreeSet::new() };
    let found = named(out, services).await;
    match child.wait().await {
        Ok(status) if status.success() => found,
        _ => BTreeSet::new(),
    }
}

/// The services with a unit in a list, one unit a line.
async fn named(list: impl AsyncRead + Unpin, services: &[String]) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let mut lines = BufReader::new(list).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        let line = String::from_utf8_lossy(&line);
        let named = services.iter().filter(|service| line.contains(&format!("{service}.service")));
        found.extend(named.map(String::as_str));
    }
    found
}

async fn copy_journal(args: &[String], sink: &StreamSink) -> std::io::Result<()> {
    let mut cmd = Command::new(PROGRAM);
    cmd.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = cmd.kill_on_drop(true).spawn()?;
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    if let (Some(out), Some(errors)) = (out, errors) {
        tokio::join!(forward(out, sink), forward(errors, sink));
    }
    child.wait().await.map(drop)
}

async fn forward(mut from: impl AsyncRead + Unpin, sink: &StreamSink) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if sink.send(Bytes::copy_from_slice(&buffer[..read])).await.is_err() {
            return; // closing the pipe ends journalctl
        }
    }
}

/// `SERVICE`, `SERVICE.log` or `SERVICE/SERVICE.log`, whichever is a file.
async fn copy_file(root: &Path, service: &str, sink: &StreamSink) {
    let names = [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")];
    for name in names {
        let path = root.to_owned();
        let opened =
            blocking::try_run(JobPlace::serve_node("node logs"), move || open(&path, &name));
        match opened.await {
            Ok(file) => return node_logs::copy(file, sink).await,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return say(sink, &format!("\nerror getting log for {service}: {error}\n")).await;
            }
        }
    }
    say(sink, &format!("\nlog not found for {service}\n")).await;
}

/// A file that cannot be found, in the kubelet's words.
#[derive(Debug)]
pub(super) struct StatError {
    pub(super) name: String,
    pub(super) errno: Errno,
}

impl fmt::Display for StatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.errno {
            Errno::EXDEV => write!(f, "statat {name}: path escapes from parent"),
            Errno::ENOENT => write!(f, "statat {name}: no such file or directory"),
            other => write!(f, "statat {name}: {}", other.desc().to_lowercase()),
        }
    }
}

impl std::error::Error for StatError {}

/// Succeeds if there is a file of this name below the folder; the error is in the kubelet's words.
pub(super) fn stat(root: &Path, name: &str) -> Result<(), StatError> {
    let found = open_dir(root)
        .and_then(|dir| open_beneath(&dir, name, OFlag::O_PATH, ResolveFlag::empty()));
    found.map(drop).map_err(|errno| StatError { name: name.to_owned(), errno })
}

/// Opens the file or folder of this name below `root`.
pub(super) fn find(root: &Path, name: &str) -> std::io::Result<File> {
    let dir = open_dir(root)?;
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
    Ok(File::from(open_beneath(&dir, name, flags, ResolveFlag::empty())?))
}

/// A file below the folder; a folder counts as missing.
fn open(root: &Path, name: &str) -> std::io::Result<File> {
    let file = find(root, name)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(ErrorKind::NotFound.into()),
    }
}

async fn say(sink: &StreamSink, text: &str) {
    let _ = sink.send(Bytes::copy_from_slice(text.as_bytes())).await; // the client is gone: fine
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_daemon::serve::body;
    use pintle_daemon::serve::query::Query;
    use std::fs;

    async fn copied(root: &Path, query: &str) -> String {
        let query = NodeQuery::parse(&Query::parse(query)).expect("good").expect("a query");
        let (sink, text) = body::streamed();
        let root = root.to_owned();
        tokio::spawn(async move { copy(&root, &query, &sink).await });
        String::from_utf8_lossy(&crate::tests::read(text).await).into_owned()
    }

    #[tokio::test]
    async fn services_are_found_among_arbitrary_journal_unit_names() {
        let services = ["kubelet", "sshd", "docker"].map(str::to_owned);
        let list =
            b"cri-1.scope\nsshd.service\n\xff\xfe\nsystem-docker.service.d\ndocker".as_slice();
        let found = named(list, &services).await;
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["docker", "sshd"]);
    }

    #[tokio::test]
    async fn log_of_a_service_without_a_journal_is_read_from_its_log_file() {
        let root = tempfile::tempdir().expect("a folder");
        let dir = root.path();
        for name in ["pintle-one", "pintle-two.log", "pintle-three/pintle-three.log"] {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(&path, format!("text of {name}\n")).expect("written");
        }
        std::os::unix::fs::symlink("/etc/passwd", dir.join("pintle-out.log")).expect("linked");
        for (query, text) in [
            ("query=pintle-one", "text of pintle-one\n"),
            ("query=pintle-two", "text of pintle-two.log\n"),
            ("query=pintle-three", "text of pintle-three/pintle-three.log\n"),
            ("query=pintle-none", "\nlog not found for pintle-none\n"),
            (
                "query=pintle-one&tailLines=1",
                "\noptions present and query resolved to log files for [pintle-one]\n\
                 try without specifying options\n",
            ),
        ] {
            assert_eq!(copied(dir, query).await, text, "{query}");
        }
        let out = copied(dir, "query=pintle-out").await;
        assert!(out.starts_with("\nerror getting log for pintle-out: "), "{out}");
    }
}
