//! Page cache and the stall of all pods, as cgroup v2 counts it: with `--pintle-psi-eviction` a pod
//! that only reads stays, and only the pod that stalls the others is evicted. Skipped on v1, which
//! has only the whole machine's stall; `cargo xtask vm` boots a guest with v2 (docs/TESTING.md).
//! The pods come from an API server in this process, on the node's loopback: static pods are never
//! evicted.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use pintle_memory_http::{HttpServer, SharedServer};
use pintle_testbed::late::{Late, Parts, reads_for_ever};
use pintle_testbed::manifest::{With, condition, container, phase, pod, script};
use pintle_testbed::node::{NODE_NAME, Options};
use pintle_testbed::{LONG, TestNode, skip, until};
use serde_json::{Value, json};

use crate::support::{lines, remove_all, sharing};

/// Memory of all pods together, and the eviction threshold for it.
const PODS_MIB: u64 = 800;
const LEFT_MIB: u64 = 400;
/// The file of the pod that only reads: larger than the memory of all pods.
const LARGE_MIB: u64 = 1024;
/// The file of a pod that needs its page cache: a little larger than the memory without `OWN_MIB`,
/// so that dropped pages are read again soon, and the kernel counts the wait for them.
const NEEDED_MIB: u64 = 560;
/// The own memory of that pod; with the cache counted as available, the threshold is not met.
const OWN_MIB: u64 = 280;
/// A part is read so many times before the next, so that it counts as used. The pod that only reads
/// reads it more often: it reclaims its own cache, which counts as waiting, and an emulated machine
/// is slow at that.
const PART_MIB: u64 = 64;
const TIMES: (u32, u32) = (4, 3);
/// Checks of the agent below its threshold that must not evict a pod.
const LOOKS: usize = 5;
const SIGNAL: &str = "allocatableMemory.available";

fn counts_stall() -> bool {
    let root = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    let has_memory = controllers.split_whitespace().any(|controller| controller == "memory");
    has_memory && root.join("memory.pressure").exists()
}

/// A node with `PODS_MIB` for its pods and an eviction threshold of `LEFT_MIB`.
fn little_memory() -> Options {
    let meminfo = fs::read_to_string("/proc/meminfo").expect("readable");
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("there");
    let kib: u64 = total.trim_end_matches("kB").trim().parse().expect("a number");
    let config = json!({
        "enforceNodeAllocatable": ["pods"],
        "systemReserved": {"memory": format!("{}Ki", kib - PODS_MIB * 1024)},
        "evictionHard": {"memory.available": format!("{LEFT_MIB}Mi")},
    });
    Options { config, agent: false, ..Options::default() }
}

/// An agent with that flag, and its API server.
fn with_api_server(node: &mut TestNode) -> HttpServer {
    let bind = || std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listener = node.runtime_node().in_network(bind).expect("the node has a network");
    let api = HttpServer::on(listener, SharedServer::new(1)).expect("a thread");
    let kubeconfig = node.dir().join("kubeconfig.json");
    fs::write(&kubeconfig, api.kubeconfig().to_string()).expect("written");
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    node.add_flags(vec![kubeconfig, "--pintle-psi-eviction".to_owned()]);
    node.start_agent();
    api
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

/// Gives the node a pod, as the API server completes it, and waits until it runs.
fn run(node: &TestNode, api: &HttpServer, name: &str, pod: Value) {
    let pod = pod
        .with_spec("nodeName", json!(NODE_NAME))
        .with_spec("restartPolicy", json!("Always"))
        .with_spec("dnsPolicy", json!("Default"))
        .with_spec("automountServiceAccountToken", json!(false))
        .with_spec("enableServiceLinks", json!(false));
    api.put(&path(name), pod);
    until(LONG, &format!("{name} is ready"), || check_untouched(node, api, name));
}

/// The pod as the API server has it.
fn told(api: &HttpServer, name: &str) -> Result<Pod> {
    let object = api.get(&path(name)).with_context(|| format!("there is no pod {name}"))?;
    Ok(serde_json::from_value(object)?)
}

/// Fails unless the pod is ready and no container of it was started again.
fn check_untouched(node: &TestNode, api: &HttpServer, name: &str) -> Result<()> {
    let pod = told(api, name)?;
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let is_first = statuses.into_iter().flatten().all(|of| of.restart_count == 0);
    ensure!(condition(&pod, "Ready") && is_first, "{:?}\n{}", pod.status, node.agent_log());
    Ok(())
}

/// `pintle-agent pressure`: all of it, and what it says of the memory of all pods.
fn pressure(node: &TestNode) -> Result<(Value, Value)> {
    let told: Value = serde_json::from_str(&node.cli(&["pressure", "-o", "json"])?)?;
    let signals = told["signals"].as_array().context("a list")?;
    let of = signals.iter().find(|signal| signal["signal"] == SIGNAL).cloned();
    let of = of.with_context(|| format!("{SIGNAL} has been measured: {told:#}"))?;
    Ok((told, of))
}

fn percent(of: &Value) -> Result<f64> {
    of["stall"]["percent"].as_f64().context("the kernel counts stall")
}

/// A disk at this folder of the node with one file of zeros.
fn disk<'a>(
    node: &'a TestNode,
    folder: &str,
    mib: u64,
) -> Late<impl Fn(&str) -> Result<std::process::Command> + 'a> {
    let at = node.dir().join(folder);
    fs::create_dir(&at).expect("a folder");
    let in_node = |program: &str| Ok(node.runtime_node().command(Path::new(program)));
    Late::mount(in_node, &at, &[("zeros", mib)])
}

/// Of which disk, how much, and each part how many times.
type Reads<'a> = (&'a str, u64, u32);

/// Reads the disk's file for ever, and writes a line into `passes` whenever it has read all of it.
fn reader(node: &TestNode, name: &str, (folder, mib, times): Reads<'_>, beside: &[Value]) -> Value {
    let parts = Parts { mib, part_mib: PART_MIB, times };
    let text = reads_for_ever("zeros", parts, "echo pass >> /shared/passes;");
    let mounts = json!([{"name": "file", "mountPath": "/file"}]);
    let volumes = json!([{"name": "file", "hostPath": {"path": node.dir().join(folder)}}]);
    let reads = script("reads", &text).with("volumeMounts", mounts);
    let all = [&[reads], beside].concat();
    sharing(pod(name, &all).with_spec("volumes", volumes), node)
}

/// Waits until the agent has seen less than its threshold so many times, with a stall that spares
/// the cache, while the pod read all of the file; the greatest stall, in percent.
fn reads_under_the_threshold(node: &TestNode) -> f64 {
    let (mut looks, mut most) = (BTreeSet::new(), 0.0_f64);
    until(LONG * 3, "the file is read, and memory looks short meanwhile", || {
        let (_, of) = pressure(node)?;
        let figure = |value: &Value| value.as_u64().context("a figure");
        let available = figure(&of["available"])?;
        if available < figure(&of["threshold"])? && of["stall"]["sparesCache"] == true {
            looks.insert(available);
        }
        most = most.max(percent(&of)?);
        let passes = lines(node, "passes").len();
        let seen = format!("{passes} passes, looks that saw {looks:?}, stall {most} %, {of:#}");
        ensure!(passes > 0 && looks.len() >= LOOKS, "{seen}");
        Ok(())
    });
    most
}

fn is_evicted(pod: &Pod) -> bool {
    let reason = pod.status.as_ref().and_then(|status| status.reason.as_deref());
    phase(pod) == "Failed" && reason == Some("Evicted")
}

/// Waits until the pod goes; it, and the greatest stall that was seen, in percent.
fn until_it_goes(node: &TestNode, api: &HttpServer, name: &str) -> (Pod, f64) {
    let mut most = 0.0_f64;
    let gone = until(LONG * 3, "the reader is evicted", || {
        let of = pressure(node).and_then(|(_, of)| {
            most = most.max(percent(&of)?);
            Ok(of)
        });
        let pod = told(api, name)?;
        ensure!(is_evicted(&pod), "stall {most} %, {:#}", of?);
        Ok(pod)
    });
    (gone, most)
}

#[test]
fn page_cache_reader_stays_and_only_the_pod_that_causes_stall_is_evicted() {
    if !counts_stall() {
        return skip("no cgroup v2 that counts stall (PSI) on this host");
    }
    let mut node = TestNode::start(little_memory());
    let api = with_api_server(&mut node);
    let holds = container("c", &["/box", "hog", "20"])
        .with("resources", json!({"requests": {"memory": "100Mi"}}));
    run(&node, &api, "modest", pod("modest", &[holds]));

    let large = disk(&node, "large", LARGE_MIB);
    let reads = reader(&node, "reads", ("large", LARGE_MIB, TIMES.0), &[]);
    run(&node, &api, "reads", reads);
    let most = reads_under_the_threshold(&node);
    eprintln!("    {LARGE_MIB} MiB were read at a stall of {most} % at most");
    let (all, _) = pressure(&node).expect("an answer");
    assert_eq!(all["evictions"], json!([]));
    for name in ["reads", "modest"] {
        check_untouched(&node, &api, name).expect("no pod is evicted");
    }
    api.delete(&path("reads"));
    until(LONG, "the reader is gone", || {
        ensure!(api.get(&path("reads")).is_none(), "{}", node.agent_log());
        Ok(())
    });
    // With what is cached of it.
    drop(large);

    let needed = disk(&node, "needed", NEEDED_MIB);
    let own = container("holds", &["/box", "hog", &OWN_MIB.to_string()]);
    let waits = reader(&node, "waits", ("needed", NEEDED_MIB, TIMES.1), &[own]);
    run(&node, &api, "waits", waits);
    needed.slow();
    let (gone, most) = until_it_goes(&node, &api, "waits");
    eprintln!("    it went at a stall of {most} %");
    let status = format!("{:?}", gone.status);
    assert!(status.contains("The node was low on resource: memory. Threshold"), "{status}");
    assert!(!status.contains("OOMKilled"), "{status}");
    // The stall decided, and page cache counted for it.
    until(LONG, "it is explained once it has ended", || {
        let said = node.cli(&["explain", "waits"])?;
        ensure!(said.contains(SIGNAL) && said.contains("%, 10.00% or more: "), "{said}");
        Ok(())
    });
    let all = until(LONG, "no process stalls on memory", || {
        let (all, of) = pressure(&node)?;
        ensure!(of["stall"]["sparesCache"] == true, "{of:#}");
        Ok(all)
    });
    assert_eq!(all["evictions"].as_array().map(Vec::len), Some(1), "{all:#}");
    check_untouched(&node, &api, "modest").expect("no other pod is evicted");
    drop(needed);
    for name in ["waits", "modest"] {
        api.delete(&path(name));
    }
    remove_all(&node);
}
