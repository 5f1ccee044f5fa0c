//! Streams without a reader: logs and commands with a stopped client.

use std::fs;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, phase, pod, script};
use pintle_testbed::{LONG, until};
use serde_json::json;

/// Streams of each kind.
const STREAMS: usize = 5;
/// Growth of the agent's memory allowed for so many streams, in KiB: a few buffers each.
const GROWTH_KIB_MAX: u64 = 48 << 10;
/// Idle connections that the API server keeps for a while.
const IDLE_MAX: usize = 2;
/// Longer than any writer pauses that is not held up.
const STILL: Duration = Duration::from_secs(2);

/// A client that never reads its answer; killed with the value.
struct Unread(Child);

impl Unread {
    fn start(test: &TestCluster, args: &[&str]) -> Self {
        let mut cmd = test.cluster().kubectl_command().expect("a command");
        cmd.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(cmd.spawn().expect("kubectl starts"))
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The agent's resident memory.
fn memory_kib(test: &TestCluster) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", test.agent_pid())).expect("it runs");
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// The agent's connections and open logs; other files of it come and go with statistics.
fn streams_open(test: &TestCluster) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", test.agent_pid())).expect("it runs");
    let links = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    let links = links.map(|link| link.to_string_lossy().into_owned());
    links.filter(|link| link.starts_with("socket:") || link.ends_with(".log")).count()
}

/// How far each writer is, in blocks of 64 KiB.
fn progress(test: &TestCluster, pod: &Pod) -> Vec<String> {
    let folder = test.volume(pod, "empty-dir", "v");
    let read = |n| fs::read_to_string(folder.join(format!("count{n}"))).unwrap_or_default();
    (0..STREAMS).map(read).collect()
}

#[test]
fn unread_streams_block_no_other_work_and_cost_little_memory() {
    let test = TestCluster::take();
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    // Some MB of log at once, and some more all the time.
    let text = "yes 'a line of the log' | head -c 8000000; while :; do echo more; sleep 0.1; done";
    let loud = pod("loud", &[script("c", text).with("volumeMounts", mounts)])
        .with_spec("nodeName", json!(NODE))
        .with_spec("volumes", json!([{"name": "v", "emptyDir": {}}]));
    test.apply(&loud);
    let loud = test.pod_until("loud", "is ready", |p| condition(p, "Ready"));
    let echo = |word: &str| test.kubectl(&["exec", "loud", "--", "echo", word]);
    until(LONG, "commands run", || echo("first"));
    let (memory, before) = (memory_kib(&test), streams_open(&test));

    let mut unread = Vec::new();
    for n in 0..STREAMS {
        let write =
            format!("i=0; while printf '%65536s' x; do i=$((i+1)); echo $i > /v/count{n}; done");
        unread.push(Unread::start(&test, &["exec", "loud", "--", "sh", "-c", &write]));
        unread.push(Unread::start(&test, &["logs", "-f", "loud"]));
    }
    until(LONG, "every writer is held up", || {
        let then = progress(&test, &loud);
        ensure!(then.iter().all(|text| !text.is_empty()), "{then:?}");
        thread::sleep(STILL);
        let now = progress(&test, &loud);
        ensure!(now == then, "{then:?}, then {now:?}");
        Ok(())
    });

    let grown = memory_kib(&test).saturating_sub(memory);
    assert!(grown < GROWTH_KIB_MAX, "{grown} KiB for {} streams", unread.len());
    assert_eq!(echo("second").expect("another command runs").trim(), "second");
    let tail = test.kubectl(&["logs", "loud", "--tail=1"]).expect("other logs come");
    assert_eq!(tail.trim(), "more");
    let other = pod("other", &[script("c", "exit 0")])
        .with_spec("nodeName", json!(NODE))
        .with_spec("restartPolicy", json!("Never"));
    test.apply(&other);
    test.pod_until("other", "has succeeded", |p| phase(p) == "Succeeded");

    drop(unread);
    until(LONG, "their connections are gone", || {
        let now = streams_open(&test);
        ensure!(now <= before + IDLE_MAX, "{now} are open, {before} before");
        Ok(())
    });
    let pod = test.pod_until("loud", "is ready", |p| condition(p, "Ready"));
    assert_eq!(pod.metadata.uid, loud.metadata.uid);
}
