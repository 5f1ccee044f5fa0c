//! Metrics of kube-scheduler's port, compared with ours.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::Api;
use pintle_testbed::wait::{LONG, until};
use serde_json::{Value, json};

use crate::shadow::create;
use crate::stand::{PORT, SchedulerStand};

/// Pods that declare something of every kind.
pub async fn declaring(client: &kube::Client, namespace: &str) -> Result<()> {
    let overhead = json!({"podFixed": {"cpu": "250m", "memory": "10Mi"}});
    let class = json!({"metadata": {"name": "heavy"}, "handler": "heavy", "overhead": overhead});
    create(&Api::<RuntimeClass>::all(client.clone()), class).await?;
    let one = |name: &str, requests: Value, limits: Value| {
        json!({"name": name, "image": "i",
            "resources": {"requests": requests, "limits": limits}})
    };
    let with = |mut object: Value, field: &str, value: Value| {
        object[field] = value;
        object
    };
    let plain = one("a", json!({"cpu": "300m", "memory": "64Mi"}), json!({"cpu": "1"}));
    let small = one("b", json!({"cpu": "1500u", "ephemeral-storage": "1G"}), json!({}));
    let huge = json!({"hugepages-2Mi": "4Mi", "memory": "1Gi"});
    let huge = one("c", json!({"cpu": "2"}), huge);
    let nothing = one("d", json!({"cpu": "0"}), json!({}));
    let sidecar = with(small.clone(), "restartPolicy", json!("Always"));
    let init = one("e", json!({"cpu": "3", "memory": "1536Ki"}), json!({"cpu": "3"}));
    let volumes = json!({"example.com/thing": "3"});
    let volumes = one("f", volumes.clone(), volumes);
    let of_pod = json!({"requests": {"cpu": "4", "memory": "2Gi"}, "limits": {"cpu": "5"}});
    let specs = [
        json!({"containers": [plain]}),
        json!({"containers": [plain, small, huge, nothing]}),
        json!({"containers": [plain, huge], "initContainers": [sidecar, init]}),
        json!({"containers": [plain, nothing], "runtimeClassName": "heavy"}),
        json!({"containers": [huge], "runtimeClassName": "heavy", "schedulerName": "else"}),
        json!({"containers": [volumes], "schedulingGates": [{"name": "g"}]}),
        json!({"containers": [plain, nothing], "resources": of_pod}),
        json!({"containers": [plain], "priorityClassName": "system-node-critical"}),
        json!({"containers": [plain], "nodeName": "ours-selectors"}),
    ];
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for (at, spec) in specs.into_iter().enumerate() {
        let pod = json!({"metadata": {"name": format!("declares-{at}")}, "spec": spec});
        create(&pods, pod).await.with_context(|| format!("pod {at}"))?;
    }
    Ok(())
}

/// Both return the same resource metrics of all pods, byte by byte, to authorized users only.
pub fn resources_alike(stand: &SchedulerStand, port: u16) {
    let path = "/metrics/resources";
    for port in [PORT, port] {
        let refused = stand.get_from(port, path, None);
        assert!(refused.starts_with("HTTP/1.1 403"), "{port}: {refused}");
    }
    until(LONG, "both know all pods", || {
        let [theirs, ours] =
            [PORT, port].map(|port| samples(&stand.get_from(port, path, Some("admin"))));
        let difference = theirs.iter().zip(&ours).find(|(theirs, ours)| theirs != ours);
        ensure!(difference.is_none(), "{difference:?}");
        ensure!(theirs.len() == ours.len(), "{} lines, ours {}", theirs.len(), ours.len());
        let has = |word: &str| theirs.iter().filter(|line| line.contains(word)).count();
        for word in [
            "unit=\"cores\"",
            "unit=\"bytes\"",
            "unit=\"\"",
            "node=\"\"",
            "hugepages-2Mi",
            "e+0",
            "scheduler=\"else\"",
            "priority=\"2000001000\"",
            "kube_pod_resource_limit{",
        ] {
            ensure!(has(word) > 0, "nothing of {word}");
        }
        println!("{path}: {} lines, {} of them of declares-*", theirs.len(), has("declares-"));
        Ok(())
    });
}

/// The lines of an answer's body, also of a chunked one.
fn samples(answer: &str) -> Vec<String> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    if !head.to_lowercase().contains("transfer-encoding: chunked") {
        return body.lines().map(str::to_owned).collect();
    }
    let (mut rest, mut whole) = (body, String::new());
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        let (Some(piece), true) = (more.get(..size), size > 0) else { break };
        whole.push_str(piece);
        rest = more.get(size + 2..).unwrap_or_default();
    }
    whole.lines().map(str::to_owned).collect()
}

/// A family of metrics without its values.
#[derive(Debug, Default, PartialEq)]
struct Family {
    kind: String,
    help: String,
    /// Names of labels, in each set that there is.
    labels: BTreeSet<Vec<String>>,
    /// Bounds of the buckets of a histogram.
    bounds: Vec<String>,
}

/// Metric families as a scraper reads them, by name.
fn families(text: &[String]) -> BTreeMap<String, Family> {
    let mut all: BTreeMap<String, Family> = BTreeMap::new();
    for line in text {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap_or((help, ""));
            help.clone_into(&mut all.entry(name.to_owned()).or_default().help);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap_or((kind, ""));
            kind.clone_into(&mut all.entry(name.to_owned()).or_default().kind);
        } else if let Some((name, rest)) = line.split_once(['{', ' ']) {
            let suffixes = ["_bucket", "_sum", "_count"];
            let base = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            let base = base.filter(|base| all.contains_key(*base)).unwrap_or(name);
            let family = all.entry(base.to_owned()).or_default();
            let mut labels = Vec::new();
            let quoted: Vec<&str> = rest.split('"').collect();
            for pair in quoted.chunks(2).filter(|pair| pair[0].ends_with('=')) {
                let label = pair[0].trim_start_matches(',').trim_end_matches('=');
                match (label, pair.get(1)) {
                    ("le", Some(bound)) => {
                        if !family.bounds.iter().any(|known| known == bound) {
                            family.bounds.push((*bound).to_owned());
                        }
                    }
                    _ => labels.push(label.to_owned()),
                }
            }
            labels.sort();
            family.labels.insert(labels);
        }
    }
    all
}

/// Prefixes of families that ours does not have; docs/COMPAT.md gives the reasons.
const NOT_OURS: [&str; 22] = [
    // Of Go's runtime, and of upstream's metrics library.
    "go_",
    "cardinality_enforcement_",
    "disabled_metrics_",
    "hidden_metrics_",
    "registered_metrics_",
    // Metrics of other components, whose code is linked into upstream's programs.
    "aggregator_",
    "apiextensions_",
    "apiserver_",
    "kubelet_",
    "node_",
    // Of libraries that ours does not use: the port's filters, transport caches, work queues.
    "authenticated_user_requests",
    "authentication_",
    "authorization_",
    "rest_client_exec_plugin_certificate_rotation_age",
    "rest_client_exec_plugin_ttl_seconds",
    "rest_client_transport_",
    "workqueue_",
    // Reusing the result of an equal pod is no timed step, and its cache is seldom flushed.
    "scheduler_batch_cache_flushed_total",
    "scheduler_get_node_hint_duration_seconds",
    "scheduler_store_schedule_results_duration_seconds",
    // Ours evaluates upstream's plugins in one pass over columns, and all hints in one over waiting
    // pods.
    "scheduler_plugin_evaluation_total",
    "scheduler_queueing_hint_execution_duration_seconds",
];

/// Both have the same families, after the same work: names, kinds, words, labels, buckets.
pub fn metrics_alike(stand: &SchedulerStand, port: u16) {
    for port in [PORT, port] {
        let ready = stand.get_from(port, "/readyz", None);
        assert!(ready.ends_with("ok"), "{port}: {ready}");
    }
    for path in ["/healthz", "/livez", "/readyz"] {
        let [theirs, mut ours] = [PORT, port].map(|port| {
            let page = stand.get_from(port, &format!("{path}?verbose"), None);
            let checks = page.lines().filter(|line| line.starts_with('[')).map(str::to_owned);
            checks.collect::<Vec<_>>()
        });
        assert!(!theirs.is_empty(), "{path}: kube-scheduler checks nothing");
        // The health of the deciding thread is a check of this scheduler alone.
        let checks_thread = ours.extract_if(.., |check| check.contains("deciding-thread")).count();
        assert_eq!(checks_thread, usize::from(path != "/readyz"), "{path}");
        assert_eq!(theirs, ours, "{path}");
    }
    for (path, at_least) in [("/metrics", 30), ("/metrics/slis", 2)] {
        let [theirs, ours] =
            [PORT, port].map(|port| families(&samples(&stand.get_from(port, path, Some("admin")))));
        let (mut differ, mut alike) = (Vec::new(), 0);
        for (name, family) in &theirs {
            match ours.get(name) {
                _ if NOT_OURS.iter().any(|begin| name.starts_with(begin)) => {}
                Some(own) if own == family => alike += 1,
                Some(own) => differ.push(format!("{name}\n  theirs {family:?}\n  ours   {own:?}")),
                None => differ.push(format!("{name}: not here: {family:?}")),
            }
        }
        let more = ours.keys().filter(|name| !theirs.contains_key(*name));
        let more = more.filter(|name| !name.starts_with("pintle_"));
        differ.extend(more.map(|name| format!("{name}: only here")));
        println!("{path}: {} families, ours {}, {alike} alike", theirs.len(), ours.len());
        assert!(differ.is_empty(), "{path}: {}", differ.join("\n"));
        assert!(alike >= at_least, "{path}: {alike} are alike");
    }
}

/// Both accept the user headers of a configured front proxy only.
pub fn proxies_are_believed_alike(stand: &SchedulerStand, port: u16) {
    let jane = "X-Remote-User: jane\r\n";
    let master = "X-Remote-User: jane\r\nX-Remote-Group: system:masters\r\n";
    for (user, head, code, word) in [
        (Some("front-client"), master, "200", "# HELP"),
        (Some("front-client"), jane, "403", "jane"),
        (Some("front-client"), "", "401", "Unauthorized"),
        // The headers of other clients are ignored.
        (Some("admin"), jane, "200", "# HELP"),
        (Some("scheduler"), master, "403", "system:kube-scheduler"),
        (None, master, "403", "system:anonymous"),
    ] {
        let answers = [PORT, port].map(|port| stand.get_with(port, "/metrics", user, head));
        let bodies = answers.each_ref().map(|answer| answer.split_once("\r\n\r\n"));
        if code != "200" {
            assert_eq!(bodies[0].map(|parts| parts.1), bodies[1].map(|parts| parts.1));
        }
        for answer in answers {
            let is_so = answer.starts_with(&format!("HTTP/1.1 {code}")) && answer.contains(word);
            let begin: String = answer.chars().take(600).collect();
            assert!(is_so, "{user:?} with {head:?}: {begin}");
        }
    }
}
