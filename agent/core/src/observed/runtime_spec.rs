//! The facts of a verbose status answer: the OCI runtime spec of a sandbox or container, and its
//! first process.
//!
//! Input: the `info` of `PodSandboxStatus` and `ContainerStatus` with `verbose`, JSON that
//! containerd and CRI-O make alike and that no interface fixes. Output: `VerboseStatus`, in which
//! anything may be missing: an unreadable value is unknown, and never an error. Only the needed
//! fields of the spec are read, because a newer runtime may spell others in a new way; the
//! namespaces are those of the crate `oci-spec`. Bounds: `INFO_BYTES_MAX`. Pure.

use std::collections::BTreeMap;

use oci_spec::runtime::{LinuxNamespace, LinuxNamespaceType};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest answer that is parsed; one with a large seccomp profile has some 60 KiB.
pub const INFO_BYTES_MAX: usize = 1024 * 1024;
/// The kernel's longest path.
const PATH_BYTES_MAX: usize = 4096;
/// The kernel knows eight kinds.
const NAMESPACES_MAX: usize = 64;

/// The content of a verbose answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerboseStatus {
    /// The first process, in the node's namespace; 0 once it has ended.
    pub pid: Option<u32>,
    /// The runtime spec that it was made with.
    pub spec: Option<SpecFacts>,
}

/// The parts of a runtime spec that the agent uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecFacts {
    /// Its cgroup as a path from the top of the hierarchy; `None` for one that only the runtime can
    /// resolve.
    pub cgroup: Option<String>,
    /// Its namespaces, when the spec lists them.
    pub namespaces: Option<SpecNamespaces>,
}

/// Namespaces of a sandbox or container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields are the kinds
pub struct SpecNamespaces {
    pub network: NamespaceUse,
    pub ipc: NamespaceUse,
    pub pid: NamespaceUse,
    pub user: NamespaceUse,
}

/// Which namespace of a kind it is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceUse {
    /// The one that the runtime is in itself: the spec names none.
    #[default]
    Node,
    /// One made for it.
    Own,
    /// One that a path names, such as its sandbox's.
    Joined,
}

#[derive(Deserialize)]
struct RuntimeSpecFields {
    #[serde(default)]
    pid: Value,
}

#[derive(Deserialize)]
struct ToldSpec {
    #[serde(rename = "runtimeSpec")]
    spec: OuterSpec,
}

#[derive(Deserialize)]
struct OuterSpec {
    linux: LinuxSpec,
}

#[derive(Deserialize)]
struct LinuxSpec {
    #[serde(default, rename = "cgroupsPath")]
    cgroups_path: Value,
    #[serde(default)]
    namespaces: Value,
}

impl VerboseStatus {
    /// Reads the known parts of the answer.
    pub fn read(info: &BTreeMap<String, String>) -> Self {
        let Some(text) = info.get("info").filter(|text| text.len() <= INFO_BYTES_MAX) else {
            return Self::default();
        };
        let told = serde_json::from_str::<RuntimeSpecFields>(text).ok();
        let pid = told.and_then(|told| u32::try_from(told.pid.as_u64()?).ok());
        let spec = serde_json::from_str::<ToldSpec>(text).ok();
        Self { pid, spec: spec.map(|told| SpecFacts::of(&told.spec.linux)) }
    }
}

impl SpecFacts {
    fn of(linux: &LinuxSpec) -> Self {
        let cgroup = linux.cgroups_path.as_str().and_then(absolute);
        let listed = linux.namespaces.as_array();
        Self { cgroup, namespaces: listed.map(|listed| SpecNamespaces::of(listed)) }
    }

    /// The cgroup above its own: the pod's, as a rule.
    pub fn parent_cgroup(&self) -> Option<&str> {
        match self.cgroup.as_deref()?.rsplit_once('/')? {
            ("", _) => Some("/"),
            (parent, _) => Some(parent),
        }
    }
}

impl SpecNamespaces {
    fn of(listed: &[Value]) -> Self {
        let mut all = Self::default();
        for namespace in listed.iter().take(NAMESPACES_MAX) {
            // An unknown kind says nothing about the others.
            let Ok(namespace) = LinuxNamespace::deserialize(namespace) else { continue };
            let path = namespace.path().as_ref().filter(|path| !path.as_os_str().is_empty());
            let used = if path.is_some() { NamespaceUse::Joined } else { NamespaceUse::Own };
            match namespace.typ() {
                LinuxNamespaceType::Network => all.network = used,
                LinuxNamespaceType::Ipc => all.ipc = used,
                LinuxNamespaceType::Pid => all.pid = used,
                LinuxNamespaceType::User => all.user = used,
                _ => {}
            }
        }
        all
    }
}

/// `/a/b/ID` of the cgroupfs driver as it is, `a-b.slice:prefix:ID` of the systemd driver as
/// systemd nests it. A path that is not absolute lies below the runtime's own cgroup, and an empty
/// slice is the default of its user's systemd: the agent cannot know which.
// k8s: vendor/github.com/opencontainers/cgroups/utils.go CleanPath, systemd/common.go ExpandSlice
fn absolute(path: &str) -> Option<String> {
    if path.len() > PATH_BYTES_MAX || path.contains('\0') {
        return None;
    }
    if let Some(below) = path.strip_prefix('/') {
        let parts = || below.split('/').filter(|part| !matches!(*part, "" | "."));
        let is_plain = parts().next().is_some() && parts().all(|part| part != "..");
        return is_plain.then(|| parts().map(|part| format!("/{part}")).collect());
    }
    let mut parts = path.split(':');
    let (slice, prefix, name) = (parts.next()?, parts.next()?, parts.next()?);
    let is_plain = |part: &str| !part.contains('/') && !matches!(part, "." | "..");
    if parts.next().is_some() || name.is_empty() || ![slice, prefix, name].into_iter().all(is_plain)
    {
        return None;
    }
    let above = slices(slice)?;
    match name.ends_with(".slice") {
        true => Some(format!("{above}/{name}")),
        false => Some(format!("{above}/{prefix}-{name}.scope")),
    }
}

/// `a-b.slice` as `/a.slice/a-b.slice`, the top as nothing.
fn slices(slice: &str) -> Option<String> {
    let name = slice.strip_suffix(".slice")?;
    if name == "-" {
        return Some(String::new());
    }
    let (mut path, mut prefix) = (String::new(), String::new());
    for part in name.split('-') {
        if part.is_empty() {
            return None;
        }
        prefix.push_str(part);
        path.push_str(&format!("/{prefix}.slice"));
        prefix.push('-');
    }
    (path.len() <= PATH_BYTES_MAX).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> VerboseStatus {
        VerboseStatus::read(&BTreeMap::from([("info".to_owned(), value.to_string())]))
    }

    fn cgroup(path: &str) -> Option<String> {
        let linux = json!({"cgroupsPath": path});
        read(&json!({"runtimeSpec": {"linux": linux}})).spec.expect("a spec").cgroup
    }

    #[test]
    fn a_cgroup_is_found_by_either_drivers_spelling() {
        let table = [
            ("/kubepods/burstable/podu/c1", Some("/kubepods/burstable/podu/c1")),
            ("/kubepods/besteffort/podu/crio-c1", Some("/kubepods/besteffort/podu/crio-c1")),
            ("//a/./b//c/", Some("/a/b/c")),
            ("/c1", Some("/c1")),
            // A colon within a path is only a letter.
            ("/a:b:c/d", Some("/a:b:c/d")),
            (
                "kubepods-burstable-podu_1.slice:cri-containerd:c1",
                Some(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice/\
                     cri-containerd-c1.scope",
                ),
            ),
            (
                "kubepods-podu.slice:crio:c1",
                Some("/kubepods.slice/kubepods-podu.slice/crio-c1.scope"),
            ),
            ("-.slice:cri-containerd:c1", Some("/cri-containerd-c1.scope")),
            ("a.slice:x:b.slice", Some("/a.slice/b.slice")),
            // Only the runtime knows: the default slice of root or of a user, its own cgroup.
            (":cri-containerd:c1", None),
            ("user.slice:", None),
            ("kubepods/podu/c1", None),
            ("", None),
            ("/", None),
            // Nonsense.
            ("/a/../../b", None),
            ("podu:cri-containerd:c1", None),
            ("a..slice:p:c", Some("/a..slice/p-c.scope")),
            ("a--b.slice:p:c", None),
            (".slice:p:c", None),
            ("a.slice:p:", None),
            ("a.slice:p:c:d", None),
            ("a/b.slice:p:c", None),
            ("a.slice:p:../c", None),
            ("/a\0b", None),
        ];
        for (path, expected) in table {
            assert_eq!(cgroup(path).as_deref(), expected, "{path:?}");
        }
        assert_eq!(cgroup(&format!("/{}", "x".repeat(PATH_BYTES_MAX))), None);
    }

    #[test]
    fn the_cgroup_above_is_the_pods() {
        for (path, above) in [("/a/b/c", "/a/b"), ("/c", "/")] {
            let facts = SpecFacts { cgroup: Some(path.to_owned()), namespaces: None };
            assert_eq!(facts.parent_cgroup(), Some(above));
        }
        assert_eq!(SpecFacts::default().parent_cgroup(), None);
    }

    #[test]
    fn namespaces_are_the_nodes_own_ones_or_joined() {
        let listed = json!([
            {"type": "pid"}, {"type": "ipc", "path": "/proc/7/ns/ipc"}, {"type": "mount"},
            {"type": "network", "path": ""}, {"type": "of tomorrow"}, {"kind": "user"}, 7, null]);
        let spec = read(&json!({"runtimeSpec": {"linux": {"namespaces": listed}}})).spec;
        let namespaces = spec.and_then(|spec| spec.namespaces).expect("a list");
        let expected = SpecNamespaces {
            network: NamespaceUse::Own,
            ipc: NamespaceUse::Joined,
            pid: NamespaceUse::Own,
            user: NamespaceUse::Node,
        };
        assert_eq!(namespaces, expected);
    }

    #[test]
    fn containerd_and_cri_o_are_read_alike() {
        let containerd = json!({
            "sandboxID": "s", "pid": 77, "removing": false, "snapshotter": "overlayfs",
            "config": {"metadata": {"name": "c"}},
            "runtimeSpec": {"ociVersion": "1.2.0", "process": {"user": {"uid": 0}},
                "linux": {"cgroupsPath": "/kubepods/podu/c1", "resources": {"unified": 1},
                    "seccomp": {"architectures": ["SCMP_ARCH_OF_TOMORROW"]},
                    "namespaces": [{"type": "pid"}]}}});
        let cri_o = json!({
            "sandboxID": "s", "pid": 77, "privileged": false,
            "runtimeSpec": {"ociVersion": "1.0.2-dev", "annotations": {"io.kubernetes.cri-o.x": ""},
                "linux": {"cgroupsPath": "/kubepods/podu/c1", "namespaces": [{"type": "pid"}]}}});
        assert_eq!(read(&containerd), read(&cri_o));
        let found = read(&containerd);
        assert_eq!(found.pid, Some(77));
        let spec = found.spec.expect("a spec");
        assert_eq!(spec.cgroup.as_deref(), Some("/kubepods/podu/c1"));
        assert_eq!(spec.namespaces.expect("listed").pid, NamespaceUse::Own);
    }

    #[test]
    fn invalid_verbose_status_yields_no_value() {
        let nothing = VerboseStatus::default();
        assert_eq!(VerboseStatus::read(&BTreeMap::new()), nothing);
        for text in ["", "x", "[]", "7", "{}", "null", "{\"pid\": -1}", "{\"pid\": 5e9}"] {
            let info = BTreeMap::from([("info".to_owned(), text.to_owned())]);
            assert_eq!(VerboseStatus::read(&info), nothing, "{text}");
        }
        // The one is known without the other.
        for spec in [json!(null), json!(7), json!({}), json!({"linux": 7})] {
            let found = read(&json!({"pid": 7, "runtimeSpec": spec}));
            assert_eq!(found, VerboseStatus { pid: Some(7), spec: None }, "{spec}");
        }
        let spec = json!({"linux": {"cgroupsPath": {}, "namespaces": "pid"}});
        let found = read(&json!({"pid": "7", "runtimeSpec": spec}));
        assert_eq!(found, VerboseStatus { pid: None, spec: Some(SpecFacts::default()) });
        let long = json!({"pid": 7, "x": "x".repeat(INFO_BYTES_MAX)});
        assert_eq!(read(&long), nothing);
    }
}
