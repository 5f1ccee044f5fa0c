//! Tables after upstream's helpers_test.go: TestOrderedByExceedsRequestMemory, TestOrderedByPriority,
//! TestSortByPriority and their disk and pid counterparts.

use serde_json::{Value, json};

use super::*;
use crate::eviction::observed::{ContainerUse, VolumeUse};

const MI: u64 = 1 << 20;

fn pod(name: &str, priority: i32, requests: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"priority": priority, "containers": [
            {"name": "c", "resources": {"requests": requests}}],
            "volumes": [{"name": "local", "emptyDir": {}},
                {"name": "ram", "emptyDir": {"medium": "Memory"}},
                {"name": "conf", "configMap": {"name": "x"}}]}
    }))
    .expect("a pod")
}

fn order(pods: &[(Pod, Option<PodUse>)], signal: Signal, layout: DiskLayout) -> Vec<String> {
    let uids: Vec<_> = pods.iter().map(|(pod, _)| pod::uid(pod)).collect();
    let uses: Uses =
        pods.iter().filter_map(|(pod, used)| Some((pod::uid(pod), used.clone()?))).collect();
    let evictable = pods.iter().zip(&uids).map(|((pod, _), uid)| Evictable { uid, pod });
    let ranked = rank(evictable, &uses, signal, layout);
    ranked.iter().map(|(of, _)| pod::name(of.pod).to_owned()).collect()
}

fn memory(mi: u64) -> Option<PodUse> {
    Some(PodUse { working_set: Some(mi * MI), ..PodUse::default() })
}

#[test]
fn memory_ranking_is_by_request_then_priority_then_usage_over_request() {
    let asks = |mi: u64| json!({"memory": format!("{mi}Mi")});
    let pods = [
        (pod("below-low", 0, &asks(500)), memory(400)),
        (pod("below-high", 9, &asks(500)), memory(499)),
        (pod("above-high-much", 9, &asks(100)), memory(900)),
        (pod("above-low-little", 0, &asks(100)), memory(150)),
        (pod("above-low-more", 0, &asks(100)), memory(250)),
        (pod("best-effort-low", 0, &json!({})), memory(200)),
        (pod("unknown-high", 9, &asks(100)), None),
    ];
    let want = [
        "unknown-high",
        "best-effort-low",
        "above-low-more",
        "above-low-little",
        "above-high-much",
        "below-low",
        "below-high",
    ];
    assert_eq!(order(&pods, Signal::MemoryAvailable, DiskLayout::default()), want);
    assert_eq!(order(&pods, Signal::AllocatableMemoryAvailable, DiskLayout::default()), want);
}

#[test]
fn pid_ranking_is_by_priority_then_process_count() {
    let used = |processes| Some(PodUse { processes: Some(processes), ..PodUse::default() });
    let pods = [
        (pod("high-many", 9, &json!({})), used(900)),
        (pod("low-few", 0, &json!({})), used(1)),
        (pod("low-many", 0, &json!({})), used(50)),
        (pod("low-unknown", 0, &json!({})), None),
    ];
    let want = ["low-unknown", "low-many", "low-few", "high-many"];
    assert_eq!(order(&pods, Signal::PidAvailable, DiskLayout::default()), want);
}

fn disk(layer: u64, logs: u64, local: u64, ram: u64) -> Option<PodUse> {
    let of = |mi: u64| DiskUse { bytes: mi * MI, inodes: mi };
    let container =
        ContainerUse { layer: Some(of(layer)), logs: Some(of(logs)), ..ContainerUse::default() };
    let volume = |mi, in_memory| VolumeUse { disk: of(mi), in_memory };
    let volumes = [("local", volume(local, false)), ("ram", volume(ram, true))];
    Some(PodUse {
        containers: [("c".to_owned(), container)].into(),
        volumes: volumes.map(|(name, used)| (name.to_owned(), used)).into(),
        ..PodUse::default()
    })
}

#[test]
fn the_parts_that_count_lie_on_the_disk_that_is_short() {
    let none = json!({});
    let pods = [
        (pod("layers", 0, &none), disk(100, 1, 1, 9_000)),
        (pod("logs", 0, &none), disk(1, 90, 1, 9_000)),
        (pod("volumes", 0, &none), disk(2, 1, 80, 9_000)),
    ];
    let first = |signal, images_apart, layers_apart| {
        order(&pods, signal, DiskLayout { images_apart, layers_apart }).remove(0)
    };
    use Signal::*;
    for signal in [NodeFsAvailable, ImageFsAvailable, ContainerFsAvailable, NodeFsInodesFree] {
        assert_eq!(first(signal, false, false), "layers", "{signal}");
    }
    assert_eq!(first(NodeFsAvailable, true, false), "logs");
    assert_eq!(first(ImageFsAvailable, true, false), "layers");
    assert_eq!(first(ContainerFsInodesFree, true, false), "layers");
    assert_eq!(first(NodeFsAvailable, true, true), "layers");
    assert_eq!(first(ContainerFsAvailable, true, true), "layers");
}

#[test]
fn disk_ranking_is_by_request_first() {
    let asks = |mi: u64| json!({"ephemeral-storage": format!("{mi}Mi")});
    let pods = [
        (pod("much-within", 0, &asks(500)), disk(400, 0, 0, 0)),
        (pod("little-above", 5, &asks(10)), disk(11, 0, 0, 0)),
    ];
    let all = order(&pods, Signal::NodeFsAvailable, DiskLayout::default());
    assert_eq!(all, ["little-above", "much-within"]);
}

#[test]
fn eviction_rule_is_the_first_criterion_that_distinguishes_two_pods() {
    let of = |known, exceeds, priority, over| Weight {
        known,
        exceeds,
        priority,
        over: Amount::from_bytes(over),
    };
    let plain = of(true, true, 0, 5);
    for (starved, first, second, want) in [
        (Starved::Memory, plain, None, EvictionRule::Alone),
        (Starved::Memory, of(false, false, 9, 0), Some(plain), EvictionRule::NoFigures),
        (Starved::Memory, plain, Some(of(true, false, 0, 5)), EvictionRule::ExceedsRequest),
        (Starved::Memory, plain, Some(of(true, true, 1, 9)), EvictionRule::Priority),
        (Starved::Memory, plain, Some(of(true, true, 0, 1)), EvictionRule::Usage),
        (Starved::Memory, plain, Some(plain), EvictionRule::Tie),
        (Starved::Pids, plain, Some(of(false, true, 1, 0)), EvictionRule::Priority),
        (Starved::Pids, of(false, true, 0, 0), Some(plain), EvictionRule::NoFigures),
    ] {
        assert_eq!(rule(starved, &first, second.as_ref()), want, "{first:?} {second:?}");
    }
}

#[test]
fn overhead_counts_only_for_requested_resources() {
    let mut pod = pod("a", 0, &json!({"memory": "10Mi"}));
    let overhead = json!({"memory": "5Mi", "ephemeral-storage": "5Mi"});
    pod.spec.as_mut().expect("a spec").overhead =
        Some(serde_json::from_value(overhead).expect("a list"));
    assert_eq!(request(&pod, "memory").canonical(), "15Mi");
    assert_eq!(request(&pod, "ephemeral-storage"), Amount::ZERO);
}

#[test]
fn pod_level_requests_replace_all_container_requests() {
    let asks = json!({"ephemeral-storage": "100Mi", "memory": "100Mi"});
    let mut whole = pod("whole", 0, &asks);
    let own = json!({"limits": {"cpu": "1"}, "requests": {"memory": "1Mi"}});
    let own = serde_json::from_value(own).expect("resources");
    whole.spec.as_mut().expect("it has one").resources = Some(own);
    assert_eq!(request(&whole, "ephemeral-storage"), Amount::ZERO, "no pod can as a whole");
    assert_eq!(request(&whole, "memory"), Amount::parse("1Mi").expect("an amount"));
    let pods = [(whole, disk(50, 0, 0, 0)), (pod("none", 0, &json!({})), disk(10, 0, 0, 0))];
    let layout = DiskLayout::default();
    assert_eq!(order(&pods, Signal::NodeFsAvailable, layout), ["whole", "none"]);
}
