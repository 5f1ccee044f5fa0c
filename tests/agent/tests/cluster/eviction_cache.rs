//! A pod that reads much more than its node has memory: with `--pintle-psi-eviction` no pod is
//! evicted for page cache, and a pod that takes the memory itself still is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use pintle_testbed::cluster::TestCluster;
use pintle_testbed::late::{Parts, reads_for_ever};
use pintle_testbed::manifest::{With, condition, container, restarts, script};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};
use xtask::shell;

use crate::eviction::{bound, is_evicted, little_memory, message, under};
use crate::explain::ask;

/// The file that is read again and again; all pods together have a fifth of it.
const FILE_MIB: u64 = 4096;
/// A part is read three times before the next, as by a program that works on a file: its page cache
/// then counts as used.
const PARTS: Parts = Parts { mib: FILE_MIB, part_mib: 128, times: 3 };
/// Checks of the agent below its threshold that must not evict a pod.
const LOOKS: usize = 5;
pub const SIGNAL: &str = "allocatableMemory.available";

/// A file of zeros that takes room on the disk and none in the page cache.
fn write_file(at: &Path) {
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "bs=4M", "oflag=direct"]);
    dd.arg(format!("count={}", FILE_MIB / 4)).arg(format!("of={}", at.display()));
    shell::capture(&mut dd).expect("the disk has room for the file");
}

/// Drops the file from the page cache.
fn forget(at: &Path) {
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/null", "count=0", "oflag=nocache", "conv=notrunc,fdatasync"]);
    shell::capture(dd.arg(format!("of={}", at.display()))).expect("the file is there");
}

/// Reads `/file/zeros` for ever, and counts in its volume how many times it has read all of it.
fn reader(name: &str, dir: &Path) -> Value {
    let text = reads_for_ever("zeros", PARTS, "echo >> /v/passes;");
    let mounts = json!([{"name": "file", "mountPath": "/file"}, {"name": "v", "mountPath": "/v"}]);
    let volumes =
        json!([{"name": "file", "hostPath": {"path": dir}}, {"name": "v", "emptyDir": {}}]);
    bound(name, &[script("c", &text).with("volumeMounts", mounts)]).with_spec("volumes", volumes)
}

/// The figures of `pintle-agent pressure` for the memory of all pods.
pub fn pressure(test: &TestCluster) -> Result<Value> {
    let told: Value = serde_json::from_str(&ask(test, &["pressure", "-o", "json"])?)?;
    let signals = told["signals"].as_array().context("a list")?;
    let of = signals.iter().find(|signal| signal["signal"] == SIGNAL);
    of.cloned().with_context(|| format!("{SIGNAL} has been measured: {told:#}"))
}

/// Waits until the agent has seen less than its threshold so many times, with a stall that spares
/// the cache, while the pod read all of the file; the greatest stall, in percent.
fn reads_under_the_threshold(test: &TestCluster, name: &str) -> f64 {
    let reading = test.pod_until(name, "is ready", |p| condition(p, "Ready"));
    let passes = test.volume(&reading, "empty-dir", "v").join("passes");
    let (mut looks, mut most) = (BTreeSet::new(), 0.0_f64);
    until(LONG * 3, "the file is read, and memory looks short meanwhile", || {
        let of = pressure(test)?;
        let figure = |value: &Value| value.as_u64().context("a figure");
        let available = figure(&of["available"])?;
        if available < figure(&of["threshold"])? && of["stall"]["sparesCache"] == true {
            looks.insert(available);
        }
        most = most.max(of["stall"]["percent"].as_f64().context("the kernel counts stall")?);
        let passes = fs::read(&passes).map_or(0, |all| all.len());
        let seen = format!("{passes} passes, looks that saw {looks:?}, {of:#}");
        ensure!(passes > 0 && looks.len() >= LOOKS, "{seen}");
        Ok(())
    });
    most
}

#[test]
fn page_cache_reader_is_evicted_by_the_kubelets_rule_but_not_by_the_psi_rule() {
    let test = TestCluster::take();
    test.empty_nodes();
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("zeros");
    write_file(&file);
    let little = little_memory(&test);
    test.configure_agent(&little);
    // Alone: what it has read counts as used also when it is gone, and others would go for it.
    test.apply(&reader("by-what-is-left", dir.path()));
    let gone = test.pod_until("by-what-is-left", "is evicted", is_evicted);
    assert!(message(&gone).starts_with("The node was low on resource: memory. "), "{gone:?}");
    test.kubectl(&["delete", "pod", "by-what-is-left", "--grace-period=1"]).expect("it goes");
    forget(&file);
    test.node_until("is well", |node| !under(node, "MemoryPressure"));

    test.configure_agent_with(&little, &["--pintle-psi-eviction"]);
    let holds = container("c", &["/box", "hog", "40"])
        .with("resources", json!({"requests": {"memory": "100Mi"}}));
    test.apply(&bound("modest", &[holds]));
    test.pod_until("modest", "is ready", |p| condition(p, "Ready"));
    test.apply(&reader("by-stall", dir.path()));
    let most = reads_under_the_threshold(&test, "by-stall");
    eprintln!("    {FILE_MIB} MiB were read at a stall of {most} % at most");
    let node = test.node_until("is there", |_| true);
    assert!(!under(&node, "MemoryPressure"));
    for name in ["by-stall", "modest"] {
        let pod = test.pod_until(name, "is ready", |p| condition(p, "Ready"));
        assert_eq!(restarts(&pod, "c"), 0, "{name}");
    }
    test.kubectl(&["delete", "pod", "by-stall", "--grace-period=1"]).expect("it goes");
    forget(&file);

    // Memory of a pod's own is another matter.
    test.apply(&bound("hog", &[container("c", &["/box", "grow", "100"])]));
    let gone = test.pod_until("hog", "is evicted", is_evicted);
    let ends = format!("{:?}", gone.status);
    assert!(!ends.contains("OOMKilled"), "{ends}");
    let said = ask(&test, &["explain", "hog"]).expect("explained");
    assert!(said.contains(SIGNAL) && said.contains("of page cache count as left"), "{said}");
    let modest = test.pod_until("modest", "is ready", |p| condition(p, "Ready"));
    assert_eq!(restarts(&modest, "c"), 0);
}
