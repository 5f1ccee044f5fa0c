//! containerd and the agent in a guest: both are units of systemd, as on a user's machine.
//!
//! Input: the agent's program, settings of its configuration. Output: pods as the agent serves
//! them. All paths are the usual ones, and so are the units: the agent's is that of `deploy`,
//! containerd's that of its package. The container runtime and the images come from the host's
//! cache, at the paths that they have there. Pods are static.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Guest, Options};
use crate::cluster::{Cluster, config as cluster_config};
use crate::node::agent::{NODE_NAME, READ_ONLY_PORT};
use crate::node::config::{self, PAUSE};
use crate::node::http::{self, NodeHttpReply};
use crate::node::template;
use crate::runtime::{Runtime, Version};

/// The agent's configuration, in the guest.
const CONFIGURATION: &str = "/etc/kubernetes/kubelet.json";
/// The folder of rules for registries, in the guest.
const REGISTRIES: &str = "/host/registries";
/// Memory of a guest that runs upstream's suites: their images are 1 GiB, and in memory.
const WHOLE_MEMORY_MIB: u32 = 8192;
/// Where manifests of static pods are, in the guest.
const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// Writes a /proc/cpuinfo with a clock speed, without which the kubelet does not start; this kernel's
/// has none. It is mounted until the agent is ready and no longer, because the kernel refuses a new
/// /proc in a user namespace while something is mounted below the old one.
pub const WRITE_CPUINFO: &str =
    r"(cat /proc/cpuinfo; printf 'cpu MHz\t: 2000.000\n') > /run/cpuinfo";
/// Has the agent's unit mount that file while the agent starts.
const CLOCK_SPEED: &str = r"
mkdir -p /etc/systemd/system/pintle-agent.service.d
cat > /etc/systemd/system/pintle-agent.service.d/clock.conf <<'END'
[Service]
ExecStartPre=/bin/mount --bind /run/cpuinfo /proc/cpuinfo
ExecStartPost=/bin/umount /proc/cpuinfo
END
systemctl daemon-reload
";

/// How long the parts of a node took to start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Until the guest ran scripts.
    pub boot: Duration,
    /// Until containerd was ready, with the images.
    pub containerd: Duration,
    /// Until the agent was ready.
    pub agent: Duration,
}

/// What a node is made of.
struct NodeParts {
    options: Options,
    /// containerd's folder with images in it.
    images: PathBuf,
    /// containerd's configuration.
    containerd: String,
    /// Configuration of the pod network.
    network: String,
    /// The agent's configuration.
    configuration: Value,
    /// The agent's flags.
    flags: Vec<String>,
    /// Shell script that makes the network of a whole cluster's node.
    network_script: Option<String>,
}

impl NodeParts {
    /// Those of a node with the images of the tests.
    fn usual(
        options: Options,
        network: String,
        configuration: Value,
        flags: Vec<String>,
    ) -> Result<Self> {
        let version = Version::usual()?;
        let (images, containerd) = (template(version)?, containerd(&Runtime::ensure(version)?));
        let network_script = None;
        Ok(Self { options, images, containerd, network, configuration, flags, network_script })
    }
}

/// A guest with containerd and the agent.
pub struct Node {
    guest: Guest,
    /// How long its parts took to start.
    pub times: Times,
}

impl Node {
    /// Boots a guest and starts containerd and the agent there, for static pods; `settings` are
    /// fields of the agent's configuration beside those that this guest needs.
    pub fn start(agent: &Path, settings: &Value) -> Result<Self> {
        let flags = vec![format!("--hostname-override={NODE_NAME}")];
        let configuration = merged(&[&configuration(), &standalone(), settings])?;
        let network = config::network(Path::new("/var/lib/cni"));
        Self::boot(agent, NodeParts::usual(Options::default(), network, configuration, flags)?)
    }

    /// The same as a node of a cluster, which has an API server; returns when the node is ready.
    pub fn join(cluster: &Cluster, name: &str, agent: &Path, settings: &Value) -> Result<Self> {
        let wire = cluster.wire_guest(name)?;
        let shares = vec![cluster.layout().pki("")];
        let configuration = merged(&[&configuration(), &cluster.guest_settings(), settings])?;
        let flags = cluster.guest_flags(name);
        let options = Options { shares, wire, ..Options::default() };
        let network = cluster_config::pod_network(name);
        let parts = NodeParts::usual(options, network, configuration, flags)?;
        Self::boot_ready(cluster, name, agent, parts)
    }

    /// The same in a cluster with a whole control plane, with the images of upstream's suites, the
    /// cluster's registry, and kube-proxy, which needs a kernel with iptables.
    pub fn join_whole(cluster: &Cluster, name: &str, agent: &Path) -> Result<Self> {
        let wire = cluster.wire_guest(name)?;
        let shares = cluster.guest_shares()?;
        let configuration = merged(&[
            &configuration(),
            &cluster.guest_settings(),
            &cluster.whole_guest_settings(),
        ])?;
        let options = Options { shares, wire, memory_mib: WHOLE_MEMORY_MIB };
        let runtime = Runtime::ensure(Version::usual()?)?;
        let parts = NodeParts {
            images: crate::cluster::template()?,
            containerd: cluster_config::containerd(&runtime, Path::new(REGISTRIES), true),
            network: cluster_config::pod_network(name),
            configuration,
            flags: cluster.guest_flags(name),
            network_script: Some(cluster.guest_network(name)?),
            options,
        };
        Self::boot_ready(cluster, name, agent, parts)
    }

    fn boot_ready(cluster: &Cluster, name: &str, agent: &Path, parts: NodeParts) -> Result<Self> {
        let node = Self::boot(agent, parts)?;
        let ready = cluster.wait_guest_ready(name);
        ready.with_context(|| node.journal("pintle-agent"))?;
        Ok(node)
    }

    fn boot(agent: &Path, mut parts: NodeParts) -> Result<Self> {
        let runtime = Runtime::ensure(Version::usual()?)?;
        let program = fs::canonicalize(agent).context("find the agent")?;
        let folder = program.parent().context("the agent lies in a folder")?;
        parts.options.shares.extend(runtime.dirs());
        parts.options.shares.extend([parts.images.clone(), folder.to_owned()]);
        let begin = Instant::now();
        let guest = Guest::boot(&parts.options)?;
        let boot = begin.elapsed();
        let mut node = Self { guest, times: Times { boot, ..Times::default() } };
        node.configure_runtime(&runtime, &parts)?;
        node.configure_agent(&parts.configuration, &parts.flags)?;
        if let Some(script) = &parts.network_script {
            node.configure_network(script, &runtime)?;
        }
        node.times.containerd = node.start_unit("containerd")?;
        let link = format!("ln -s '{}' /usr/local/bin/pintle-agent", program.display());
        node.guest.capture(&link)?;
        node.times.agent = node.start_unit("pintle-agent")?;
        Ok(node)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        fs::write(self.guest.dir().join(name), text).with_context(|| format!("write {name}"))
    }

    fn configure_runtime(&self, runtime: &Runtime, parts: &NodeParts) -> Result<()> {
        self.write("containerd.toml", &parts.containerd)?;
        let (path, images) = (runtime.path(), parts.images.display());
        let program = runtime.program("containerd");
        let program = program.display();
        let environment = format!("PATH={path}\nCONTAINERD={program}\nIMAGES={images}\n");
        self.write("containerd.env", &environment)?;
        self.write("10-pods.conflist", &parts.network)?;
        let script = "mkdir -p /etc/cni/net.d && cp /host/10-pods.conflist /etc/cni/net.d/";
        self.guest.capture(script).map(drop)
    }

    /// The cluster's registry, the network, and an agent that finds iptables and a clock speed.
    fn configure_network(&self, script: &str, runtime: &Runtime) -> Result<()> {
        fs::create_dir_all(self.guest.dir().join("registries/_default"))?;
        self.write("registries/_default/hosts.toml", &cluster_config::registry_hosts())?;
        let path = format!("echo PATH={} >> /etc/default/pintle-agent\n", runtime.path());
        self.guest
            .capture(&(path + WRITE_CPUINFO + CLOCK_SPEED + script))
            .context("make the node's network")
            .map(drop)
    }

    fn configure_agent(&self, configuration: &Value, flags: &[String]) -> Result<()> {
        self.write("kubelet.json", &serde_json::to_string_pretty(configuration)?)?;
        let arguments = format!("--config={CONFIGURATION} {}", flags.join(" "));
        self.write("pintle-agent", &format!("PINTLE_ARGS={arguments}\n"))?;
        let script = format!(
            "mkdir -p {MANIFESTS} /etc/default && cp /host/kubelet.json {CONFIGURATION} \
             && cp /host/pintle-agent /etc/default/"
        );
        self.guest.capture(&script).map(drop)
    }

    /// Starts a unit that says when it is ready; the time it took.
    fn start_unit(&self, unit: &str) -> Result<Duration> {
        let begin = Instant::now();
        let output = self.guest.run(&format!("systemctl start {unit}"))?;
        ensure!(output.code == 0, "{unit} does not start: {}", self.journal(unit));
        Ok(begin.elapsed())
    }

    /// The guest itself.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// The last lines of a unit's log.
    pub fn journal(&self, unit: &str) -> String {
        let script = format!("journalctl --no-pager --output=cat --lines=200 --unit={unit}");
        self.guest.run(&script).map_or_else(|error| format!("{error:#}"), |output| output.text)
    }

    /// Writes a manifest of a static pod, in a file of the pod's name.
    pub fn put(&self, pod: &Value) -> Result<()> {
        self.put_as(pod["metadata"]["name"].as_str().context("a pod has a name")?, pod)
    }

    /// The same in a file of this name.
    pub fn put_as(&self, name: &str, pod: &Value) -> Result<()> {
        let file = format!("{name}.json");
        self.write(&file, &pod.to_string())?;
        // By rename: the agent never sees half of it.
        let script = format!("cp /host/{file} /etc/{file} && mv /etc/{file} {MANIFESTS}/");
        self.guest.capture(&script).map(drop)
    }

    /// Removes the manifest of a static pod.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.guest.capture(&format!("rm {MANIFESTS}/{name}.json")).map(drop)
    }

    /// A GET to the agent's read-only port.
    pub fn get(&self, path: &str) -> Result<NodeHttpReply> {
        http::get(self.guest.connect(READ_ONLY_PORT)?, path)
    }

    /// All pods as the agent serves them.
    pub fn pods(&self) -> Result<Vec<Value>> {
        let answer = self.get("/pods")?;
        ensure!(answer.status == 200, "{answer:?}");
        let list: Value = serde_json::from_str(&answer.body).context("read the pods")?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// The pod of a manifest; static pods carry the node's name.
    pub fn pod(&self, name: &str) -> Result<Option<Value>> {
        let full = format!("{name}-{NODE_NAME}");
        Ok(self.pods()?.into_iter().find(|pod| pod["metadata"]["name"] == *full))
    }
}

/// The agent's configuration: JSON, which is YAML too. What is not the default is what a guest
/// needs, whose disks are memory.
fn configuration() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "systemd",
        "staticPodPath": MANIFESTS,
        "readOnlyPort": READ_ONLY_PORT,
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "fileCheckFrequency": "1s",
    })
}

/// What the configuration needs where no API server can be asked for rights.
fn standalone() -> Value {
    json!({
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
    })
}

/// The fields of all objects; of one that several have, the last one's.
fn merged(objects: &[&Value]) -> Result<Value> {
    let mut all = serde_json::Map::new();
    for object in objects {
        all.extend(object.as_object().context("settings are an object")?.clone());
    }
    Ok(Value::Object(all))
}

/// containerd's configuration: the usual folders, and systemd makes the containers' cgroups.
fn containerd(runtime: &Runtime) -> String {
    let (cni, runc) = (runtime.cni(), runtime.program("runc"));
    let (cni, runc) = (cni.display(), runc.display());
    format!(
        "version = 3\n\
         [plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = \"{PAUSE}\"\n\
         [plugins.'io.containerd.cri.v1.runtime'.cni]\n\
         bin_dirs = [\"{cni}\"]\nconf_dir = \"/etc/cni/net.d\"\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n\
         BinaryName = \"{runc}\"\nSystemdCgroup = true\n"
    )
}
