//! Failures of the runtime: it hangs for one pod or for all, it ends, its registry never answers.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pintle_testbed::attacks;
use pintle_testbed::manifest::{
    With, condition, container, is_running, pod, restarts, waiting_reason,
};
use pintle_testbed::{FrozenProcess, LONG, until};
use serde_json::{Value, json};
use xtask::node::process;
use xtask::shell;

use crate::bystander::healthy;
use crate::ground::AttackedNode;
use crate::support::{goes, kill, running};

attacks!(AttackedNode, "runtime":
    a_frozen_shim,
    a_frozen_containerd,
    containerd_killed_while_pods_start,
    registries_that_hang,
    an_image_that_cannot_be_had,
    few_descriptors,
);

/// How long containerd is frozen.
const FROZEN: Duration = Duration::from_secs(10);
/// How long ago the image could not be pulled for the first time: the next try is far away.
const REFUSED_SINCE: Duration = Duration::from_secs(85);

fn paused(name: &str) -> Value {
    pod(name, &[container("c", &["/box", "pause"])])
}

/// The shim of one pod is frozen, that pod is removed and another one dies.
fn a_frozen_shim(ground: &mut AttackedNode) {
    let node = &ground.node;
    node.put("frozen.json", &paused("frozen"));
    node.pod_until("frozen", "is ready", |p| condition(p, "Ready"));
    let shims = node.runtime_node().shims();
    assert_eq!(shims.len(), 1, "{shims:?}");
    node.put("other.json", &paused("other"));
    let other = node.pod_until("other", "is ready", |p| condition(p, "Ready"));
    let frozen_process = FrozenProcess::freeze(shims[0].pid);
    node.remove("frozen.json");
    kill(node, &other, "c");
    until(ground.limit("dies and is restarted"), "the other one is restarted", || {
        let it = node.pod("other")?;
        anyhow::ensure!(restarts(&it, "c") == 1 && is_running(&it, "c"), "{:?}", it.status);
        Ok(())
    });
    ground.bystander("beside the frozen one");
    drop(frozen_process);
    node.gone("frozen");
}

/// containerd answers nothing for ten seconds. Work without the runtime continues; missed events
/// are caught up.
fn a_frozen_containerd(ground: &mut AttackedNode) {
    let node = &ground.node;
    node.put("dies.json", &paused("dies"));
    let dies = node.pod_until("dies", "is ready", |p| condition(p, "Ready"));
    let pid = node.runtime_node().containerd_pid().expect("it runs");
    let frozen_process = FrozenProcess::freeze(i32::try_from(pid).expect("a pid"));
    let frozen = Instant::now();
    kill(node, &dies, "c");
    node.put("new.json", &paused("new"));
    while frozen.elapsed() < FROZEN {
        until(ground.limit("finds the node healthy"), "the node is healthy", || healthy(node));
        until(ground.limit("is listed"), "pods are listed", || {
            ground.port.get(node, "/pods").map(drop)
        });
        thread::sleep(Duration::from_millis(100));
    }
    until(ground.limit("is listed"), "the new pod is known", || node.pod("new").map(drop));
    drop(frozen_process);
    node.pod_until("dies", "was restarted", |p| restarts(p, "c") == 1 && is_running(p, "c"));
    node.pod_until("new", "is ready", |p| condition(p, "Ready"));
    ground.bystander("after it");
}

/// containerd is killed while eight pods start and one dies.
fn containerd_killed_while_pods_start(ground: &mut AttackedNode) {
    let names: Vec<String> = (0..8).map(|n| format!("starts{n}")).collect();
    for name in &names {
        ground.node.put(&format!("{name}.json"), &paused(name));
    }
    until(LONG, "some have started", || {
        let known = ground.node.runtime_node().shims().len();
        anyhow::ensure!(known >= 2, "{known}");
        Ok(())
    });
    let node = ground.node.runtime_node_mut();
    node.kill_containerd();
    node.start_containerd().expect("it starts again");
    for name in &names {
        ground.node.pod_until(name, "is ready", |p| condition(p, "Ready"));
    }
    ground.bystander("after it");
    for name in &names {
        ground.node.remove(&format!("{name}.json"));
    }
    for name in &names {
        ground.node.gone(name);
    }
    // A caller that went away while a sandbox was created leaves a shim that containerd has
    // forgotten; no call ends it.
    let known = ground.node.runtime_node().ctr(&["containers", "ls", "-q"]).expect("listed");
    assert_eq!(known.trim(), "");
    for shim in ground.node.runtime_node().shims() {
        process::signal(shim.pid, Signal::SIGKILL);
    }
}

/// Sixteen pods pull images from registries that take connections and send nothing, or a byte now
/// and then.
fn registries_that_hang(ground: &mut AttackedNode) {
    let rude = container("c", &["/box", "rude", "silent=9001", "drip=9002"]);
    ground.node.put("rude.json", &pod("rude", &[rude]).with_spec("hostNetwork", json!(true)));
    running(&ground.node, "rude", &["c"]);
    for n in 0..16 {
        let name = format!("pulls{n}");
        let image = format!("127.0.0.1:{}/none{n}:1", 9001 + n % 2);
        let pulls = container("c", &["/box", "pause"])
            .with("image", json!(image))
            .with("imagePullPolicy", json!("Always"));
        let beside = container("beside", &["/box", "pause"]);
        ground.node.put(&format!("{name}.json"), &pod(&name, &[beside, pulls]));
    }
    // The sixteen starts are no attack; the pulls that they leave running are.
    for n in 0..16 {
        running(&ground.node, &format!("pulls{n}"), &["beside"]);
    }
    ground.bystander("while they pull");
}

/// One container of a pod has an image that no registry has, and has waited for a while; its
/// neighbour in the same pod dies.
fn an_image_that_cannot_be_had(ground: &mut AttackedNode) {
    let missing = container("missing", &["/box", "pause"])
        .with("image", json!("127.0.0.1:1/none:1"))
        .with("imagePullPolicy", json!("Always"));
    let half = pod("half", &[missing, container("c", &["/box", "pause"])]);
    ground.node.put("half.json", &half);
    let half = running(&ground.node, "half", &["c"]);
    let begin = Instant::now();
    until(LONG, "the image is backed off from", || {
        let it = ground.node.pod("half")?;
        let reason = waiting_reason(&it, "missing").unwrap_or_default().to_owned();
        anyhow::ensure!(reason == "ImagePullBackOff", "{reason}");
        Ok(())
    });
    thread::sleep(REFUSED_SINCE.saturating_sub(begin.elapsed()));
    kill(&ground.node, &half, "c");
    until(ground.limit("dies and is restarted"), "the neighbour is started again", || {
        let it = ground.node.pod("half")?;
        anyhow::ensure!(restarts(&it, "c") == 1 && is_running(&it, "c"), "{:?}", it.status);
        Ok(())
    });
    ground.bystander("after it");
    ground.node.remove("half.json");
    goes(ground, "half");
}

/// The agent may open few files, and clients use them all; when they leave, it recovers.
fn few_descriptors(ground: &mut AttackedNode) {
    let node = &ground.node;
    let limit = |files: &str| {
        let mut cmd = node.runtime_node().command(Path::new("prlimit"));
        cmd.args(["--pid", &node.agent_pid().to_string(), &format!("--nofile={files}")]);
        shell::run(&mut cmd).expect("limited");
    };
    limit("160:");
    let held: Vec<_> = (0..200).filter_map(|_| ground.port.socket(node).ok()).collect();
    node.put("poor.json", &paused("poor"));
    until(LONG, "the agent knows of the pod, or is out of descriptors", || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", node.agent_pid()))?.count();
        anyhow::ensure!(fds >= 150 || node.pod("poor").is_ok(), "{fds}");
        Ok(())
    });
    drop(held);
    node.pod_until("poor", "is ready after all", |p| condition(p, "Ready"));
    limit("20000:");
    ground.bystander("with descriptors again");
}
