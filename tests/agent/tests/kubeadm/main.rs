//! kubeadm makes a cluster of machines that run the agent in the kubelet's place.
//!
//! `init`, `join`, `upgrade` and `reset` of upstream's kubeadm run in a node's namespaces. A
//! stand-in for systemctl starts `kubelet.service` as kubeadm's packages define it. The control
//! plane is static pods of the agent, from images made of upstream's programs. Needs root, Go and
//! the network once.
//! Not a part of a full run: `cargo xtask test kubeadm`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pintle_testbed::node::agent_binary;
use pintle_testbed::until;
use serde_json::Value;
use xtask::cluster::{Cluster, layout};
use xtask::image::control::{self, EARLIER};
use xtask::shell::capture;
use xtask::upstream::{Program, VERSION};

/// How long a step of the cluster may take: etcd, API server and both managers start in pods.
const STEP: Duration = Duration::from_secs(240);
/// The systemctl of both machines.
const SYSTEMCTL: &str = include_str!("systemctl");
/// The token with which the second machine joins.
const TOKEN: &str = "abcdef.0123456789abcdef";
/// The administrator's kubeconfig, as kubeadm writes it.
const ADMIN: &str = "/etc/kubernetes/admin.conf";
/// Checks of kubeadm that fail on machines that are namespaces of a host with cgroup v1 and swap,
/// and where CoreDNS is missing.
const IGNORED: &str = "--ignore-preflight-errors=SystemVerification,Swap,Mem,NumCPU,\
                       FileContent--proc-sys-net-bridge-bridge-nf-call-iptables,\
                       DirAvailable--etc-kubernetes-manifests,\
                       CoreDNSUnsupportedPlugins,CoreDNSMigration";
/// Fields of the kubelet's configuration that such machines need; the rest is kubeadm's.
const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
    failSwapOn: false\nfailCgroupV1: false\nenforceNodeAllocatable: []\n\
    evictionHard: {memory.available: 100Mi}\nimageGCHighThresholdPercent: 100\n\
    imageGCLowThresholdPercent: 99\n";
/// The tag of the store's image among those of the tests; kubeadm of the next release has another.
const ETCD: &str = "3.6.8-0";
/// Where the runtime listens on every machine.
const SOCKET: &str = "unix:///run/containerd/containerd.sock";
/// The static pods of a control plane.
const CONTROL_PLANE: [&str; 4] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Two machines with a runtime and images, removed when dropped.
struct Machines(Cluster);

impl Machines {
    fn start(purpose: &str, kubeadm: Program) -> Result<Self> {
        let machines = Self(Cluster::of_this_run(purpose)?.with_nodes(2)?);
        let (kubeadm, images) = (kubeadm.ensure()?, control::layout()?);
        for node in ["n1", "n2"] {
            machines.0.up_for_node_suite(node, None)?;
            machines.0.import_images(node, &images)?;
            let bin = machines.bin(node);
            fs::create_dir_all(&bin)?;
            symlink(&kubeadm, bin.join("kubeadm"))?;
            symlink(fs::canonicalize(agent_binary())?, bin.join("kubelet"))?;
            fs::write(bin.join("systemctl"), SYSTEMCTL)?;
            fs::set_permissions(bin.join("systemctl"), fs::Permissions::from_mode(0o755))?;
        }
        Ok(machines)
    }

    /// Programs of a machine that come before all others on its PATH.
    fn bin(&self, node: &str) -> PathBuf {
        self.0.layout().node(node).join("bin")
    }

    /// Runs a command on a machine.
    fn run(&self, node: &str, words: &[&str]) -> Result<String> {
        let mut cmd = self.0.node_service(node, "login", Path::new("sh"))?;
        cmd.args(["-c", r#"PATH=$0:$PATH; export PATH; exec "$@""#])
            .arg(self.bin(node))
            .args(words);
        capture(&mut cmd)
    }

    /// Runs kubeadm with a configuration; its failure shows the agent's log.
    fn kubeadm(&self, node: &str, verb: &str, config: &str) -> Result<String> {
        let path = self.0.layout().node(node).join(format!("{verb}.yaml"));
        fs::write(&path, config)?;
        let words =
            ["kubeadm", verb, "--config", &path.to_string_lossy(), IGNORED].map(str::to_owned);
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        if verb == "init" {
            // Neither has a part in what is tested, and both need another image.
            words.push("--skip-phases=addon");
        }
        self.run(node, &words).with_context(|| format!("{node}: {}", self.log(node)))
    }

    fn log(&self, node: &str) -> String {
        self.run(node, &["tail", "-n", "60", "/run/kubelet-unit/log"]).unwrap_or_default()
    }

    /// Asks the API server as the administrator.
    fn get(&self, words: &[&str]) -> Result<Value> {
        let all = [&["kubectl", "--kubeconfig", ADMIN, "get", "-o", "json"], words].concat();
        Ok(serde_json::from_str(&self.run("n1", &all)?)?)
    }

    /// The mirror pod of a part of the control plane, once it is ready.
    fn part(&self, part: &str) -> Value {
        until(STEP, &format!("the mirror pod of {part} is ready"), || {
            let pod = self.get(&["pod", "-n", "kube-system", &format!("{part}-n1")])?;
            ensure!(is_true(&pod, "Ready"), "{:#}", pod["status"]);
            Ok(pod)
        })
    }

    /// Waits until a node is ready.
    fn ready(&self, node: &str) {
        until(STEP, &format!("{node} is ready"), || {
            let object = self.get(&["node", node])?;
            ensure!(is_true(&object, "Ready"), "{:#}", object["status"]["conditions"]);
            Ok(())
        });
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for node in ["n1", "n2"] {
            let _ = self.run(node, &["systemctl", "stop", "kubelet"]);
        }
        if std::env::var_os("PINTLE_KEEP").is_none()
            && let Err(error) = self.0.down()
        {
            eprintln!("{error:#}");
        }
    }
}

fn is_true(object: &Value, condition: &str) -> bool {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|c| c["type"] == condition && c["status"] == "True")
}

fn init_config(release: &str) -> String {
    let address = layout::address("n1");
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
         bootstrapTokens: [{{token: {TOKEN}}}]\n\
         localAPIEndpoint: {{advertiseAddress: {address}}}\n\
         nodeRegistration: {{criSocket: '{SOCKET}'}}\n---\n\
         apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n\
         kubernetesVersion: {release}\netcd: {{local: {{imageTag: {ETCD}}}}}\n---\n{KUBELET}"
    )
}

fn join_config() -> String {
    let address = layout::address("n1");
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n\
         discovery: {{bootstrapToken: {{token: {TOKEN}, apiServerEndpoint: '{address}:6443', \
         unsafeSkipCAVerification: true}}}}\nnodeRegistration: {{criSocket: '{SOCKET}'}}\n"
    )
}

/// Makes a cluster of the release of both machines.
fn init_and_join(machines: &Machines, release: &str) {
    machines
        .kubeadm("n1", "init", &init_config(release))
        .expect("the first machine is initialised");
    machines.ready("n1");
    let version = machines.run("n1", &["kubelet", "--version"]).expect("a version");
    assert!(version.contains("+pintle."), "{version}");
    for part in CONTROL_PLANE {
        machines.part(part);
    }

    machines.kubeadm("n2", "join", &join_config()).expect("the second machine joins");
    machines.ready("n2");
    let signed = fs::read_to_string(machines.0.layout().node("n2").join("kubelet/config.yaml"));
    assert!(signed.expect("written by kubeadm").contains("rotateCertificates: true"));
    let pem = machines.0.layout().node("n2").join("kubelet/pki/kubelet-client-current.pem");
    assert!(pem.symlink_metadata().is_ok(), "the cluster signed a certificate of the agent");
    let bootstrap = machines.run("n2", &["test", "-e", "/etc/kubernetes/bootstrap-kubelet.conf"]);
    bootstrap.expect_err("kubeadm removes the token once the agent has its certificate");
}

/// Both machines leave, and nothing runs on them.
fn reset(machines: &Machines) {
    for node in ["n2", "n1"] {
        let reset = machines.run(node, &["kubeadm", "reset", "--force", "--cri-socket", SOCKET]);
        reset.expect("the machine leaves");
        let tasks = machines.run(node, &["ctr", "-n", "k8s.io", "tasks", "ls", "-q"]);
        assert_eq!(tasks.expect("answers").trim(), "", "nothing runs on {node} any more");
    }
}

#[test]
fn kubeadm_creates_upgrades_and_resets_a_cluster_with_the_agent_as_kubelet() {
    let machines = Machines::start("kubeadm", Program::Kubeadm).expect("two machines");
    init_and_join(&machines, EARLIER);
    upgrade(&machines);
    reset(&machines);
}

#[test]
fn kubeadm_of_the_next_release_makes_and_resets_a_cluster_of_ours() {
    let machines = Machines::start("kubeadmnext", Program::KubeadmNext).expect("two machines");
    init_and_join(&machines, VERSION);
    reset(&machines);
}

/// Upgrades both machines: kubeadm replaces the static pods one by one and waits for the hash of
/// each in its mirror pod.
fn upgrade(machines: &Machines) {
    let etcd = machines.part("etcd");
    let apply = ["kubeadm", "upgrade", "apply", VERSION, "--yes", IGNORED, "--skip-phases=addon"];
    let applied = machines.run("n1", &apply).with_context(|| machines.log("n1"));
    applied.expect("the control plane is upgraded");
    for part in &CONTROL_PLANE[1..] {
        until(STEP, &format!("{part} is of {VERSION}"), || {
            let pod = machines.get(&["pod", "-n", "kube-system", &format!("{part}-n1")])?;
            let image = pod["status"]["containerStatuses"][0]["image"].to_string();
            ensure!(is_true(&pod, "Ready") && image.contains(VERSION), "{:#}", pod["status"]);
            Ok(())
        });
    }
    let upgraded = machines.run("n2", &["kubeadm", "upgrade", "node", IGNORED]);
    upgraded.with_context(|| machines.log("n2")).expect("the second machine is upgraded");
    // As an operator does when the package of the kubelet is a new one.
    for node in ["n1", "n2"] {
        machines.run(node, &["systemctl", "restart", "kubelet"]).expect("restarted");
        machines.ready(node);
    }
    let ids = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    let after = machines.part("etcd");
    // kubeadm moves its manifest away and back, so that it has the new certificates.
    assert_ne!(ids(&after), ids(&etcd), "etcd is restarted");
}
