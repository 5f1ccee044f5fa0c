//! Pods on a node with cgroup v2 and systemd: manifests in, statuses, cgroups and units out.
//!
//! A test starts a `TestNode`, which is a guest of its own with the agent of `PINTLE_AGENT`, puts
//! manifests of static pods there, and reads what systemd and the kernel have. A guest has one CPU
//! and belongs to the test's thread. A wait that ends in vain panics with what was seen last and
//! the end of the agent's log.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xtask::cluster::Cluster;
use xtask::image::set;
use xtask::uml::Node;

/// Enough for anything that a pod does on a guest with one CPU of a busy host.
const WAIT_MAX: Duration = Duration::from_secs(240);
/// How often a condition is evaluated.
const PERIOD: Duration = Duration::from_millis(100);

/// A pod of one container of the box image, which has busybox and `/box`.
pub fn pod(name: &str, command: &[&str], resources: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c",
                "image": set::BOX,
                "imagePullPolicy": "Never",
                "command": command,
                "resources": resources,
            }],
        },
    })
}

/// A pod whose container sleeps.
pub fn sleeper(name: &str, resources: &Value) -> Value {
    pod(name, &["/box", "pause"], resources)
}

/// Whether the pod is ready.
pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// The container's status.
pub fn container(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// The container's id without the runtime's name.
pub fn container_id(pod: &Value) -> String {
    let id = container(pod)["containerID"].as_str().unwrap_or_default();
    id.rsplit('/').next().unwrap_or_default().to_owned()
}

/// How often the container was restarted; the largest number before it has a status.
pub fn restarts(pod: &Value) -> u64 {
    container(pod)["restartCount"].as_u64().unwrap_or(u64::MAX)
}

/// A pod's slice, below the slice of all pods; `class` is empty for Guaranteed.
pub fn slice(pod: &Value, class: &str) -> String {
    let uid = pod["metadata"]["uid"].as_str().expect("a uid").replace('-', "_");
    match class {
        "" => format!("kubepods-pod{uid}.slice"),
        class => format!("kubepods-{class}.slice/kubepods-{class}-pod{uid}.slice"),
    }
}

/// The unit of a slice: the last part of its path.
pub fn unit(slice: &str) -> &str {
    slice.rsplit('/').next().unwrap_or(slice)
}

/// The agent under test.
fn agent() -> PathBuf {
    let agent = std::env::var_os("PINTLE_AGENT").map(PathBuf::from);
    agent.expect("PINTLE_AGENT names the agent; `cargo xtask test uml` sets it")
}

/// An API server with its store, removed at the end.
pub struct Api(Cluster);

impl Api {
    /// Starts it for one node, `n1`; the purpose is its name beside others of this process.
    pub fn start(purpose: &str) -> Self {
        let cluster = Cluster::of_this_run(purpose).and_then(|cluster| cluster.with_nodes(1));
        let api = Self(cluster.expect("a cluster"));
        api.0.up_for_guests().expect("an API server");
        api
    }

    /// The cluster that it is of.
    pub fn cluster(&self) -> &Cluster {
        &self.0
    }

    /// What `kubectl` prints, which must succeed.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.0.kubectl(args).expect("kubectl succeeds")
    }

    /// Creates a pod on the node without an API server's token in it.
    pub fn create(&self, pod: &Value) {
        let mut pod = pod.clone();
        pod["spec"]["nodeName"] = "n1".into();
        pod["spec"]["automountServiceAccountToken"] = false.into();
        self.create_as_it_is(&pod);
    }

    /// Creates any object.
    pub fn create_as_it_is(&self, object: &Value) {
        let file = self.0.layout().dir().join("object.json");
        std::fs::write(&file, object.to_string()).expect("the manifest is written");
        self.kubectl(&["create", "-f", &file.to_string_lossy()]);
    }

    /// A pod as the API server has it.
    pub fn pod(&self, name: &str) -> Result<Value> {
        let text = self.0.kubectl(&["get", "pod", name, "-o", "json"])?;
        serde_json::from_str(&text).context("read the pod")
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        if let Err(error) = self.0.down() {
            eprintln!("leftover: {error:#}");
        }
    }
}

/// A guest with the agent under test.
pub struct TestNode {
    node: Node,
}

impl TestNode {
    /// Boots a guest and starts the agent, with these fields of its configuration.
    pub fn start(settings: &Value) -> Self {
        Self::started(Node::start(&agent(), settings).expect("a node in a guest"))
    }

    /// The same as a node of a cluster.
    pub fn join(cluster: &Cluster, name: &str, settings: &Value) -> Self {
        Self::started(Node::join(cluster, name, &agent(), settings).expect("a node in a guest"))
    }

    fn started(node: Node) -> Self {
        let times = node.times;
        println!(
            "boot {:.1} s, containerd {:.1} s, agent {:.1} s",
            times.boot.as_secs_f64(),
            times.containerd.as_secs_f64(),
            times.agent.as_secs_f64()
        );
        Self { node }
    }

    /// The node itself.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Writes the manifest of a static pod.
    pub fn put(&self, pod: &Value) {
        self.node.put(pod).expect("the manifest is written");
    }

    /// Removes the manifest of a static pod.
    pub fn remove(&self, name: &str) {
        self.node.remove(name).expect("the manifest is removed");
    }

    /// Output of a script in the guest, which must succeed.
    pub fn sh(&self, script: &str) -> String {
        self.node.guest().capture(script).expect("the script succeeds")
    }

    /// A file of a cgroup below the slice of all pods; an empty path is that slice itself.
    pub fn cgroup(&self, path: &str, file: &str) -> String {
        self.try_cgroup(path, file).expect("the cgroup is there")
    }

    /// The same for a cgroup that may not be there yet.
    pub fn try_cgroup(&self, path: &str, file: &str) -> Result<String> {
        self.node.guest().capture(&format!("cat '/sys/fs/cgroup/kubepods.slice/{path}/{file}'"))
    }

    /// A property of a unit as systemd has it.
    pub fn property(&self, unit: &str, name: &str) -> String {
        self.sh(&format!("systemctl show --value --property={name} '{unit}'"))
    }

    /// Names of all slices of pods and scopes of containers that match the pattern.
    pub fn below(&self, pattern: &str) -> Vec<String> {
        // What goes while it looks is no error, but all pods' own slice has to be there.
        let script = format!(
            "cd /sys/fs/cgroup/kubepods.slice && (find . -maxdepth 3 -name '{pattern}' \
             -printf '%f\\n' 2>/dev/null || true)"
        );
        self.sh(&script).lines().map(str::to_owned).collect()
    }

    /// Names of all slices of pods.
    pub fn slices(&self) -> Vec<String> {
        self.below("*-pod*.slice")
    }

    /// Waits until the pod is as wanted, and returns it.
    pub fn pod_until(&self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        self.until(&format!("{name} {what}"), || {
            let pod = self.node.pod(name)?.with_context(|| format!("no pod {name}"))?;
            ensure!(is_so(&pod), "{:#}", pod["status"]);
            Ok(pod)
        })
    }

    /// Evaluates until the answer is `Ok`; panics with the last error after `WAIT_MAX`.
    pub fn until<T>(&self, what: &str, mut evaluate: impl FnMut() -> Result<T>) -> T {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            match evaluate() {
                Ok(answer) => return answer,
                Err(error) if Instant::now() > deadline => {
                    let log = self.node.journal("pintle-agent");
                    panic!("not within {WAIT_MAX:?}: {what}\nlast seen: {error:#}\n{log}")
                }
                Err(_) => thread::sleep(PERIOD),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_of_a_pod_lies_in_the_slice_of_its_qos_class() {
        let pod = json!({"metadata": {"uid": "a-b"}});
        assert_eq!(slice(&pod, ""), "kubepods-poda_b.slice");
        let burstable = slice(&pod, "burstable");
        assert_eq!(burstable, "kubepods-burstable.slice/kubepods-burstable-poda_b.slice");
        assert_eq!(unit(&burstable), "kubepods-burstable-poda_b.slice");
    }
}
