//! Reads whether SELinux is on, and the label that the policy gives to files of containers.
//!
//! Input: selinuxfs and the files of the policy. Output: the label; none where SELinux is off or the policy
//! has no labels for containers. Read once at start: a policy changes with a boot.
// k8s: github.com/opencontainers/selinux/go-selinux/selinux_linux.go containerLabels

use std::fs;
use std::path::Path;

use pintle_agent_core::storage::selinux::{self, LabelParts};

/// Of the package of containers' policies; it wins.
const CONTEXTS: &str = "usr/share/containers/selinux/contexts";
/// Names the policy.
const CONFIG: &str = "etc/selinux/config";
/// The policy without a name.
const POLICY: &str = "targeted";

/// True where SELinux is on, enforcing or not.
pub fn is_enabled() -> bool {
    is_enabled_below(Path::new("/"))
}

/// The label of containers' files.
pub fn file_label() -> Option<LabelParts> {
    file_label_below(Path::new("/"))
}

fn is_enabled_below(root: &Path) -> bool {
    root.join("sys/fs/selinux/enforce").exists()
}

fn file_label_below(root: &Path) -> Option<LabelParts> {
    if !is_enabled_below(root) {
        return None;
    }
    let of_package = fs::read_to_string(root.join(CONTEXTS));
    let text = of_package.or_else(|_| {
        let policy = format!("etc/selinux/{}/contexts/lxc_contexts", policy(root));
        fs::read_to_string(root.join(policy))
    });
    selinux::file_label(&text.ok()?)
}

fn policy(root: &Path) -> String {
    let text = fs::read_to_string(root.join(CONFIG)).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.trim().strip_prefix("SELINUXTYPE="));
    let named = lines.next().map(|name| name.trim().trim_matches('"').to_owned());
    // It becomes a part of a path.
    named
        .filter(|name| !name.is_empty() && !name.contains('/'))
        .unwrap_or_else(|| POLICY.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn label_is_the_packages_then_the_named_policys_and_none_without_selinux() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        let kind = || file_label_below(root).map(|label| label.kind);
        let file = |kind: &str| format!("file = \"system_u:object_r:{kind}:s0\"\n");
        write(root, "etc/selinux/targeted/contexts/lxc_contexts", &file("targeted_t"));
        assert_eq!(kind(), None, "SELinux is off");
        write(root, "sys/fs/selinux/enforce", "0");
        assert_eq!(kind().as_deref(), Some("targeted_t"));
        write(root, "etc/selinux/config", "SELINUX=permissive\nSELINUXTYPE=mls\n");
        assert_eq!(kind(), None, "that policy has no labels");
        write(root, "etc/selinux/mls/contexts/lxc_contexts", &file("mls_t"));
        assert_eq!(kind().as_deref(), Some("mls_t"));
        write(root, CONTEXTS, &file("package_t"));
        assert_eq!(kind().as_deref(), Some("package_t"));
    }
}
