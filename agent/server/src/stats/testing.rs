//! A node with one pod that uses something, and the recorded families, for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use pintle_agent_core::cgroup::names::CgroupSetup;
use pintle_agent_core::testing::{snapshot_of, view};
use pintle_agent_core::types::UnixNanos;
use pintle_agent_core::view::Snapshot;
use pintle_agent_host::cgroup::stats::{DeviceIo, Holds, More, Sample};
use serde_json::{Value, json};

use super::files::{FileSystem, FileUsage};
use super::layers::LayerSizes;
use super::network::{Interface, Traffic};
use super::summary::{NodeFigures, StorageStats};
use super::sweep::{CgroupReading, Sweep};
use super::targets::targets;
use super::volumes::CountedVolume;

/// Pod `ns/p` of uid `u` with a sandbox `s` and a container `c` of id `1`.
pub(super) fn world() -> (Snapshot, NodeFigures, StorageStats) {
    let mut pod = view(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [{"name": "c", "image": "x"}]}}));
    let mut observed = (*pod.observed).clone();
    observed.sandboxes.push(pintle_agent_core::status::testing::sandbox());
    let mut container = pintle_agent_core::status::testing::container("c", "1");
    container.log_path = "/none/ns_p_u/c/0.log".to_owned();
    observed.containers.push(container);
    pod.observed = Arc::new(observed);
    let fs = FileSystem {
        capacity_bytes: 100,
        available_bytes: 50,
        free_bytes: 60,
        inodes: 10,
        inodes_free: 5,
    };
    let usage = |bytes, inodes| FileUsage { bytes, inodes };
    let counted = |name: &str, is_ephemeral| CountedVolume {
        name: name.to_owned(),
        is_ephemeral,
        usage: usage(8192, 2),
        fs,
        at: UnixNanos(7_000_000_000),
        is_whole: true,
        claim: None,
        is_abnormal: None,
    };
    let storage = StorageStats {
        node: fs,
        images: (Some(fs), usage(7, 1)),
        layers: Arc::new(LayerSizes {
            sizes: [("1".to_owned(), usage(24_576, 9))].into(),
            asked_at: UnixNanos(1_000_000_000_000),
        }),
        logs: [("1".to_owned(), usage(0, 1))].into(),
        pods: [("u".to_owned(), usage(4096, 1))].into(),
        volumes: Arc::new(
            [("u".into(), vec![counted("disk", true), counted("token", false)])].into(),
        ),
    };
    let node = NodeFigures { name: "n".to_owned(), ..NodeFigures::default() };
    (snapshot_of(vec![pod]), node, storage)
}

/// A reading of all cgroups of that world.
pub(super) fn sweep() -> Sweep {
    let (snapshot, ..) = world();
    let sample = Sample {
        at: UnixNanos(1_795_228_253_941_000_000),
        cpu_ns: 10_396_573,
        memory_bytes: 516_096,
        working_set_bytes: 516_096,
        tasks: 4000,
        memory_limit_bytes: Some(64 << 20),
        swap_limit_bytes: Some(0),
        more: Some(More {
            throttled: Some((1, 2, 3)),
            devices: vec![DeviceIo {
                device: (254, 0),
                bytes: [("Read", 4096)].into(),
                operations: [("Read", 3)].into(),
            }],
            holds: Holds { processes: 1, descriptors: 9, sockets: 2, files_soft_limit: Some(-1) },
            ..More::default()
        }),
        ..Sample::default()
    };
    let found = |path: &String| CgroupReading {
        path: path.clone(),
        sample: sample.clone(),
        nano_cores: Some(1),
        processes: Some(3),
    };
    let targets = targets(&snapshot, &CgroupSetup::default());
    let eth0 = Interface {
        name: "eth0".to_owned(),
        received: Traffic { bytes: 1, ..Traffic::default() },
        sent: Traffic::default(),
    };
    Sweep {
        cgroups: targets.iter().map(|t| (t.key.clone(), found(&t.paths[0]))).collect(),
        networks: [("u".into(), vec![eth0.clone()])].into(),
        node_network: vec![eth0],
    }
}

/// Type and labels by family, of an exposition: labels of its first sample.
pub(super) fn families(text: &str) -> BTreeMap<String, Value> {
    let mut families = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            assert!(kinds.insert(name, kind).is_none(), "{name} stands twice");
            continue;
        }
        let (name, rest) = line.split_once(['{', ' ']).expect("a sample");
        let inside = rest.split_once("} ").map_or("", |(inside, _)| inside);
        let keys = inside.split("\",").filter_map(|pair| pair.split_once("=\"").map(|(k, _)| k));
        let mut keys: Vec<&str> = keys.collect();
        keys.sort_unstable();
        let kind = kinds.get(name).expect("a type before the first sample");
        families.entry(name.to_owned()).or_insert_with(|| json!({"type": kind, "labels": keys}));
    }
    families
}

/// The recorded families of an endpoint.
pub(super) fn recorded(endpoint: &str) -> BTreeMap<String, Value> {
    let all = include_str!("../../../../tests/recorded/metric-families.json");
    let all: Value = serde_json::from_str(all).expect("recorded families");
    let families = all[endpoint].as_object().expect("families").clone();
    assert!(!families.is_empty(), "{endpoint}");
    families.into_iter().collect()
}
