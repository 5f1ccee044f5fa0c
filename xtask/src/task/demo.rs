//! `cargo xtask demo`: the agent's first impression, from a clean clone to running pods and back.
//!
//! Installs and fetches missing tools, builds the agent (development profile: it is ready in a
//! fraction of a release build's time, and the waiting here is the runtime's), starts a private
//! containerd, puts the manifests of deploy/examples into the agent's folder, waits until each pod
//! is in the state that it is an example of, and prints the agent's output about them. Then
//! everything is stopped and removed; nothing is left on the host but the cache. A pod that does
//! not reach its state fails the demo, after everything was shown.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::prepare;
use crate::node::agent::{self, AgentLayout, HEALTH_PORT, NODE_NAME, READ_ONLY_PORT};
use crate::node::{ContainerdNode, http, process};
use crate::runtime::Version;
use crate::shell::{capture, say, tail};
use crate::{apt, repository};

/// Limit until the pods are in the states that they are examples of.
const SETTLE_WAIT: Duration = Duration::from_secs(90);
/// Limit for the start of the agent, and for the removal of the pods.
const CHANGE_WAIT: Duration = Duration::from_secs(60);
/// Polling period.
const PERIOD: Duration = Duration::from_millis(100);

/// An example: the pod's name, the state to wait for, and its test.
struct Example {
    pod: &'static str,
    wanted: &'static str,
    is_there: fn(&Value) -> bool,
}

const EXAMPLES: [Example; 5] = [
    Example { pod: "web", wanted: "ready, with its sidecar", is_there: is_ready },
    Example { pod: "job", wanted: "succeeded after two init containers", is_there: has_succeeded },
    Example { pod: "crash-loop", wanted: "in back-off", is_there: is_backing_off },
    Example { pod: "not-ready", wanted: "running, readiness failing", is_there: is_not_ready },
    Example { pod: "memory-hog", wanted: "killed for memory", is_there: was_oom_killed },
];

/// The agent of the demo, with everything needed to query it.
struct Demo {
    layout: AgentLayout,
    binary: PathBuf,
    agent: Child,
    node: ContainerdNode,
}

pub(super) fn run() -> Result<ExitCode> {
    apt::require_root("there is no way around it: containers are made")?;
    prepare::build_tools()?;
    prepare::node_tools()?;
    say("build", "pintle-agent, development profile");
    let binary = agent::build("pintle-agent")?;
    let mut demo = Demo::start(binary)?;
    let settled = demo.show();
    let stopped = demo.stop();
    settled.and(stopped)?;
    Ok(ExitCode::SUCCESS)
}

impl Demo {
    fn start(binary: PathBuf) -> Result<Self> {
        say("start", "a containerd in its own namespaces");
        let node = ContainerdNode::start(Version::V2_1)?;
        let layout = AgentLayout::of(&node);
        layout.write(&node, &serde_json::json!({}))?;
        let examples = repository().join("deploy/examples");
        for entry in fs::read_dir(&examples).context("read deploy/examples")? {
            let path = entry?.path();
            let name = path.file_name().expect("an entry has a name");
            fs::copy(&path, layout.manifests().join(name))?;
        }
        let mut cmd = layout.agent(&node, &binary);
        say("run", &crate::shell::line(&cmd));
        let log = node.log("agent")?;
        let agent = cmd.stdout(log.try_clone()?).stderr(log).spawn().context("start the agent")?;
        let mut demo = Self { layout, binary, agent, node };
        demo.wait(CHANGE_WAIT, |demo| {
            demo.get(HEALTH_PORT, "/healthz").map(|_| ()).context("the agent is not healthy")
        })?;
        Ok(demo)
    }

    /// Prints the agent's answers once every example is where it should be, or time is up.
    fn show(&mut self) -> Result<()> {
        let begin = Instant::now();
        let settled = self.wait(SETTLE_WAIT, |demo| {
            let pods = demo.pods()?;
            let is_there = |e: &Example| pods.iter().any(|p| named(p, e.pod) && (e.is_there)(p));
            let missing = EXAMPLES.iter().filter(|e| !is_there(e));
            let missing: Vec<_> = missing.map(|e| format!("{} ({})", e.pod, e.wanted)).collect();
            ensure!(missing.is_empty(), "not there yet: {}", missing.join(", "));
            Ok(())
        });
        say("settled", &format!("after {:.1} s", begin.elapsed().as_secs_f64()));
        self.ask(&["pods"])?;
        for name in ["crash-loop", "not-ready", "memory-hog"] {
            self.ask(&["explain", &full(name)])?;
        }
        self.ask(&["timeline", &full("web")])?;
        self.visit_web()?;
        settled
    }

    /// Asks the web pod for its page over the pod network.
    fn visit_web(&self) -> Result<()> {
        let pods = self.pods()?;
        let web = pods.iter().find(|p| named(p, "web")).context("there is no pod web")?;
        let ip = web["status"]["podIP"].as_str().context("web has no address")?;
        let page = http::get(self.connect(SocketAddr::new(ip.parse()?, 8080))?, "/")?;
        println!("\n$ curl http://{ip}:8080/\n{}", page.body);
        Ok(())
    }

    /// Removes the manifests, waits for the pods to be removed, ends the agent and everything else.
    fn stop(mut self) -> Result<()> {
        say("remove", "the manifests");
        let begin = Instant::now();
        for entry in fs::read_dir(self.layout.manifests())? {
            fs::remove_file(entry?.path())?;
        }
        let gone = self.wait(CHANGE_WAIT, |demo| {
            let left = demo.node.leftovers(&demo.layout.root(), &demo.layout.pod_logs())?;
            ensure!(left.is_empty(), "pods left behind: {left:#?}");
            Ok(())
        });
        let took = begin.elapsed().as_secs_f64();
        say("gone", &format!("every container, cgroup, mount and folder, after {took:.1} s"));
        let begin = Instant::now();
        process::signal(i32::try_from(self.agent.id())?, Signal::SIGTERM);
        let status = self.agent.wait()?;
        say("stopped", &format!("the agent, after {} ms: {status}", begin.elapsed().as_millis()));
        gone
    }

    fn wait(&mut self, limit: Duration, check: impl Fn(&Self) -> Result<()>) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.agent.try_wait()? {
                bail!("the agent ended: {status}\n{}", self.log());
            }
            match check(self) {
                Err(e) if Instant::now() > deadline => return Err(e).context(self.log()),
                Err(_) => thread::sleep(PERIOD),
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Prints a question and its answer as one would see them in a terminal.
    fn ask(&self, args: &[&str]) -> Result<()> {
        println!("\n$ pintle-agent {}", args.join(" "));
        print!("{}", capture(&mut self.layout.ask(&self.node, &self.binary, args))?);
        Ok(())
    }

    fn pods(&self) -> Result<Vec<Value>> {
        let list: Value = serde_json::from_str(&self.get(READ_ONLY_PORT, "/pods")?.body)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    fn get(&self, port: u16, path: &str) -> Result<http::NodeHttpReply> {
        http::get(self.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?, path)
    }

    fn connect(&self, to: SocketAddr) -> Result<std::net::TcpStream> {
        self.node.connect(to, CHANGE_WAIT)
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(self.node.dir().join("agent.log")).unwrap_or_default();
        format!("end of the agent's log:\n{}", tail(&text, 15))
    }
}

/// The agent ends with the demo, also when it failed half way; the node follows.
impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

/// A static pod's name is its manifest's plus the node's.
fn full(name: &str) -> String {
    format!("{name}-{NODE_NAME}")
}

fn named(pod: &Value, name: &str) -> bool {
    pod["metadata"]["name"] == full(name).as_str()
}

fn condition(pod: &Value, kind: &str) -> bool {
    let all = pod["status"]["conditions"].as_array();
    all.is_some_and(|c| c.iter().any(|c| c["type"] == kind && c["status"] == "True"))
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    pod["status"]["containerStatuses"].as_array().into_iter().flatten()
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready")
}

fn is_not_ready(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && !condition(pod, "Ready")
}

fn has_succeeded(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded"
}

fn is_backing_off(pod: &Value) -> bool {
    containers(pod).any(|c| c["state"]["waiting"]["reason"] == "CrashLoopBackOff")
}

fn was_oom_killed(pod: &Value) -> bool {
    let killed = |state: &Value| state["terminated"]["reason"] == "OOMKilled";
    containers(pod).any(|c| killed(&c["state"]) || killed(&c["lastState"]))
}
