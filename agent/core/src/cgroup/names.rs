//! Names of the cgroups of pods, for the cgroupfs and the systemd driver.
//!
//! Input: the configured root, the driver, a pod's class and uid. Output: a path that begins with
//! `/`, to be joined to a hierarchy's mount point and sent to the runtime as the cgroup parent.
//! Names must be those of the kubelet letter by letter, else neither agent recognises the other's
//! pods. Pure; nothing is created here.

use serde::{Deserialize, Serialize};

use pintle_api_types::ids::PodUid;
use pintle_api_types::pod::qos::QosClass;

/// Which component writes the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Directories made directly.
    #[default]
    Cgroupfs,
    /// Slices of systemd.
    Systemd,
}

/// Version of the hierarchy on this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CgroupVersion {
    /// One tree per controller.
    V1,
    /// The unified tree.
    #[default]
    V2,
}

/// How this host's cgroups are laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupSetup {
    /// `cgroupRoot`; `/` or empty for the top.
    pub root: String,
    /// The driver that the runtime uses too.
    pub driver: CgroupDriver,
    /// v1 or v2.
    pub version: CgroupVersion,
    /// `cgroupsPerQOS`: without it pods are in the root cgroup.
    pub per_qos: bool,
}

impl Default for CgroupSetup {
    fn default() -> Self {
        Self {
            root: "/".to_owned(),
            driver: CgroupDriver::default(),
            version: CgroupVersion::default(),
            per_qos: true,
        }
    }
}

impl CgroupSetup {
    /// The cgroup of all pods, `/kubepods`.
    // k8s: pkg/kubelet/cm/helpers_linux.go NodeAllocatableRoot
    pub fn kubepods(&self) -> String {
        self.path(&self.kubepods_parts())
    }

    /// The cgroup of a class; that of Guaranteed is `kubepods` itself.
    // k8s: pkg/kubelet/cm/qos_container_manager_linux.go Start
    pub fn qos(&self, qos: QosClass) -> String {
        self.path(&self.qos_parts(qos))
    }

    /// The cgroup of a pod: the parent that the runtime is given.
    // k8s: pkg/kubelet/cm/pod_container_manager_linux.go GetPodContainerName
    pub fn pod(&self, qos: QosClass, uid: &PodUid) -> String {
        if !self.per_qos {
            return self.path(&self.root_parts());
        }
        let leaf = pod_cgroup_leaf(uid);
        let mut parts = self.qos_parts(qos);
        parts.push(&leaf);
        self.path(&parts)
    }

    /// A cgroup of the host by the name that the configuration gives it.
    // k8s: pkg/kubelet/cm/cgroup_manager_linux.go ParseSystemdToCgroupName
    pub fn of_host(&self, name: &str) -> String {
        match self.driver {
            CgroupDriver::Cgroupfs => format!("/{}", name.trim_matches('/')),
            CgroupDriver::Systemd => {
                let leaf = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
                let leaf = leaf.strip_suffix(".slice").unwrap_or(leaf);
                systemd_path(&leaf.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>())
            }
        }
    }

    /// A path of this layout as the host crate takes it: below the configured root, such as
    /// `kubepods/burstable/pod<uid>`. Slices carry the root in their names and have none above.
    pub fn below_root<'a>(&self, path: &'a str) -> &'a str {
        let root = match self.driver {
            CgroupDriver::Cgroupfs => self.root.trim_end_matches('/'),
            CgroupDriver::Systemd => "",
        };
        path.strip_prefix(root).unwrap_or(path).trim_start_matches('/')
    }

    /// The uid of the pod with a cgroup of this last path component; `None` for other cgroups.
    // k8s: pkg/kubelet/cm/pod_container_manager_linux.go GetAllPodsFromCgroups
    pub fn uid_of_leaf(&self, leaf: &str) -> Option<PodUid> {
        let name = match self.driver {
            CgroupDriver::Cgroupfs => leaf.to_owned(),
            CgroupDriver::Systemd => {
                leaf.strip_suffix(".slice")?.rsplit('-').next()?.replace('_', "-")
            }
        };
        let uid = name.strip_prefix("pod")?;
        PodUid::parse(uid)
    }

    fn root_parts(&self) -> Vec<&str> {
        self.root.split('/').filter(|part| !part.is_empty()).collect()
    }

    fn kubepods_parts(&self) -> Vec<&str> {
        let mut parts = self.root_parts();
        if self.per_qos {
            parts.push("kubepods");
        }
        parts
    }

    fn qos_parts(&self, qos: QosClass) -> Vec<&str> {
        let mut parts = self.kubepods_parts();
        match qos {
            QosClass::Guaranteed => {}
            QosClass::Burstable => parts.push("burstable"),
            QosClass::BestEffort => parts.push("besteffort"),
        }
        parts
    }

    fn path(&self, parts: &[&str]) -> String {
        match self.driver {
            CgroupDriver::Cgroupfs => format!("/{}", parts.join("/")),
            CgroupDriver::Systemd => systemd_path(parts),
        }
    }
}

/// Last component of a pod's cgroup before the driver's spelling.
fn pod_cgroup_leaf(uid: &PodUid) -> String {
    format!("pod{uid}")
}

/// `[a, b-c]` as systemd nests it: `/a.slice/a-b_c.slice`.
// k8s: pkg/kubelet/cm/cgroup_manager_linux.go ToSystemd
fn systemd_path(parts: &[&str]) -> String {
    let mut path = String::new();
    let mut slice = String::new();
    for part in parts {
        if !slice.is_empty() {
            slice.push('-');
        }
        slice.push_str(&part.replace('-', "_"));
        path.push('/');
        path.push_str(&slice);
        path.push_str(".slice");
    }
    if path.is_empty() { "/".to_owned() } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn setup(root: &str, driver: CgroupDriver) -> CgroupSetup {
        CgroupSetup { root: root.to_owned(), driver, ..CgroupSetup::default() }
    }

    #[test]
    fn pod_cgroups_are_below_their_qos_class_with_either_driver() {
        let uid = PodUid::from("1234-abcd");
        let fs = setup("/", CgroupDriver::Cgroupfs);
        let systemd = setup("/", CgroupDriver::Systemd);
        let table = [
            (
                QosClass::Guaranteed,
                "/kubepods/pod1234-abcd",
                "/kubepods.slice/kubepods-pod1234_abcd.slice",
            ),
            (
                QosClass::Burstable,
                "/kubepods/burstable/pod1234-abcd",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd.slice",
            ),
            (
                QosClass::BestEffort,
                "/kubepods/besteffort/pod1234-abcd",
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1234_abcd.slice",
            ),
        ];
        for (qos, with_fs, with_systemd) in table {
            assert_eq!(fs.pod(qos, &uid), with_fs);
            assert_eq!(systemd.pod(qos, &uid), with_systemd);
        }
        assert_eq!(fs.kubepods(), "/kubepods");
        assert_eq!(systemd.qos(QosClass::Burstable), "/kubepods.slice/kubepods-burstable.slice");
    }

    #[test]
    fn a_configured_root_stands_in_front() {
        let uid = PodUid::from("u");
        let fs = setup("/test/root", CgroupDriver::Cgroupfs);
        assert_eq!(fs.pod(QosClass::BestEffort, &uid), "/test/root/kubepods/besteffort/podu");
        let below = |setup: &CgroupSetup| {
            setup.below_root(&setup.pod(QosClass::BestEffort, &uid)).to_owned()
        };
        assert_eq!(below(&fs), "kubepods/besteffort/podu");
        let systemd = setup("/a-b", CgroupDriver::Systemd);
        assert_eq!(systemd.kubepods(), "/a_b.slice/a_b-kubepods.slice");
        let leaf = "a_b-kubepods-besteffort-podu.slice";
        let above = "a_b.slice/a_b-kubepods.slice/a_b-kubepods-besteffort.slice";
        assert_eq!(below(&systemd), format!("{above}/{leaf}"));
    }

    #[test]
    fn cgroups_of_the_host_are_named_by_path_or_by_slice() {
        let fs = setup("/", CgroupDriver::Cgroupfs);
        let systemd = setup("/", CgroupDriver::Systemd);
        for (name, with_fs, with_systemd) in [
            ("/system.slice", "/system.slice", "/system.slice"),
            ("system", "/system", "/system.slice"),
            ("/a/b", "/a/b", "/b.slice"),
            ("a.slice/a-b_c.slice/", "/a.slice/a-b_c.slice", "/a.slice/a-b_c.slice"),
        ] {
            assert_eq!(fs.of_host(name), with_fs);
            assert_eq!(systemd.of_host(name), with_systemd);
        }
    }

    #[test]
    fn without_qos_cgroups_pods_live_in_the_root() {
        let mut flat = setup("/", CgroupDriver::Cgroupfs);
        flat.per_qos = false;
        assert_eq!(flat.pod(QosClass::Burstable, &PodUid::from("u")), "/");
        flat.driver = CgroupDriver::Systemd;
        assert_eq!(flat.pod(QosClass::Burstable, &PodUid::from("u")), "/");
    }

    #[test]
    fn cgroups_of_classes_and_containers_are_not_taken_for_pods() {
        let fs = setup("/", CgroupDriver::Cgroupfs);
        for other in ["kubepods", "burstable", "besteffort", "pod", "0123abcd"] {
            assert_eq!(fs.uid_of_leaf(other), None, "{other}");
        }
        let systemd = setup("/", CgroupDriver::Systemd);
        for other in ["kubepods.slice", "kubepods-burstable.slice", "cri-containerd-01.scope"] {
            assert_eq!(systemd.uid_of_leaf(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn a_pods_uid_is_read_back_from_its_cgroup(uid in "[0-9a-f]{8}(-[0-9a-f]{4}){0,4}") {
            for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
                for qos in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
                    let setup = setup("/", driver);
                    let path = setup.pod(qos, &PodUid::from(uid.as_str()));
                    let leaf = path.rsplit('/').next().unwrap_or_default();
                    prop_assert_eq!(setup.uid_of_leaf(leaf), Some(PodUid::from(uid.as_str())));
                }
            }
        }
    }
}
