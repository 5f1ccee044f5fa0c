//! Compares running containers with the layout that this agent would use: cgroup, namespaces.
//!
//! Input: the pod, its record with the runtime specs of older containers, the layout of cgroups.
//! Output: the place of the pod's cgroup, which cgroups of it lie elsewhere, and sentences about
//! the differences. An earlier kubelet or agent may have had another `cgroupDriver`, `cgroupRoot`
//! or `cgroupsPerQOS`. Nothing is ended because of that: the pod stays, and readers and writers of
//! its cgroup use the one that it has. (The kubelet kills a pod if it does not find the cgroup in
//! the place where it would have made it.) Pure.
// k8s: pkg/kubelet/kubelet.go SyncPod

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::ids::ContainerKind;
use pintle_api_types::ids::PodUid;
use pintle_api_types::pod;
use pintle_api_types::pod::qos::{QosClass, class_of};

use super::runtime_spec::{NamespaceUse, SpecFacts, SpecNamespaces};
use super::types::{ObservedPod, RunState};
use crate::cgroup::names::{CgroupDriver, CgroupSetup};

/// The place of a pod's cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupHome {
    /// The place that this agent uses; also when the runtime reports none.
    Usual,
    /// The pod's own, in this place.
    Elsewhere(String),
    /// It has none of its own: its containers are right in this one, with others perhaps.
    Shared(String),
}

/// The cgroup of the pod's newest sandbox, from the runtime spec.
pub fn cgroup_home(layout: &CgroupSetup, pod: &Pod, observed: &ObservedPod) -> CgroupHome {
    let newest = observed.newest_sandbox().and_then(|s| observed.specs.get(s.id.as_str()));
    let Some(path) = newest.and_then(SpecFacts::parent_cgroup) else { return CgroupHome::Usual };
    if path == layout.pod(class_of(pod), &observed.uid) {
        return CgroupHome::Usual;
    }
    match is_own(path, &observed.uid) {
        true => CgroupHome::Elsewhere(path.to_owned()),
        false => CgroupHome::Shared(path.to_owned()),
    }
}

/// The parent cgroup of further containers of its sandbox: next to the running ones, where the
/// runtime's driver can express that; `None` for the usual one.
pub fn parent_of_new(layout: &CgroupSetup, home: &CgroupHome) -> Option<String> {
    match home {
        CgroupHome::Elsewhere(path) => {
            let of_systemd = layout.driver == CgroupDriver::Systemd;
            (path.ends_with(".slice") == of_systemd).then(|| path.clone())
        }
        CgroupHome::Usual | CgroupHome::Shared(_) => None,
    }
}

/// Cgroups that are this pod's alone and that no class of this layout has. Only these may be
/// removed with the pod: the name of each contains its uid.
pub fn own_elsewhere(layout: &CgroupSetup, observed: &ObservedPod) -> BTreeSet<String> {
    let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
    let usual = classes.map(|qos| layout.pod(qos, &observed.uid));
    let parents = observed.specs.values().filter_map(SpecFacts::parent_cgroup);
    let own = parents.filter(|path| is_own(path, &observed.uid));
    own.filter(|path| usual.iter().all(|u| u != path)).map(str::to_owned).collect()
}

/// Running containers with cgroups that are not children of this one, which the kernel source
/// follows.
pub fn outside<'a>(observed: &'a ObservedPod, followed: &str) -> BTreeSet<&'a str> {
    let running = observed.containers.iter().filter(|c| c.state == RunState::Running);
    let ids = running.map(|container| container.id.as_str());
    ids.filter(|id| {
        let parent = observed.specs.get(*id).and_then(SpecFacts::parent_cgroup);
        parent.is_some_and(|parent| parent != followed)
    })
    .collect()
}

/// True if the last component is the cgroup of the pod with this uid, by either driver.
fn is_own(path: &str, uid: &PodUid) -> bool {
    let leaf = path.rsplit('/').next().unwrap_or_default();
    let of = |driver| CgroupSetup { driver, ..CgroupSetup::default() }.uid_of_leaf(leaf);
    // systemd's spelling has one character for two.
    let plain = |uid: &PodUid| uid.as_str().replace('_', "-");
    of(CgroupDriver::Cgroupfs).is_some_and(|found| found == *uid)
        || of(CgroupDriver::Systemd).is_some_and(|found| plain(&found) == plain(uid))
}

/// The differences from what this agent would have made, one sentence each.
pub fn differences(layout: &CgroupSetup, pod: &Pod, observed: &ObservedPod) -> Vec<String> {
    let usual = || layout.pod(class_of(pod), &observed.uid);
    let mut all = Vec::new();
    match cgroup_home(layout, pod, observed) {
        CgroupHome::Usual => {}
        CgroupHome::Elsewhere(path) => all.push(format!(
            "its cgroup is {path}, not {}; it stays there until its sandbox is made anew, and what \
             limits all pods together does not limit it",
            usual()
        )),
        CgroupHome::Shared(path) => all.push(format!(
            "its containers are right in the cgroup {path}, not in {}; until its sandbox is made \
             anew nothing limits the pod as a whole",
            usual()
        )),
    }
    let newest = observed.newest_sandbox().and_then(|s| observed.specs.get(s.id.as_str()));
    if let Some(namespaces) = newest.and_then(|facts| facts.namespaces) {
        all.extend(of_sandbox(pod, &namespaces));
    }
    all.extend(of_containers(pod, observed));
    all
}

fn of_sandbox(pod: &Pod, made: &SpecNamespaces) -> impl Iterator<Item = String> {
    let spec = pod::spec(pod);
    let wanted = |field: Option<bool>| field.unwrap_or(false);
    let table = [
        ("hostNetwork", "network", wanted(spec.host_network), made.network),
        ("hostIPC", "IPC", wanted(spec.host_ipc), made.ipc),
        ("hostPID", "process", wanted(spec.host_pid), made.pid),
        ("hostUsers", "user", spec.host_users.unwrap_or(true), made.user),
    ];
    let differ =
        table.into_iter().filter(|(_, _, nodes, made)| *nodes != (*made == NamespaceUse::Node));
    differ.map(|(field, kind, nodes, _)| {
        let runs = if nodes { "one of its own" } else { "the node's" };
        format!("{field} is {nodes}, but it runs with {runs} {kind} namespace")
    })
}

/// A container that shares processes joins its sandbox, or the node where the sandbox does.
fn of_containers(pod: &Pod, observed: &ObservedPod) -> Vec<String> {
    let spec = pod::spec(pod);
    let shares = spec.share_process_namespace == Some(true) || spec.host_pid == Some(true);
    let running = observed.containers.iter().filter(|c| c.state == RunState::Running);
    let differs = running.filter(|container| {
        let made = observed.specs.get(container.id.as_str()).and_then(|facts| facts.namespaces);
        let kind = pod::containers::find(spec, &container.name).map(|(kind, _)| kind);
        // An ephemeral one may join another container.
        let counts = kind.is_some_and(|kind| kind != ContainerKind::Ephemeral);
        counts && made.is_some_and(|made| (made.pid != NamespaceUse::Own) != shares)
    });
    let told = |name: &str| match shares {
        true => {
            format!("container {name} has a process namespace of its own, unlike its pod's spec")
        }
        false => format!("container {name} shares a process namespace, unlike its pod's spec"),
    };
    differs.map(|container| told(&container.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::testing::{container, exited, sandbox};
    use serde_json::{Value, json};

    const USUAL: &str = "/kubepods/besteffort/podu-1";

    fn pod_with(fields: Value) -> Pod {
        let mut spec = json!({"containers": [{"name": "c", "image": "x"}]});
        for (name, value) in fields.as_object().expect("fields") {
            spec[name] = value.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u-1"}, "spec": spec}))
            .expect("a pod")
    }

    fn facts(cgroup: &str, namespaces: Option<SpecNamespaces>) -> SpecFacts {
        SpecFacts { cgroup: Some(cgroup.to_owned()), namespaces }
    }

    /// A pod in a sandbox `s` with a running container `1`, with the facts that the runtime reports
    /// of these.
    fn observed(specs: Vec<(&str, SpecFacts)>) -> ObservedPod {
        let mut observed = ObservedPod::empty("u-1".into(), "ns", "p");
        observed.sandboxes.push(sandbox());
        observed.containers.push(container("c", "1"));
        let specs = specs.into_iter().map(|(id, facts)| (id.to_owned(), facts));
        observed.specs = specs.collect();
        observed
    }

    fn layout(root: &str, driver: CgroupDriver, per_qos: bool) -> CgroupSetup {
        CgroupSetup { root: root.to_owned(), driver, per_qos, ..CgroupSetup::default() }
    }

    #[test]
    fn pods_cgroup_is_taken_from_its_sandbox_regardless_of_the_current_layout() {
        let fs = |root: &str| layout(root, CgroupDriver::Cgroupfs, true);
        let systemd = layout("/", CgroupDriver::Systemd, true);
        let elsewhere = |path: &str| CgroupHome::Elsewhere(path.to_owned());
        let shared = |path: &str| CgroupHome::Shared(path.to_owned());
        let slice = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu_1.slice";
        let scope = format!("{slice}/cri-containerd-s.scope");
        let of_root = layout("/", CgroupDriver::Cgroupfs, false);
        let table = [
            (fs("/"), "/kubepods/besteffort/podu-1/s", CgroupHome::Usual, None),
            (fs("/new"), "/kubepods/besteffort/podu-1/s", elsewhere(USUAL), Some(USUAL)),
            (
                fs("/"),
                "/old/kubepods/podu-1/s",
                elsewhere("/old/kubepods/podu-1"),
                Some("/old/kubepods/podu-1"),
            ),
            // A runtime with one driver cannot be given a path of the other.
            (fs("/"), scope.as_str(), elsewhere(slice), None),
            (systemd.clone(), scope.as_str(), CgroupHome::Usual, None),
            (systemd, "/kubepods/besteffort/podu-1/s", elsewhere(USUAL), None),
            // Made without pod cgroups: below whatever the root was.
            (fs("/"), "/s", shared("/"), None),
            (fs("/"), "/node/s", shared("/node"), None),
            (fs("/"), "/kubepods/besteffort/podu-2/s", shared("/kubepods/besteffort/podu-2"), None),
            (of_root.clone(), "/s", CgroupHome::Usual, None),
            (of_root, "/kubepods/besteffort/podu-1/s", elsewhere(USUAL), Some(USUAL)),
        ];
        for (layout, path, expected, parent) in table {
            let observed = observed(vec![("s", facts(path, None))]);
            let home = cgroup_home(&layout, &pod_with(json!({})), &observed);
            assert_eq!(home, expected, "{path} {layout:?}");
            assert_eq!(parent_of_new(&layout, &home).as_deref(), parent, "{path} {layout:?}");
            let own = own_elsewhere(&layout, &observed);
            let taken: Vec<_> = own.iter().map(String::as_str).collect();
            match &home {
                CgroupHome::Elsewhere(path) => assert_eq!(taken, [path.as_str()]),
                _ => assert!(taken.is_empty(), "nothing of others is taken away: {taken:?}"),
            }
            let said = differences(&layout, &pod_with(json!({})), &observed);
            assert_eq!(said.is_empty(), home == CgroupHome::Usual, "{said:?}");
        }
    }

    #[test]
    fn runtime_without_sandbox_facts_changes_nothing() {
        let layout = CgroupSetup::default();
        let silent = [vec![], vec![("s", SpecFacts::default())], vec![("1", facts("/x/1", None))]];
        for specs in silent {
            let observed = observed(specs);
            assert_eq!(cgroup_home(&layout, &pod_with(json!({})), &observed), CgroupHome::Usual);
            assert_eq!(differences(&layout, &pod_with(json!({})), &observed), [""; 0]);
            assert!(own_elsewhere(&layout, &observed).is_empty());
        }
    }

    #[test]
    fn newest_sandbox_decides_the_pods_cgroup_and_all_sandboxes_the_leftovers() {
        let mut observed = observed(vec![
            ("old", facts("/old/kubepods/besteffort/podu-1/old", None)),
            ("1", facts("/older/kubepods/besteffort/podu-1/1", None)),
            ("gone", facts("/old/kubepods/besteffort/podother/gone", None)),
        ]);
        let mut old = sandbox();
        (old.id, old.ready) = ("old".into(), false);
        observed.sandboxes.push(old);
        let (layout, pod) = (CgroupSetup::default(), pod_with(json!({})));
        assert_eq!(cgroup_home(&layout, &pod, &observed), CgroupHome::Usual, "made by this agent");
        let expected = ["/old/kubepods/besteffort/podu-1", "/older/kubepods/besteffort/podu-1"];
        assert_eq!(own_elsewhere(&layout, &observed), expected.map(str::to_owned).into());
    }

    #[test]
    fn running_containers_outside_the_followed_cgroup_are_found() {
        let mut observed = observed(vec![
            ("1", facts("/kubepods/besteffort/podu-1/1", None)),
            ("2", facts("/2", None)),
            ("3", facts("/3", None)),
        ]);
        observed.containers.push(container("d", "2"));
        observed.containers.push(exited("e", "3", 0));
        observed.containers.push(container("f", "4"));
        assert_eq!(outside(&observed, USUAL), ["2"].into());
        assert_eq!(outside(&observed, "/else"), ["1", "2"].into());
    }

    #[test]
    fn only_namespaces_that_differ_from_the_spec_are_reported() {
        use NamespaceUse::{Joined, Node, Own};
        let of = |network, ipc, pid, user| Some(SpecNamespaces { network, ipc, pid, user });
        let usual = of(Joined, Own, Own, Node);
        let own_pid = of(Joined, Joined, Own, Node);
        let shared_pid = of(Joined, Joined, Joined, Node);
        // (spec, sandbox, container, words of the sentences)
        let table: [(Value, _, _, &[&str]); 12] = [
            (json!({}), usual, own_pid, &[]),
            (json!({"hostNetwork": true}), of(Node, Own, Own, Node), own_pid, &[]),
            (json!({"hostPID": true}), of(Joined, Own, Node, Node), shared_pid, &[]),
            // CRI-O's containers of such a pod have no process namespace.
            (
                json!({"hostPID": true}),
                of(Joined, Own, Node, Node),
                of(Joined, Joined, Node, Node),
                &[],
            ),
            (json!({"hostIPC": true}), of(Joined, Node, Own, Node), own_pid, &[]),
            (json!({"hostUsers": false}), of(Joined, Own, Own, Own), own_pid, &[]),
            (json!({"shareProcessNamespace": true}), usual, shared_pid, &[]),
            (
                json!({}),
                of(Node, Node, Own, Own),
                own_pid,
                &["hostNetwork is false", "hostIPC is false", "hostUsers is true"],
            ),
            (
                json!({"hostNetwork": true}),
                usual,
                own_pid,
                &["hostNetwork is true, but it runs with one of its own network"],
            ),
            (json!({}), usual, shared_pid, &["container c shares a process namespace"]),
            (
                json!({"shareProcessNamespace": true}),
                usual,
                own_pid,
                &["container c has a process namespace of its own"],
            ),
            (json!({"hostNetwork": true}), None, None, &[]),
        ];
        for (spec, of_sandbox, of_container, words) in table {
            let observed = observed(vec![
                ("s", facts("/kubepods/besteffort/podu-1/s", of_sandbox)),
                ("1", facts("/kubepods/besteffort/podu-1/1", of_container)),
            ]);
            let said = differences(&CgroupSetup::default(), &pod_with(spec.clone()), &observed);
            assert_eq!(said.len(), words.len(), "{spec} {said:?}");
            for (said, words) in said.iter().zip(words) {
                assert!(said.starts_with(words), "{said}");
            }
        }
    }
}
