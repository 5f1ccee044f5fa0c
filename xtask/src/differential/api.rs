//! The API server, over `kubectl proxy` on a socket: changes, and objects as they change.
//!
//! Two watches, of pods and of events, fill a store that all threads wait on: a case never polls.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::node::http::{self, NodeHttpRequest};
use crate::shell::say;

/// How long `kubectl proxy` may take to listen.
const READY_WAIT: Duration = Duration::from_secs(20);
/// Delay before a broken watch is opened again.
const RETRY: Duration = Duration::from_millis(100);

/// A connection; the proxy ends with it.
pub(super) struct ApiConnection {
    socket: PathBuf,
    proxy: Child,
    store: Arc<Store>,
}

/// Objects as the API server has them or had them last.
#[derive(Default)]
struct Store {
    kept: Mutex<KeptObjects>,
    changed: Condvar,
}

/// By namespace and name.
type Objects = BTreeMap<(String, String), SeenObject>;

#[derive(Default)]
pub(super) struct KeptObjects {
    pub(super) pods: Objects,
    pub(super) events: Objects,
}

/// One object.
#[derive(Clone, Debug)]
pub(super) struct SeenObject {
    pub(super) object: Value,
    pub(super) is_gone: bool,
    /// When it changed last.
    pub(super) at: Instant,
}

impl ApiConnection {
    /// Connects and follows pods and events.
    pub(super) fn start(cluster: &Cluster) -> Result<Self> {
        let socket = cluster.layout().dir().join("differential.sock");
        let _ = std::fs::remove_file(&socket);
        let mut cmd = cluster.kubectl_command()?;
        cmd.args(["proxy", "--accept-hosts=.*", "--unix-socket"]).arg(&socket);
        cmd.stdin(Stdio::null()).stdout(Stdio::null());
        let proxy = cmd.spawn().context("start kubectl proxy")?;
        let api = Self { socket, proxy, store: Arc::default() };
        let deadline = Instant::now() + READY_WAIT;
        while UnixStream::connect(&api.socket).is_err() {
            ensure!(Instant::now() < deadline, "kubectl proxy does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        api.follow("pods", |kept| &mut kept.pods);
        api.follow("events", |kept| &mut kept.events);
        Ok(api)
    }

    /// Sends a request; a refusal is an error with the server's words.
    pub(super) fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let content_type = match (method, body) {
            (_, None) => "",
            ("PATCH", _) => "application/strategic-merge-patch+json",
            _ => "application/json",
        };
        let body = body.map(Value::to_string).unwrap_or_default();
        let stream = UnixStream::connect(&self.socket).context("connect to kubectl proxy")?;
        let answer =
            http::send(stream, NodeHttpRequest { method, path, content_type, body: &body })?;
        let is_good = (200..300).contains(&answer.status);
        ensure!(is_good, "{method} {path}: {} {}", answer.status, answer.body.trim());
        serde_json::from_str(&answer.body).with_context(|| format!("{method} {path}"))
    }

    /// Waits until `check` has an answer; it sees the store after every change, and now and then.
    pub(super) fn wait<T>(
        &self,
        limit: Duration,
        mut check: impl FnMut(&KeptObjects) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + limit;
        let mut kept = self.store.lock();
        loop {
            if let Some(found) = check(&kept) {
                return Some(found);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let pause = left.min(Duration::from_millis(200));
            let waited = self.store.changed.wait_timeout(kept, pause);
            kept = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Watches a resource until the process ends, on a thread of its own.
    fn follow(&self, resource: &'static str, of: fn(&mut KeptObjects) -> &mut Objects) {
        let (socket, store) = (self.socket.clone(), self.store.clone());
        thread::spawn(move || {
            while socket.exists() {
                if let Err(error) = watch(&socket, resource, &store, of) {
                    say("watch", &format!("{resource}: {error:#}"));
                }
                thread::sleep(RETRY);
            }
        });
    }
}

impl Drop for ApiConnection {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, KeptObjects> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One watch, until it ends. HTTP/1.0, so that the answer is not cut into chunks.
fn watch(
    socket: &PathBuf,
    resource: &str,
    store: &Store,
    of: fn(&mut KeptObjects) -> &mut Objects,
) -> Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    write!(stream, "GET /api/v1/{resource}?watch=1 HTTP/1.0\r\n\r\n")?;
    let mut lines = BufReader::new(stream).lines();
    let status = lines.next().context("no answer")??;
    ensure!(status.contains(" 200 "), "{status}");
    while lines.next().transpose()?.is_some_and(|head| !head.is_empty()) {}
    for line in lines {
        let change: Value = serde_json::from_str(&line?).context("read a change")?;
        let object = change["object"].clone();
        let text = |field: &str| super::flat::show(&object["metadata"][field]);
        let key = (text("namespace"), text("name"));
        let is_gone = change["type"] == "DELETED";
        let seen = SeenObject { object, is_gone, at: Instant::now() };
        of(&mut store.lock()).insert(key, seen);
        store.changed.notify_all();
    }
    Ok(())
}
