//! Metrics as a scraper reads them.

use std::collections::BTreeMap;
use std::time::Duration;

use pintle_cri::{Code, Method, Observer as _};
use serde_json::json;

use super::{Metrics, Scrape, operation};
use crate::runtime::plan::Action;
use crate::status::view::Snapshot;
use crate::types::{ContainerKind, UnixNanos};
use crate::worker::Failure;

fn render(metrics: &Metrics) -> String {
    let snapshot = Snapshot::default();
    metrics.render(&Scrape {
        snapshot: &snapshot,
        event_source: "ebpf",
        events_dropped: 7,
        timeline_dropped: 2,
        calls_in_flight: 3,
    })
}

fn value(text: &str, series: &str) -> Option<String> {
    let line = text.lines().find(|line| line.rsplit_once(' ').is_some_and(|(s, _)| s == series))?;
    line.rsplit_once(' ').map(|(_, value)| value.to_owned())
}

#[test]
fn runtime_operations_bear_the_kubelets_names() {
    for (method, name) in [
        (Method::RunPodSandbox, "run_podsandbox"),
        (Method::PodSandboxStatus, "podsandbox_status"),
        (Method::ListContainers, "list_containers"),
        (Method::UpdateContainerResources, "update_container"),
        (Method::ExecSync, "exec_sync"),
        (Method::ImageFsInfo, "image_fs_info"),
        (Method::Version, "version"),
    ] {
        assert_eq!(operation(method), name);
    }
}

#[test]
fn a_runtime_call_is_counted_timed_and_its_failure_told() {
    let metrics = Metrics::new("n");
    metrics.call_ended(Method::StopContainer, Some(Code::Ok), Duration::from_millis(7));
    metrics.call_ended(Method::StopContainer, Some(Code::Unknown), Duration::from_millis(7));
    metrics.call_ended(Method::GetContainerEvents, None, Duration::from_secs(9));
    let text = render(&metrics);
    let of = |family: &str| value(&text, &format!("{family}{{operation_type=\"stop_container\"}}"));
    assert_eq!(of("kubelet_runtime_operations_total").as_deref(), Some("2"));
    assert_eq!(of("kubelet_runtime_operations_errors_total").as_deref(), Some("1"));
    assert_eq!(of("kubelet_runtime_operations_duration_seconds_count").as_deref(), Some("2"));
    let closed = "kubelet_runtime_operations_errors_total{operation_type=\"get_container_events\"}";
    assert_eq!(value(&text, closed), None, "a closed stream is no error");
}

#[test]
fn starts_are_counted_by_the_kind_of_container() {
    let metrics = Metrics::new("n");
    let start = |kind| Action::StartContainer {
        name: "c".into(),
        kind,
        restart_count: None,
        sandbox: None,
    };
    metrics.action_ended(&start(ContainerKind::Main), None);
    metrics.action_ended(&start(ContainerKind::Main), Some(&Failure::new("ErrImagePull", "x")));
    metrics.action_ended(&start(ContainerKind::Sidecar), None);
    let text = render(&metrics);
    let started = |kind: &str| {
        value(&text, &format!("kubelet_started_containers_total{{container_type=\"{kind}\"}}"))
    };
    assert_eq!(started("container").as_deref(), Some("2"));
    assert_eq!(started("init_container").as_deref(), Some("1"));
    let errors = "kubelet_started_containers_errors_total{container_type=\"container\",\
                  code=\"ErrImagePull\"}";
    assert_eq!(value(&text, errors).as_deref(), Some("1"));
}

#[test]
fn a_pods_start_is_timed_once_from_first_seen_to_running() {
    let metrics = Metrics::new("n");
    let pod = serde_json::from_value(json!({"metadata": {"annotations":
        {"kubernetes.io/config.seen": "1970-01-01T00:00:10.5Z"}}}))
    .expect("a pod");
    let at = |seconds: i64| UnixNanos(seconds * 1_000_000_000);
    for (phase, now) in [("Pending", 11), ("Running", 13), ("Running", 99)] {
        let status = serde_json::from_value(json!({"phase": phase})).expect("a status");
        metrics.published(&"u".into(), &pod, &status, at(now));
    }
    let text = render(&metrics);
    let of = |name: &str| value(&text, &format!("kubelet_pod_start_duration_seconds_{name}"));
    assert_eq!((of("count").as_deref(), of("sum").as_deref()), (Some("1"), Some("2.5")));
}

#[test]
fn what_others_count_is_shown_as_it_stands() {
    let metrics = Metrics::new("n");
    for _ in 0..2 {
        let text = render(&metrics);
        assert_eq!(value(&text, "pintle_event_drops_total").as_deref(), Some("7"));
        assert_eq!(value(&text, "pintle_event_source{mode=\"ebpf\"}").as_deref(), Some("1"));
        let limit = "pintle_limit_hits_total{limit=\"timeline entries\"}";
        assert_eq!(value(&text, limit).as_deref(), Some("2"));
    }
}

/// Families whose name the kubelet has must have its type and labels, too.
#[test]
fn families_shared_with_the_kubelet_have_its_type_and_labels() {
    let recorded = include_str!("../../../tests/recorded/metric-families.json");
    let recorded: serde_json::Value = serde_json::from_str(recorded).expect("recorded families");
    let metrics = Metrics::new("n");
    metrics.call_ended(Method::Version, Some(Code::Unknown), Duration::from_millis(1));
    let text = render(&metrics);
    let mut labels: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once(['{', ' ']).expect("a sample");
        let rest = rest.split_once('}').map_or("", |(inside, _)| inside);
        let keys = rest.split("\",").filter_map(|pair| pair.split_once("=\"").map(|(k, _)| k));
        let mut keys: Vec<_> = keys.filter(|key| *key != "le").collect();
        keys.sort_unstable();
        labels.insert(name, keys);
    }
    let mut shared = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a type line");
        let family = &recorded["/metrics"][name];
        if name.starts_with("pintle_") {
            continue;
        }
        assert_eq!(family["type"].as_str(), Some(kind), "{name}");
        let sample = if kind == "histogram" { format!("{name}_count") } else { name.to_owned() };
        if let Some(keys) = labels.get(sample.as_str()) {
            assert_eq!(json!(keys), family["labels"], "{name}");
        }
        shared += 1;
    }
    assert!(shared >= 20, "only {shared} families are the kubelet's");
}
