//! kubeadm makes a cluster of machines that run the agent in the kubelet's place.
//!
//! `init`, `join` and `reset` of upstream's kubeadm run in a node's namespaces. A stand-in for
//! systemctl starts `kubelet.service` as kubeadm's packages define it. The control plane is static
//! pods of the agent, from images made of upstream's programs. Needs root, Go and the network once.
//! Not a part of a full run: `cargo xtask test kubeadm`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pintle_tests::node::agent_binary;
use pintle_tests::until;
use serde_json::Value;
use xtask::cluster::{Cluster, layout};
use xtask::image::control;
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
/// Checks of kubeadm that fail on machines that are namespaces of a host with cgroup v1 and swap.
const IGNORED: &str = "--ignore-preflight-errors=SystemVerification,Swap,Mem,NumCPU,\
                       FileContent--proc-sys-net-bridge-bridge-nf-call-iptables,\
                       DirAvailable--etc-kubernetes-manifests";
/// Fields of the kubelet's configuration that such machines need; the rest is kubeadm's.
const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
    failSwapOn: false\nfailCgroupV1: false\nenforceNodeAllocatable: []\n";
/// Where the runtime listens on every machine.
const SOCKET: &str = "unix:///run/containerd/containerd.sock";
/// The static pods of a control plane.
const CONTROL_PLANE: [&str; 4] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Two machines with a runtime and images, removed when dropped.
struct Machines(Cluster);

impl Machines {
    fn start() -> Result<Self> {
        let machines = Self(Cluster::of_this_run("kubeadm")?.with_nodes(2)?);
        let (kubeadm, images) = (Program::Kubeadm.ensure()?, control::layout()?);
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

    /// The node's version, once it is ready.
    fn ready(&self, node: &str) -> String {
        until(STEP, &format!("{node} is ready"), || {
            let object = self.get(&["node", node])?;
            ensure!(is_true(&object, "Ready"), "{:#}", object["status"]["conditions"]);
            let version = object["status"]["nodeInfo"]["kubeletVersion"].as_str();
            Ok(version.unwrap_or_default().to_owned())
        })
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

fn init_config() -> String {
    let address = layout::address("n1");
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
         bootstrapTokens: [{{token: {TOKEN}}}]\n\
         localAPIEndpoint: {{advertiseAddress: {address}}}\n\
         nodeRegistration: {{criSocket: '{SOCKET}'}}\n---\n\
         apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n\
         kubernetesVersion: {VERSION}\n---\n{KUBELET}"
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

#[test]
fn kubeadm_makes_a_cluster_whose_kubelets_are_the_agent() {
    let machines = Machines::start().expect("two machines");
    machines.kubeadm("n1", "init", &init_config()).expect("the first machine is initialised");
    let version = machines.ready("n1");
    assert!(version.contains("+pintle."), "{version}");
    for part in CONTROL_PLANE {
        until(STEP, &format!("the mirror pod of {part} is ready"), || {
            let pod = machines.get(&["pod", "-n", "kube-system", &format!("{part}-n1")])?;
            ensure!(is_true(&pod, "Ready"), "{:#}", pod["status"]);
            Ok(())
        });
    }

    machines.kubeadm("n2", "join", &join_config()).expect("the second machine joins");
    let version = machines.ready("n2");
    assert!(version.contains("+pintle."), "{version}");
    let signed = fs::read_to_string(machines.0.layout().node("n2").join("kubelet/config.yaml"));
    assert!(signed.expect("written by kubeadm").contains("rotateCertificates: true"));
    let pem = machines.0.layout().node("n2").join("kubelet/pki/kubelet-client-current.pem");
    assert!(pem.exists(), "the cluster signed a certificate of the agent");
    let bootstrap = machines.run("n2", &["test", "-e", "/etc/kubernetes/bootstrap-kubelet.conf"]);
    bootstrap.expect_err("kubeadm removes the token once the agent has its certificate");

    let reset = machines.run("n2", &["kubeadm", "reset", "--force", "--cri-socket", SOCKET]);
    reset.expect("the second machine leaves");
    let tasks = machines.run("n2", &["ctr", "-n", "k8s.io", "tasks", "ls", "-q"]).expect("answers");
    assert_eq!(tasks.trim(), "", "nothing runs any more");
}
