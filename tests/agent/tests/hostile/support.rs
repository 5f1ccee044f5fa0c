//! Shared parts of several attacks.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use pintle_testbed::manifest::{With, container_id, is_running, script};
use pintle_testbed::node::NODE_NAME;
use pintle_testbed::{LONG, TestNode, until};
use serde_json::{Value, json};

use crate::ground::AttackedNode;

/// Process 1 of a container that ends on no SIGTERM.
pub(crate) fn stubborn(name: &str) -> Value {
    script(name, "while :; do sleep 1; done")
}

/// The container with a folder of the node at `/host`.
pub(crate) fn with_host(container: Value) -> Value {
    container.with("volumeMounts", json!([{"name": "host", "mountPath": "/host"}]))
}

/// The volume behind `/host`.
pub(crate) fn host(path: &std::path::Path) -> Value {
    json!([{"name": "host", "hostPath": {"path": path}}])
}

/// Waits until these containers of the pod run.
pub(crate) fn running(node: &TestNode, pod: &str, containers: &[&str]) -> Pod {
    node.pod_until(pod, "runs", |p| containers.iter().all(|c| is_running(p, c)))
}

/// Waits until the pod is deleted, no longer than a bystander may take.
pub(crate) fn goes(ground: &AttackedNode, pod: &str) {
    let full = format!("{pod}-{NODE_NAME}");
    until(ground.limit("goes"), &format!("{pod} goes"), || {
        let pods = ground.node.pods()?;
        let it = pods.iter().find(|p| p.metadata.name.as_deref() == Some(&full));
        ensure!(it.is_none(), "{:?}", it.and_then(|p| p.status.as_ref()));
        Ok(())
    });
}

/// Kills the container's first process.
pub(crate) fn kill(node: &TestNode, pod: &Pod, container: &str) {
    let pid = node.container_pid(&container_id(pod, container)).expect("it runs");
    xtask::node::process::signal(pid, nix::sys::signal::Signal::SIGKILL);
}

/// The newest log file of a container.
pub(crate) fn log_file(node: &TestNode, pod: &str, container: &str) -> PathBuf {
    until(LONG, &format!("{pod} has a log"), || {
        let dirs = fs::read_dir(node.pod_logs())?.flatten();
        let prefix = format!("default_{pod}-{NODE_NAME}_");
        let mut dirs = dirs.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix));
        let dir = dirs.next().map(|e| e.path().join(container));
        let files = fs::read_dir(dir.unwrap_or_default())?.flatten();
        let mut files: Vec<PathBuf> = files.map(|e| e.path()).collect();
        files.retain(|f| f.extension().is_some_and(|e| e == "log"));
        files.sort();
        files.pop().ok_or_else(|| anyhow::anyhow!("none yet"))
    })
}

/// Work that runs in threads until it is dropped. The attacked node may refuse a round; the next
/// one follows at once.
pub(crate) struct Flood {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    /// Repeats `round` in this number of threads.
    pub(crate) fn start(threads: usize, round: impl Fn() + Send + Sync + 'static) -> Self {
        let (is_over, round) = (Arc::new(AtomicBool::new(false)), Arc::new(round));
        let one = |_| {
            let (is_over, round) = (is_over.clone(), round.clone());
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    round();
                }
            })
        };
        let threads = (0..threads).map(one).collect();
        Self { is_over, threads }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
