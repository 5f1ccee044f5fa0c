//! The files that the parts of a cluster read. Pure: names in, text out.

use std::path::Path;

use serde_json::{Value, json};

use super::layout::{CONTROL, DNS_SERVICE, Layout, POD_RANGE, pod_range};
use crate::runtime::Runtime;

/// The image of sandboxes, preloaded in every node.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
/// The image of the cluster's DNS server, preloaded too.
pub const COREDNS: &str = "pintle.test/coredns:1";
/// Memory that a node reserves and promises to no pod: two nodes share one machine's memory.
const RESERVED: &str = "4Gi";

/// Port of the cluster's registry, on the control plane's machine.
const REGISTRY_PORT: u16 = 5000;

/// The registry's own configuration: plain HTTP, no authentication.
pub(crate) fn registry(dir: &Path) -> String {
    format!(
        "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n\
         storage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '{CONTROL}:{REGISTRY_PORT}'}}\n",
        dir.display()
    )
}

/// containerd's rule for every registry: it tries the cluster's registry first.
pub(crate) fn registry_hosts() -> String {
    format!("[host.\"http://{CONTROL}:{REGISTRY_PORT}\"]\ncapabilities = [\"pull\", \"resolve\"]\n")
}

/// containerd's own configuration; its folders are the usual ones. `registries` is the folder of
/// its rules for registries; systemd makes the containers' cgroups if `by_systemd`.
pub(crate) fn containerd(runtime: &Runtime, registries: &Path, by_systemd: bool) -> String {
    let (cni, runc) = (runtime.cni(), runtime.program("runc"));
    let (cni, runc, registries) = (cni.display(), runc.display(), registries.display());
    let mut text = format!(
        "version = 3\nroot = \"/var/lib/containerd\"\nstate = \"/run/containerd\"\n\
         [grpc]\naddress = \"/run/containerd/containerd.sock\"\n\
         [plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = \"{PAUSE}\"\n\
         [plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = \"{registries}\"\n\
         [plugins.'io.containerd.cri.v1.runtime']\n\
         restrict_oom_score_adj = true\ndisable_apparmor = true\nenable_unprivileged_ports = true\n\
         [plugins.'io.containerd.cri.v1.runtime'.cni]\n\
         bin_dirs = [\"{cni}\"]\nconf_dir = \"/etc/cni/net.d\"\n"
    );
    // The second is the handler that the suites' RuntimeClass names.
    for handler in ["runc", "test-handler"] {
        let at = format!("plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{handler}");
        text += &format!(
            "[{at}]\nruntime_type = \"io.containerd.runc.v2\"\n\
             [{at}.options]\nBinaryName = \"{runc}\"\nSystemdCgroup = {by_systemd}\n"
        );
    }
    text
}

/// The pod network: every packet passes the node's own stack, where kube-proxy's rules are.
pub(crate) fn pod_network(node: &str) -> String {
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": pod_range(node)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]})
    .to_string()
}

/// The KubeletConfiguration that both agents read: a user's, but for what this host cannot do
/// (swap and cgroup v1 allowed, a cgroup root of our own) and for sharing one machine.
pub(super) fn kubelet(layout: &Layout, node: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failSwapOn": false,
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", layout.cgroup(node)),
        "enforceNodeAllocatable": [],
        "systemReserved": {"memory": RESERVED},
        "evictionHard": {"memory.available": "100Mi"},
        // An image removed from a full disk could not be pulled again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": "/etc/resolv.conf",
        "staticPodPath": "/etc/kubernetes/manifests",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": layout.pki("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "rotateCertificates": false,
        "serverTLSBootstrap": false,
    })
}

/// Audit policy: the API server records the user and the request of each change, not the objects.
pub(super) fn audit_policy() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{
            "level": "Metadata",
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
        }],
    })
    .to_string()
}

/// RBAC rules of kube-proxy; other components find theirs in the API server's built-in roles.
pub(super) fn proxy_rights() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "kube-proxy"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:node-proxier",
        },
        "subjects": [{
            "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-proxy",
        }],
    })
}

/// kube-proxy's arguments. The host's connection tracking is not ours to size.
pub(super) fn proxy_arguments(kubeconfig: &Path, node: &str) -> Vec<String> {
    let mut args = vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={node}"),
        format!("--cluster-cidr={POD_RANGE}"),
        "--proxy-mode=iptables".to_owned(),
    ];
    for limit in ["max-per-core", "tcp-timeout-established", "tcp-timeout-close-wait"] {
        args.push(format!("--conntrack-{limit}=0"));
    }
    args
}
