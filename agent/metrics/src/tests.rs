//! Metrics as a scraper reads them.

mod documents;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_config::FeatureGates;
use pintle_agent_core::cgroup::memory_qos::ClassRequests;
use pintle_agent_core::sync::plan::Action;
use pintle_agent_core::testing::{snapshot_of, view};
use pintle_agent_core::types::{ContainerKind, UnixNanos};
use pintle_agent_core::view::Snapshot;
use pintle_agent_core::worker::{DecisionCount, Failure};
use pintle_cri::{Code, Method, Observer as _};
use serde_json::{Value, json};

use super::{CertificateOf, CountedFrom, Metrics, OfDriver, Scrape, Task, operation};

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
fn runtime_calls_are_counted_and_timed_and_their_errors_are_counted() {
    let metrics = Metrics::new("n");
    metrics.call_ended(Method::StopContainer, Some(Code::Ok), Duration::from_millis(7));
    metrics.call_ended(Method::StopContainer, Some(Code::Unknown), Duration::from_millis(7));
    metrics.call_ended(Method::GetContainerEvents, None, Duration::from_secs(9));
    let text = metrics.scraped();
    let of = |family: &str| value(&text, &format!("{family}{{operation_type=\"stop_container\"}}"));
    assert_eq!(of("kubelet_runtime_operations_total").as_deref(), Some("2"));
    assert_eq!(of("kubelet_runtime_operations_errors_total").as_deref(), Some("1"));
    assert_eq!(of("kubelet_runtime_operations_duration_seconds_count").as_deref(), Some("2"));
    let closed = "kubelet_runtime_operations_errors_total{operation_type=\"get_container_events\"}";
    assert_eq!(value(&text, closed), None, "a closed stream is no error");
}

#[test]
fn protected_memory_is_exported_only_with_its_feature_gate_enabled() {
    let series = ["min", "low"].map(|kind| format!("kubelet_memory_qos_node_memory_{kind}_bytes"));
    let shown = |metrics: &Metrics| {
        let text = metrics.scraped();
        series.each_ref().map(|name| value(&text, name))
    };
    let metrics = Metrics::new("n");
    metrics.settings(2, &FeatureGates::default());
    assert!(!metrics.scraped().contains("memory_qos"));
    let asked = BTreeMap::from([("MemoryQoS".to_owned(), true)]);
    metrics.settings(2, &FeatureGates::new(&asked).expect("a known gate"));
    assert_eq!(shown(&metrics), [Some("0".to_owned()), Some("0".to_owned())]);
    metrics.memory_protected(ClassRequests { guaranteed_bytes: 3, burstable_bytes: 4 });
    assert_eq!(shown(&metrics), [Some("3".to_owned()), Some("4".to_owned())]);
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
    let text = metrics.scraped();
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
fn failed_sandbox_creation_counts_as_an_error_unless_its_pod_terminates() {
    let metrics = Metrics::new("n");
    let failure = |reason: &str| Failure::new(reason, "x");
    let ends = Failure { cancelled: true, ..failure("CreatePodSandboxError") };
    let all = [failure("CreatePodSandboxError"), ends, failure("FailedPodSandBoxStatus")];
    for failure in [None].into_iter().chain(all.iter().map(Some)) {
        metrics.action_ended(&Action::CreateSandbox { attempt: 0, replaces: None }, failure);
    }
    let text = metrics.scraped();
    assert_eq!(value(&text, "kubelet_started_pods_total").as_deref(), Some("4"));
    assert_eq!(value(&text, "kubelet_started_pods_errors_total").as_deref(), Some("1"));
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
    let text = metrics.scraped();
    let of = |name: &str| value(&text, &format!("kubelet_pod_start_duration_seconds_{name}"));
    assert_eq!((of("count").as_deref(), of("sum").as_deref()), (Some("1"), Some("2.5")));
}

#[test]
fn counters_kept_outside_metrics_are_exported_unchanged_on_each_scrape() {
    let metrics = Metrics::new("n");
    for _ in 0..2 {
        let text = metrics.scraped();
        assert_eq!(value(&text, "pintle_event_drops_total").as_deref(), Some("7"));
        assert_eq!(value(&text, "pintle_event_source{mode=\"ebpf\"}").as_deref(), Some("1"));
        let limit = "pintle_limit_hits_total{limit=\"timeline entries\"}";
        assert_eq!(value(&text, limit).as_deref(), Some("2"));
    }
}

/// Families that other code writes.
const ELSEWHERE: [&str; 1] = ["kubelet_container_log_filesystem_used_bytes"];

/// Metrics in which everything has happened once.
fn touched() -> Metrics {
    let metrics = Metrics::new("n");
    let second = Duration::from_secs(1);
    let uid = "u".into();
    metrics.call_ended(Method::Version, Some(Code::Unknown), second);
    let (method, host, code, bytes) = ("GET", "h", Some(200), Some(0));
    let sent = pintle_api::Sent { method, host, code, took: second, bytes, again: false };
    pintle_api::Observer::sent(&metrics, sent);
    pintle_api::Observer::received(&metrics, "GET", "h", 70_000);
    pintle_api::Observer::limited(&metrics, "GET", "h", second);
    let start = Action::StartContainer {
        name: "c".into(),
        kind: ContainerKind::Main,
        restart_count: None,
        sandbox: None,
    };
    metrics.action_ended(&start, Some(&Failure::new("ErrImagePull", "x")));
    metrics.counted(&DecisionCount::Refused("OutOfcpu".to_owned()));
    metrics.resized(second, true);
    let (resource, requirement) = ("cpu", "limits");
    let asked =
        pintle_agent_core::resize::ResizeRequest { resource, requirement, operation: "add" };
    metrics.counted(&DecisionCount::Asked(asked));
    drop(metrics.http_request("readwrite", "GET", "/pods"));
    metrics.volume_counted(CountedFrom::Walk, second);
    metrics.driver_called(OfDriver::own("d"), "NodePublishVolume", "OK", second);
    metrics.volume_operated(OfDriver::own("d"), "volume_mount", true, second);
    metrics.settings(1, &FeatureGates::default());
    metrics.cgroup("create", second);
    metrics.sandbox("", second, false);
    metrics.user_namespaced_pod(false);
    metrics.images().requested("Always", None, None);
    metrics.images().verified("credentialRecordFound");
    metrics.pulled(&uid, second, 1);
    let operation = metrics.sync_begins(&uid, None, &[], UnixNanos(1));
    metrics.sync_ended(operation, second);
    metrics.relisted(UnixNanos(1), second);
    let pod = |status: Value| -> Pod {
        let object = json!({"metadata": {"uid": "u", "creationTimestamp": "1970-01-01T00:00:01Z"},
            "spec": {"containers": []}, "status": status});
        serde_json::from_value(object).expect("a pod")
    };
    let running = json!({"startTime": "1970-01-01T00:00:01Z",
        "containerStatuses": [{"name": "c", "state": {"running": {}}}]});
    metrics.shown(&pod(json!({})), UnixNanos(1));
    metrics.shown(&pod(running), UnixNanos(3_000_000_000));
    let ended = json!({"containerStatuses": [{"name": "c", "state":
        {"terminated": {"exitCode": 1, "reason": "Error"}}}]});
    let ended = serde_json::from_value(ended).expect("a status");
    metrics.published(&uid, &pod(json!({})), &ended, UnixNanos(1));
    for which in [CertificateOf::Client, CertificateOf::Server] {
        metrics.certificates.of(which);
    }
    metrics.own.panics.get_or_create(&Task { task: "t".to_owned() }).inc();
    metrics
}

fn world() -> Snapshot {
    let mut view = view(json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [],
        "volumes": [{"name": "v", "emptyDir": {}}]}}));
    let mut observed = (*view.observed).clone();
    observed.containers.push(pintle_agent_core::status::testing::container("c", "1"));
    view.observed = Arc::new(observed);
    snapshot_of(vec![view])
}

/// Type and labels by family.
fn families(text: &str) -> BTreeMap<String, Value> {
    let mut kinds = BTreeMap::new();
    let mut families = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            kinds.insert(name, kind);
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let (name, rest) = line.split_once(['{', ' ']).expect("a sample");
        let inside = rest.split_once("} ").map_or("", |(inside, _)| inside);
        let keys = inside.split("\",").filter_map(|pair| pair.split_once("=\"").map(|(k, _)| k));
        let mut keys: Vec<&str> = keys.filter(|key| *key != "le").collect();
        keys.sort_unstable();
        let ends = ["_bucket", "_count", "_sum"].into_iter();
        let family = ends.filter_map(|end| name.strip_suffix(end)).find(|n| kinds.contains_key(n));
        let family = family.unwrap_or(name);
        let kind = kinds.get(family).expect("a type before the first sample");
        families.entry(family.to_owned()).or_insert(json!({"type": kind, "labels": keys}));
    }
    families
}

/// The exposition of `/metrics` once everything has happened.
fn full() -> String {
    touched().render(&Scrape {
        snapshot: &world(),
        has_api: true,
        event_source: "ebpf",
        events_dropped: 0,
        timeline_dropped: 0,
        calls_in_flight: 0,
    })
}

/// Every family that a kubelet was seen with is here with its type, labels and help, or stands in
/// `docs/METRICS.md` with the reason.
#[test]
fn every_kubelet_metric_family_is_served_or_documented_as_absent() {
    let recorded = include_str!("../../../tests/recorded/metric-families.json");
    let recorded: Value = serde_json::from_str(recorded).expect("recorded families");
    let helps = include_str!("../../../tests/recorded/metric-help.json");
    let helps: BTreeMap<String, String> = serde_json::from_str(helps).expect("recorded texts");
    let text = full();
    let ours = families(&text);
    let absent = documents::absent();
    let mut wrong = Vec::new();
    for (name, theirs) in recorded["/metrics"].as_object().expect("families") {
        let is_absent = absent.iter().any(|family| family.covers(name));
        match (ours.contains_key(name), is_absent) {
            (true, true) => wrong.push(format!("{name} is here after all")),
            (false, false) if !ELSEWHERE.contains(&name.as_str()) => {
                wrong.push(format!("{name} is missing"));
            }
            (true, false) if ours[name] != *theirs => {
                wrong.push(format!("{name}: {} instead of {theirs}", ours[name]));
            }
            _ => {}
        }
    }
    for line in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = line.split_once(' ').expect("a text");
        if let Some(theirs) = helps.get(name).filter(|theirs| *theirs != help) {
            wrong.push(format!("{name}: {help:?} instead of {theirs:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
