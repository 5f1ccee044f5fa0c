//! A run that is ended in the middle of a test, or killed and followed by another one, leaves
//! nothing of the test's node: no process, container, cgroup, namespace, mount or folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pintle_testbed::{LONG, Options, RawCri, TestNode, until};
use serde_json::{Value, json};
use xtask::node::{agent, cgroups, process};
use xtask::supervisor;

/// Names the file in which the test of the inner run describes its node.
const NODE_FILE: &str = "PINTLE_TEST_NODE_FILE";

#[test]
fn a_run_that_is_asked_to_end_in_the_middle_of_a_test_leaves_no_node() {
    let (mut run, node) = run_with_a_node();
    end(&mut run, Signal::SIGTERM);
    check_gone(&node);
}

#[test]
fn the_node_of_a_killed_run_is_removed_by_the_next_one() {
    let (mut run, node) = run_with_a_node();
    end(&mut run, Signal::SIGKILL);
    let left = process::marked(&node.name);
    assert!(!left.is_empty(), "nothing was left: the next run proves nothing");
    let next = supervised(Path::new("true")).status();
    assert!(next.expect("the next run starts").success());
    check_gone(&node);
}

#[test]
#[ignore = "runs below the two others, which end it"]
fn holds_a_node_until_it_is_ended() {
    let file = std::env::var(NODE_FILE).expect("the run says where");
    let node = TestNode::start(Options { agent: false, ..Options::default() });
    let cri = RawCri::connect(&node).expect("connected");
    let pod = cri.run_pod("held").expect("a sandbox");
    let id = cri.run_container(&pod, "c", &["/box", "signals", "60000"]).expect("a container");
    let pids = [&pod.id, &id].map(|id| node.container_pid(id).expect("it runs"));
    let text = json!({
        "name": node.runtime_node().name(), "dir": node.dir(), "pids": pids,
        "began": pids.map(process::began),
    });
    fs::write(format!("{file}.part"), text.to_string()).expect("written");
    fs::rename(format!("{file}.part"), file).expect("renamed");
    std::thread::sleep(LONG * 100);
}

/// The inner test's report about its node.
struct NodeOfRun {
    name: String,
    dir: PathBuf,
    containers: Vec<(i32, String)>,
}

impl NodeOfRun {
    fn read(file: &Path) -> Result<Self> {
        let value: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
        let word = |value: &Value| value.as_str().map(str::to_owned).context("a text");
        let list = |key: &str| value[key].as_array().cloned().context("a list");
        let pids = list("pids")?.into_iter().filter_map(|pid| i32::try_from(pid.as_i64()?).ok());
        let began: Vec<String> = list("began")?.iter().map(word).collect::<Result<_>>()?;
        let containers = pids.zip(began).collect();
        Ok(Self { name: word(&value["name"])?, dir: word(&value["dir"])?.into(), containers })
    }
}

/// A supervised run in which a test holds a node with a container.
fn run_with_a_node() -> (Child, NodeOfRun) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("node");
    let mut cmd = supervised(&std::env::current_exe().expect("this program"));
    cmd.args(["--exact", "ended::holds_a_node_until_it_is_ended", "--ignored"]);
    let mut run = cmd.env(NODE_FILE, &file).spawn().expect("the run starts");
    let mut node = None;
    until(LONG * 4, "the run has a node", || {
        ensure!(run.try_wait()?.is_none(), "the run has ended");
        node = Some(NodeOfRun::read(&file)?);
        Ok(())
    });
    (run, node.expect("read"))
}

fn supervised(program: &Path) -> Command {
    let mut cmd = Command::new(xtask());
    cmd.args(["run", "--"]).arg(program).stdin(Stdio::null()).stdout(Stdio::null());
    cmd
}

/// xtask beside this program, where it runs these tests; else built.
fn xtask() -> PathBuf {
    if std::env::var_os(supervisor::MARK).is_none() {
        return agent::build("xtask").expect("xtask builds");
    }
    let this = std::env::current_exe().expect("this program");
    this.ancestors().nth(2).expect("programs are in folders").join("xtask")
}

fn end(run: &mut Child, signal: Signal) {
    let pid = i32::try_from(run.id()).expect("a pid");
    kill(Pid::from_raw(pid), signal).expect("it is there");
    run.wait().expect("it ends");
}

fn check_gone(node: &NodeOfRun) {
    assert_eq!(process::marked(&node.name), [0; 0]);
    assert!(!node.dir.exists(), "{}", node.dir.display());
    for (mount, _) in cgroups::hierarchies().expect("readable") {
        assert!(!mount.join(&node.name).exists(), "{}", mount.display());
    }
    until(LONG, "the containers' processes are gone", || {
        let is_there = |(pid, began): &&(i32, String)| process::began(*pid).as_ref() == Some(began);
        let left: Vec<_> = node.containers.iter().filter(is_there).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    });
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("readable");
    assert!(!mounts.contains(&node.name), "a mount is left on the host");
}
