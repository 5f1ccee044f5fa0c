//! The files that a private containerd reads: its own configuration and the pod network.
//!
//! Pure: paths in, text out. Two dialects, because containerd 2 split the CRI plugin in two. The
//! choices that need a reason: `restrict_oom_score_adj` and `disable_apparmor`, or no sandbox
//! starts where those rights are missing; snapshotters and NRI off, because probing them costs
//! start-up time.

use std::path::Path;

use crate::runtime::{Runtime, Version};

/// Image of the sandbox container, preloaded in every node.
pub const PAUSE: &str = "pintle.test/pause:1";

/// Plugins that no test uses; each probes the host when containerd starts.
const DISABLED: &str = r#"["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.nri.v1.nri",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]"#;

/// containerd's own configuration for a node living in `dir`; `by_systemd` has systemd make the
/// containers' cgroups.
pub fn containerd(runtime: &Runtime, dir: &Path, by_systemd: bool) -> String {
    let (at, runc) = (dir.display(), runtime.program("runc"));
    let (cni, runc) = (runtime.cni(), runc.display());
    let cni = cni.display();
    let head = format!(
        "root = \"{at}/containerd\"\nstate = \"{at}/state\"\ndisabled_plugins = {DISABLED}\n\
         [grpc]\naddress = \"{at}/c.sock\"\n"
    );
    if runtime.version != Version::V1_7 {
        format!(
            "version = 3\n{head}\
             [plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = \"{PAUSE}\"\n\
             [plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = \"{at}/certs.d\"\n\
             [plugins.'io.containerd.cri.v1.runtime']\n\
             restrict_oom_score_adj = true\ndisable_apparmor = true\n\
             [plugins.'io.containerd.cri.v1.runtime'.cni]\n\
             bin_dirs = [\"{cni}\"]\nconf_dir = \"{at}/cni.d\"\n\
             [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n\
             runtime_type = \"io.containerd.runc.v2\"\n\
             [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n\
             BinaryName = \"{runc}\"\nSystemdCgroup = {by_systemd}\n"
        )
    } else {
        let cri = "plugins.\"io.containerd.grpc.v1.cri\"";
        format!(
            "version = 2\n{head}[{cri}]\nsandbox_image = \"{PAUSE}\"\n\
             restrict_oom_score_adj = true\ndisable_apparmor = true\n\
             [{cri}.registry]\nconfig_path = \"{at}/certs.d\"\n\
             [{cri}.cni]\nbin_dir = \"{cni}\"\nconf_dir = \"{at}/cni.d\"\n\
             [{cri}.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
             [{cri}.containerd.runtimes.runc.options]\nBinaryName = \"{runc}\"\n\
             SystemdCgroup = {by_systemd}\n"
        )
    }
}

/// The pod network: a bridge in the node's own network namespace, with host ports.
pub fn network(dir: &Path) -> String {
    let at = dir.display();
    format!(
        r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {{"type": "bridge", "bridge": "pods0", "isGateway": true, "hairpinMode": true,
    "ipam": {{"type": "host-local", "dataDir": "{at}/ipam",
      "ranges": [[{{"subnet": "10.88.0.0/16"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
]}}
"#
    )
}
