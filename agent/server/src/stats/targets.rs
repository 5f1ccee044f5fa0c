//! The cgroups of the statistics: node, pods, containers. Pure.
//!
//! Input: a snapshot and the layout of this host's cgroups. Output: one `CgroupTarget` each, with
//! the names that the runtimes may have given its cgroup. Bounds: `TARGETS_MAX`.

use pintle_agent_core::cgroup::names::CgroupSetup;
use pintle_agent_core::observed::adopted::cgroup_home;
use pintle_agent_core::observed::{CgroupHome, ObservedPod, RunState};
use pintle_agent_core::types::PodUid;
use pintle_agent_core::view::Snapshot;
use pintle_api_types::pod::qos::{QosClass, class_of};

/// Cgroups of one sweep.
const TARGETS_MAX: usize = 8192;

/// The owner of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum CgroupOwner {
    /// The whole node.
    Root,
    /// All pods.
    Pods,
    /// Processes of the host, as the summary calls them: `kubelet`, `runtime`, `misc`.
    System(&'static str),
    /// All pods of a class.
    Class(&'static str),
    /// One pod.
    Pod(PodUid),
    /// One container or sandbox.
    Container(String),
}

/// A cgroup to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupTarget {
    pub(super) key: CgroupOwner,
    /// Paths that it may have; the first one that exists counts.
    pub(super) paths: Vec<String>,
    /// The pod in whose network namespace its processes are.
    pub(super) network_of: Option<PodUid>,
}

/// Everything there is to be read.
pub(super) fn targets(snapshot: &Snapshot, setup: &CgroupSetup) -> Vec<CgroupTarget> {
    let one = |key, path| CgroupTarget { key, paths: vec![path], network_of: None };
    let mut targets =
        vec![one(CgroupOwner::Root, "/".to_owned()), one(CgroupOwner::Pods, setup.kubepods())];
    if setup.per_qos {
        targets.push(one(CgroupOwner::Class("burstable"), setup.qos(QosClass::Burstable)));
        targets.push(one(CgroupOwner::Class("besteffort"), setup.qos(QosClass::BestEffort)));
    }
    for (uid, view) in &snapshot.pods {
        if !runs(&view.observed) {
            continue;
        }
        // A pod of an agent or kubelet before may live elsewhere.
        let usual = setup.pod(class_of(&view.pod), uid);
        let (path, has_own) = match cgroup_home(setup, &view.pod, &view.observed) {
            CgroupHome::Usual => (usual.clone(), setup.per_qos),
            CgroupHome::Elsewhere(path) => (path, true),
            CgroupHome::Shared(path) => (path, false),
        };
        if has_own {
            targets.push(one(CgroupOwner::Pod(uid.clone()), path.clone()));
        }
        let paths = |id: &str| {
            let told = view.observed.specs.get(id).and_then(|facts| facts.cgroup.clone());
            let mut all: Vec<String> = told.into_iter().chain(below(&path, id)).collect();
            // A container that was started since may be where it would be without all that.
            if path != usual {
                all.extend(below(&usual, id));
            }
            all
        };
        let sandboxes = view.observed.sandboxes.iter().filter(|sandbox| sandbox.ready);
        for sandbox in sandboxes {
            targets.push(CgroupTarget {
                key: CgroupOwner::Container(sandbox.id.as_str().to_owned()),
                paths: paths(sandbox.id.as_str()),
                network_of: (!sandbox.host_network).then(|| uid.clone()),
            });
        }
        let running = view.observed.containers.iter().filter(|c| c.state == RunState::Running);
        targets.extend(running.map(|container| CgroupTarget {
            key: CgroupOwner::Container(container.id.as_str().to_owned()),
            paths: paths(container.id.as_str()),
            network_of: None,
        }));
    }
    targets.truncate(TARGETS_MAX);
    targets
}

/// The cgroups of the host's processes: as configured, the agent's else where it is; `own` is the
/// text of `/proc/self/cgroup`.
// k8s: pkg/kubelet/server/stats/summary_sys_containers.go GetSystemContainersStats
pub(super) fn system(kubelet: &str, runtime: &str, misc: &str, own: &str) -> Vec<CgroupTarget> {
    let given = |path: &str| {
        Some(path).filter(|path| !path.is_empty()).map(|p| format!("/{}", p.trim_matches('/')))
    };
    let all = [
        ("kubelet", given(kubelet).or_else(|| own_cgroup(own))),
        ("runtime", given(runtime)),
        ("misc", given(misc)),
    ];
    let target = |(name, path): (_, Option<String>)| {
        Some(CgroupTarget { key: CgroupOwner::System(name), paths: vec![path?], network_of: None })
    };
    all.into_iter().filter_map(target).collect()
}

/// The cgroup of this process; `None` on v1 when the counted controllers have different ones.
// k8s: pkg/kubelet/cm/container_manager_linux.go getContainer
fn own_cgroup(text: &str) -> Option<String> {
    let fields = || text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let of = |controller: &str| {
        let mut found = fields().filter(|(names, _)| names.split(',').any(|n| n == controller));
        found.next().map(|(_, path)| path.to_owned())
    };
    let Some(cpu) = of("cpu") else { return of("") };
    if of("memory").as_ref() != Some(&cpu) {
        return None;
    }
    of("name=systemd").or(Some(cpu))
}

/// Something of the pod has a cgroup.
pub(super) fn runs(observed: &ObservedPod) -> bool {
    observed.sandboxes.iter().any(|sandbox| sandbox.ready) || observed.any_running()
}

/// The names that containerd and CRI-O give a container's cgroup, with either driver.
fn below(pod: &str, id: &str) -> Vec<String> {
    let pod = pod.trim_end_matches('/');
    let names = [
        id.to_owned(),
        format!("cri-containerd-{id}.scope"),
        format!("crio-{id}.scope"),
        format!("crio-{id}"),
    ];
    names.iter().map(|name| format!("{pod}/{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::observed::SpecFacts;
    use pintle_agent_core::testing::{snapshot_of, view};
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn node_classes_pods_sandboxes_and_running_containers_are_targets() {
        let mut pod = view(json!({"metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "x"}]}}));
        let mut observed = (*pod.observed).clone();
        observed.sandboxes.push(pintle_agent_core::status::testing::sandbox());
        observed.containers.push(pintle_agent_core::status::testing::container("c", "1"));
        observed.containers.push(pintle_agent_core::status::testing::exited("c", "0", 1));
        pod.observed = Arc::new(observed);
        let idle = view(json!({"metadata": {"name": "i", "uid": "i"}}));
        let found = targets(&snapshot_of(vec![pod, idle]), &CgroupSetup::default());
        let keys: Vec<CgroupOwner> = found.iter().map(|target| target.key.clone()).collect();
        let container = |id: &str| CgroupOwner::Container(id.to_owned());
        let expected = [
            CgroupOwner::Root,
            CgroupOwner::Pods,
            CgroupOwner::Class("burstable"),
            CgroupOwner::Class("besteffort"),
            CgroupOwner::Pod("u".into()),
            container("s"),
            container("1"),
        ];
        assert_eq!(keys, expected);
        assert_eq!(found[4].paths, ["/kubepods/besteffort/podu"]);
        assert_eq!(found[5].network_of, Some("u".into()));
        assert_eq!(found[6].paths[0], "/kubepods/besteffort/podu/1");
        assert_eq!(found[6].paths[1], "/kubepods/besteffort/podu/cri-containerd-1.scope");
    }

    #[test]
    fn system_cgroups_are_the_configured_ones_and_the_kubelet_default_is_the_agents_own() {
        let found = |kubelet, runtime, misc, own| {
            let found = system(kubelet, runtime, misc, own).into_iter();
            found.map(|target| (target.key, target.paths[0].clone())).collect::<Vec<_>>()
        };
        let wanted = |name, path: &str| (CgroupOwner::System(name), path.to_owned());
        let v2 = "0::/system.slice/kubelet.service\n";
        let expected = [
            wanted("kubelet", "/system.slice/kubelet.service"),
            wanted("runtime", "/system.slice/containerd.service"),
        ];
        assert_eq!(found("", "/system.slice/containerd.service", "", v2), expected);
        let expected = [wanted("kubelet", "/kubelet.slice"), wanted("misc", "/system")];
        assert_eq!(found("kubelet.slice", "", "/system", v2), expected);
        let v1 = "4:memory:/a\n3:cpu,cpuacct:/a\n1:name=systemd:/a/b\n0::/\n";
        assert_eq!(own_cgroup(v1).as_deref(), Some("/a/b"));
        assert_eq!(own_cgroup("4:memory:/a\n3:cpu:/a\n").as_deref(), Some("/a"));
        assert_eq!(own_cgroup("4:memory:/b\n3:cpu:/a\n"), None, "not one place");
    }

    #[test]
    fn cgroups_of_pods_with_another_layout_are_read_at_the_paths_of_the_runtime() {
        let of = |told: &[(&str, &str)]| {
            let mut pod = view(json!({"metadata": {"name": "p", "uid": "u"},
                "spec": {"containers": [{"name": "c", "image": "x"}]}}));
            let mut observed = (*pod.observed).clone();
            observed.sandboxes.push(pintle_agent_core::status::testing::sandbox());
            observed.containers.push(pintle_agent_core::status::testing::container("c", "1"));
            let facts = |path: &str| SpecFacts { cgroup: Some(path.to_owned()), namespaces: None };
            let told = told.iter().map(|(id, path)| ((*id).to_owned(), facts(path)));
            observed.specs = told.collect();
            pod.observed = Arc::new(observed);
            let found = targets(&snapshot_of(vec![pod]), &CgroupSetup::default());
            let of =
                |key: &CgroupOwner| found.iter().find(|t| t.key == *key).map(|t| t.paths.clone());
            (
                of(&CgroupOwner::Pod("u".into())),
                of(&CgroupOwner::Container("1".to_owned())).expect("it runs"),
            )
        };
        let (pod, container) = of(&[("s", "/old/kubepods/podu/s"), ("1", "/old/kubepods/podu/1")]);
        assert_eq!(pod.as_deref(), Some(&["/old/kubepods/podu".to_owned()][..]));
        assert_eq!(container[0], "/old/kubepods/podu/1");
        // The container was started by this agent: beside its sandbox, or where it usually would be.
        let (_, container) = of(&[("s", "/old/kubepods/podu/s")]);
        assert_eq!(container[0], "/old/kubepods/podu/1");
        assert!(container.contains(&"/kubepods/besteffort/podu/1".to_owned()), "{container:?}");
        // Without a cgroup of its own the pod's figures are not those of all others.
        let (pod, container) = of(&[("s", "/s"), ("1", "/1")]);
        assert_eq!((pod, container[0].as_str()), (None, "/1"));
    }
}
