//! Cases missing in recordings: pod-level resources, swap, cgroup v2, overhead, users, images.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod};
use pintle_cri_v1 as v1;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::cgroup::formulas::{self, LimitPolicy};
use crate::cgroup::names::{CgroupSetup, CgroupVersion};
use crate::env::variables::NoSources;
use crate::request::dns::NodeDns;
use crate::request::security::{IdRange, ImageUser, SecurityPolicy};
use crate::types::NodeFacts;
use crate::volume::{Claims, PodVolumes};

const GIB: u64 = 1 << 30;

fn node(version: CgroupVersion) -> NodeContext {
    NodeContext {
        facts: NodeFacts {
            host_ips: vec!["192.0.2.2".parse().expect("an address")],
            memory_capacity_bytes: 8 * GIB,
            hugepage_sizes: vec![2 << 20, 1 << 30],
            ..NodeFacts::default()
        },
        root_dir: PathBuf::from("/root"),
        pod_logs_dir: "/logs".to_owned(),
        dns: NodeDns { cluster_domain: "cluster.local".to_owned(), ..NodeDns::default() },
        cgroup: CgroupSetup { version, ..CgroupSetup::default() },
        limits: LimitPolicy {
            enforce_cpu_quota: true,
            cpu_period_us: formulas::PERIOD_DEFAULT_US,
            pids_max: -1,
            hugepage_sizes: vec![2 << 20, 1 << 30],
            memory_qos: None,
        },
        swap: SwapPolicy { controller: true, limited: true, capacity_bytes: 4 * GIB },
        security: SecurityPolicy::default(),
        single_process_oom_kill: Some(false),
        selinux: false,
        gates: Gates::default(),
    }
}

fn pod(spec: Value) -> Pod {
    let mut spec = spec;
    spec["enableServiceLinks"] = json!(true);
    let meta = json!({"name": "p", "namespace": "ns", "uid": "u"});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod")
}

fn pod_context<'a>(
    node: &'a NodeContext,
    handler: &'a RuntimeHandler,
    pod: &'a Pod,
) -> PodContext<'a> {
    PodContext {
        node,
        pod,
        attempt: 0,
        handler,
        users: Some(IdRange { host_id: 65536, length: 65536 }),
        extra_groups: &[],
        pod_ips: &[],
        exclusive_cpus: false,
    }
}

/// The configuration of container `name`, with its volumes planned.
fn config(node: &NodeContext, pod: &Pod, name: &str, target: Option<&str>) -> v1::ContainerConfig {
    let spec = pintle_api_types::pod::spec(pod);
    let ephemeral = spec.ephemeral_containers.iter().flatten().find(|c| c.name == name);
    let container: Container = ephemeral
        .map(pintle_api_types::pod::containers::from_ephemeral)
        .or_else(|| pintle_api_types::pod::containers::find(spec, name).map(|(_, c)| c.clone()))
        .expect("a container of the pod");
    let handler = RuntimeHandler { name: "kata".to_owned(), ..RuntimeHandler::default() };
    let ctx = pod_context(node, &handler, pod);
    let images = BTreeMap::from([("img:1".to_owned(), "sha256:1".to_owned())]);
    let mounts = PodVolumes::plan(Path::new("/root"), &node.facts, pod, &Claims::default());
    let mounts = mounts.mounts(&container, &BTreeMap::new(), false).expect("mounts");
    let of_container = ContainerContext {
        container: &container,
        restart_count: 2,
        image_ref: "sha256:0",
        image_user: &ImageUser::Id(0),
        target_id: target,
        mounts: &mounts,
        images: &images,
        termination_file: "0123abcd",
        sources: &NoSources,
        devices: &[],
        cdi_devices: &[],
        annotations: &BTreeMap::new(),
        exclusive_cpus: false,
    };
    container_config(&ctx, &of_container).expect("a configuration")
}

fn resources(version: CgroupVersion, container: Value, more: Value) -> v1::LinuxContainerResources {
    let mut container = container;
    container["name"] = json!("c");
    let mut spec = json!({ "containers": [container] });
    for (name, field) in more.as_object().expect("an object") {
        spec[name] = field.clone();
    }
    let pod = pod(spec);
    let of = pintle_api_types::pod::containers::find(pintle_api_types::pod::spec(&pod), "c")
        .expect("c")
        .1;
    container_resources(&node(version), &pod, of, false)
}

#[test]
fn the_cpu_limit_stands_for_a_request_that_is_not_named() {
    let of = |resources_of: Value| {
        let got = resources(CgroupVersion::V1, json!({ "resources": resources_of }), json!({}));
        (got.cpu_shares, got.cpu_quota)
    };
    assert_eq!(of(json!({"limits": {"cpu": "500m"}})), (512, 50_000));
    assert_eq!(of(json!({"requests": {"cpu": "0"}, "limits": {"cpu": "500m"}})), (2, 50_000));
    assert_eq!(of(json!({"requests": {"cpu": "250m"}})), (256, 0));
}

#[test]
fn pod_level_limits_hold_where_the_container_has_none() {
    let limits = json!({"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "8Mi"});
    let requests = json!({"cpu": "1", "memory": "1Gi"});
    let of_pod = json!({"resources": {"limits": limits, "requests": requests}});
    let got = resources(CgroupVersion::V1, json!({}), of_pod.clone());
    assert_eq!((got.cpu_quota, got.memory_limit_in_bytes), (100_000, 1 << 30));
    assert_eq!(
        got.hugepage_limits[0],
        v1::HugepageLimit { page_size: "2MB".into(), limit: 8 << 20 }
    );
    let own = json!({"resources": {"limits": {"cpu": "200m", "hugepages-2Mi": "2Mi"}}});
    let got = resources(CgroupVersion::V1, own, of_pod);
    assert_eq!((got.cpu_quota, got.hugepage_limits[0].limit), (20_000, 2 << 20));
}

#[test]
fn a_pod_level_request_is_shared_by_the_containers_oom_scores() {
    let mut spec = json!({"resources": {"requests": {"memory": "4Gi"}}});
    spec["containers"] = json!([{"name": "c"},
        {"name": "d", "resources": {"requests": {"memory": "2Gi"}}}]);
    let pod = pod(spec);
    let node = node(CgroupVersion::V1);
    let of = |index: usize| {
        let container = &pintle_api_types::pod::spec(&pod).containers[index];
        container_resources(&node, &pod, container, false).oom_score_adj
    };
    // 2 GiB are left for two containers: each has 1 GiB of 8 more.
    assert_eq!((of(0), of(1)), (875, 625));
}

#[test]
fn swap_is_given_to_burstable_pods_with_a_request_below_their_limit_only() {
    let of = |version: CgroupVersion, own: Value, more: Value| {
        let got = resources(version, json!({ "resources": own }), more);
        (got.unified.get("memory.swap.max").cloned(), got.memory_swap_limit_in_bytes)
    };
    let burstable = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}});
    let critical = json!({"priority": 2_000_001_000});
    let equal = json!({"requests": {"memory": "1Gi", "cpu": "1"}, "limits": {"memory": "1Gi"}});
    let v2 = CgroupVersion::V2;
    let half_gib = Some((GIB / 2).to_string());
    let none = Some("0".to_owned());
    assert_eq!(of(v2, burstable.clone(), json!({})), (half_gib, 0));
    assert_eq!(of(v2, burstable.clone(), critical), (none.clone(), 0));
    assert_eq!(of(v2, equal, json!({})), (none.clone(), 0));
    assert_eq!(of(v2, json!({}), json!({})), (none, 0));
    assert_eq!(of(CgroupVersion::V1, burstable, json!({})), (None, 2 << 30));
}

#[test]
fn oom_kill_on_cgroup_v2_ends_the_whole_container_unless_single_processes_are_configured() {
    let pod = pod(json!({"containers": [{"name": "c"}]}));
    let container = &pintle_api_types::pod::spec(&pod).containers[0];
    let of = |version, configured| {
        let node = NodeContext { single_process_oom_kill: configured, ..node(version) };
        let got = container_resources(&node, &pod, container, false);
        got.unified.get("memory.oom.group").cloned()
    };
    let whole = Some("1".to_owned());
    assert_eq!(of(CgroupVersion::V2, None), whole);
    assert_eq!(of(CgroupVersion::V2, Some(false)), whole);
    assert_eq!(of(CgroupVersion::V2, Some(true)), None);
    assert_eq!(of(CgroupVersion::V1, None), None);
}

#[test]
fn cores_of_ones_own_have_no_quota() {
    let pod = pod(json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}));
    let container = &pintle_api_types::pod::spec(&pod).containers[0];
    let got = container_resources(&node(CgroupVersion::V1), &pod, container, true);
    assert_eq!(got.cpu_quota, formulas::QUOTA_UNLIMITED_US);
}

#[test]
fn overhead_is_sent_apart_from_resources_and_counted_in_the_pods_cgroup() {
    let pod = pod(json!({
        "overhead": {"cpu": "250m", "memory": "64Mi"},
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"},
            "limits": {"cpu": "1", "memory": "64Mi"}}}]}));
    let (node, handler) = (node(CgroupVersion::V1), RuntimeHandler::default());
    let sandbox = sandbox_config(&pod_context(&node, &handler, &pod)).expect("a sandbox");
    let linux = sandbox.config.linux.expect("linux");
    let overhead = linux.overhead.expect("overhead");
    assert_eq!((overhead.cpu_shares, overhead.cpu_quota), (256, 25_000));
    assert_eq!(overhead.memory_limit_in_bytes, 64 << 20);
    let sums = linux.resources.expect("resources");
    assert_eq!((sums.cpu_shares, sums.memory_limit_in_bytes), (1024, 64 << 20));
    let amounts = pod_amounts(&pod);
    assert_eq!((amounts.cpu_request_millis, amounts.memory_limit_bytes), (1250, 128 << 20));
}

#[test]
fn of_ports_with_the_same_name_the_first_is_mapped() {
    let pod = pod(json!({"containers": [{"name": "c", "ports": [
        {"containerPort": 80, "hostPort": 1}, {"containerPort": 80, "hostPort": 1},
        {"containerPort": 80, "hostPort": 1, "hostIP": "::1"},
        {"containerPort": 81, "name": "a", "protocol": "SCTP"},
        {"containerPort": 82, "name": "a"}]}]}));
    let (node, handler) = (node(CgroupVersion::V1), RuntimeHandler::default());
    let sandbox = sandbox_config(&pod_context(&node, &handler, &pod)).expect("a sandbox");
    let ports = sandbox.config.port_mappings;
    let ports: Vec<_> =
        ports.iter().map(|p| (p.container_port, p.host_ip.as_str(), p.protocol())).collect();
    use v1::Protocol::{Sctp, Tcp};
    assert_eq!(ports, [(80, "", Tcp), (80, "::1", Tcp), (81, "", Sctp)]);
}

#[test]
fn an_ephemeral_container_enters_its_targets_process_namespace() {
    let spec = |share: bool| {
        json!({"containers": [{"name": "c"}], "shareProcessNamespace": share,
            "ephemeralContainers": [{"name": "e", "targetContainerName": "c"}]})
    };
    let of = |share: bool| {
        let got = config(&node(CgroupVersion::V1), &pod(spec(share)), "e", Some("id"));
        let security = got.linux.and_then(|linux| linux.security_context).expect("rights");
        let namespaces = security.namespace_options.expect("namespaces");
        (namespaces.pid(), namespaces.target_id)
    };
    assert_eq!(of(false), (v1::NamespaceMode::Target, "id".to_owned()));
    // All containers see each other already.
    assert_eq!(of(true), (v1::NamespaceMode::Pod, String::new()));
}

#[test]
fn own_files_are_mounted_last_and_the_containers_hosts_file_wins() {
    let spec = json!({"hostNetwork": true,
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "i", "image": {"reference": "img:1"}}],
        "containers": [
            {"name": "c", "terminationMessagePath": "dev/log",
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true},
                    {"name": "i", "mountPath": "/i", "subPath": "a/b"}]},
            {"name": "d", "volumeMounts": [{"name": "v", "mountPath": "/etc/hosts"}]}]});
    let (node, pod) = (node(CgroupVersion::V1), pod(spec));
    let mounts = config(&node, &pod, "c", None).mounts;
    let paths: Vec<_> =
        mounts.iter().map(|m| (m.container_path.as_str(), m.host_path.as_str())).collect();
    let want = [
        ("/v", "/root/pods/u/volumes/kubernetes.io~empty-dir/v"),
        ("/i", ""),
        ("/etc/hosts", "/root/pods/u/etc-hosts"),
        ("/dev/log", "/root/pods/u/containers/c/0123abcd"),
    ];
    assert_eq!(paths, want);
    assert!(mounts[0].readonly && !mounts[2].readonly);
    let image = mounts[1].image.as_ref().expect("an image");
    assert_eq!((image.image.as_str(), image.user_specified_image.as_str()), ("sha256:1", "img:1"));
    assert_eq!((mounts[1].image_sub_path.as_str(), image.runtime_handler.as_str()), ("a/b", ""));
    let own = config(&node, &pod, "d", None).mounts;
    assert_eq!(own.len(), 1);
}

#[test]
fn only_files_made_for_the_pod_are_relabelled() {
    let nfs = |read_only: bool| json!({"server": "s", "path": "/e", "readOnly": read_only});
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let spec = json!({"hostNetwork": true,
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s"}},
            {"name": "h", "hostPath": {"path": "/etc"}}, {"name": "w", "nfs": nfs(false)},
            {"name": "r", "nfs": nfs(true)}],
        "containers": [{"name": "c", "volumeMounts": [mount("v"), mount("s"), mount("h"), mount("w"),
            {"name": "r", "mountPath": "/r", "subPath": "a"}]}]});
    let node = NodeContext { selinux: true, ..node(CgroupVersion::V1) };
    let mounts = config(&node, &pod(spec), "c", None).mounts;
    let got: Vec<_> =
        mounts.iter().map(|m| (m.container_path.as_str(), m.selinux_relabel, m.readonly)).collect();
    let want = [
        ("/v", true, false),
        ("/s", true, true),
        ("/h", false, false),
        ("/w", false, false),
        ("/r", false, true),
        ("/etc/hosts", true, false),
    ];
    assert_eq!(got, want);
}

#[test]
fn mounts_are_id_mapped_in_a_pod_with_a_user_namespace() {
    let spec = json!({"hostUsers": false, "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]});
    let mounts = config(&node(CgroupVersion::V2), &pod(spec), "c", None).mounts;
    assert_eq!(mounts[0].uid_mappings[0].host_id, 65536);
    assert_eq!(mounts[0].gid_mappings[0].length, 65536);
}

#[test]
fn the_stop_signal_is_sent_along_when_its_gate_is_on() {
    let spec = json!({"containers": [{"name": "c", "lifecycle": {"stopSignal": "SIGUSR1"}}]});
    let mut node = node(CgroupVersion::V1);
    let pod = pod(spec);
    assert_eq!(config(&node, &pod, "c", None).stop_signal(), v1::Signal::RuntimeDefault);
    node.gates.container_stop_signals = true;
    assert_eq!(config(&node, &pod, "c", None).stop_signal(), v1::Signal::Sigusr1);
}

proptest! {
    #[test]
    fn links_to_logs_fit_a_file_name(name in "[a-z]{1,253}", container in "[a-z]{1,63}") {
        let mut pod = pod(json!({"containers": []}));
        pod.metadata.name = Some(name);
        let link = paths::log_link(&pod, &container, &"f".repeat(64));
        let file = link.rsplit('/').next().unwrap_or_default();
        prop_assert!(file.len() <= 255 && file.ends_with(".log"));
    }
}
