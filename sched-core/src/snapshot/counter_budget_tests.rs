//! Pods with more terms than are kept: their counters, and equal decisions.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::counter_budget::CounterLimits;
use super::tests::{bound, node_with, pod_with};
use crate::attempt_budget::{AttemptBudget, Limit, Limits};
use crate::config::Plugin;
use crate::hint::HintEvent;
use crate::select::{Scratch, decide_in_detail};
use crate::snapshot::{Cluster, DeltaError};
use crate::{Profile, decide};

fn cluster(nodes: usize) -> Cluster {
    let mut cluster = Cluster::new(Profile::default());
    for at in 0..nodes {
        let node = node_with(&format!("n{at}"), |n| {
            n["metadata"]["labels"]["zone"] = json!(format!("z{}", at % 3));
        });
        cluster.set_node(&node).expect("a node");
    }
    cluster
}

fn term(selector: &Value, key: &str) -> Value {
    json!({"topologyKey": key, "labelSelector": selector})
}

/// A pod in a namespace that avoids pods of so many kinds, which no other pod names.
fn shy(name: &str, namespace: &str, terms: usize) -> Pod {
    let terms: Vec<Value> = (0..terms)
        .map(|at| json!({"matchLabels": {"app": format!("{namespace}-{name}-{at}")}}))
        .map(|selector| term(&selector, "kubernetes.io/hostname"))
        .map(|term| json!({"weight": 1, "podAffinityTerm": term}))
        .collect();
    pod_with(name, |p| {
        p["metadata"]["namespace"] = json!(namespace);
        p["spec"]["affinity"] =
            json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}});
    })
}

#[test]
fn waiting_pods_with_very_many_terms_keep_no_counters() {
    let mut cluster = cluster(600);
    let before = cluster.heap_bytes();
    let mut waiting = Vec::new();
    for at in 0..20 {
        let pod = shy(&format!("p{at}"), "ns", 2_000);
        let spec = cluster.read_pod(&pod).expect("a pod");
        let program = cluster.compile(&pod).expect("a pod");
        assert_eq!(decide(cluster.view(), &program, &mut Scratch::default()).feasible, 600);
        waiting.push((cluster.rejected(&spec, &program).expect("a pod"), spec));
    }
    cluster.compile(&pod_with("small", |_| ())).expect("a pod");
    assert_eq!((cluster.counter_ids.len(), cluster.view.counts.terms.len()), (0, 0));
    assert!(cluster.view.counts.counters.len() <= 2_000, "places are given again");
    assert!(cluster.classes.iter().all(|class| class.counters.is_empty()));
    let after = cluster.heap_bytes();
    assert_eq!(after.0, before.0);
    assert!(after.1 - before.1 < 2_000 * 200, "{after:?}");
    assert!(waiting.iter().all(|(rejected, _)| rejected.program.pods.preferred.is_empty()));
}

/// Pods that are decided equally with and without kept counters.
fn odd_pods() -> Vec<Pod> {
    let selectors = [
        json!({"matchLabels": {"app": "a0"}}),
        json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a1"]}]}),
        json!({"matchLabels": {"app": "nobody"}}),
        json!({}),
    ];
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let mut pods = Vec::new();
    for (at, selector) in selectors.iter().enumerate() {
        for key in ["zone", "kubernetes.io/hostname", "rack"] {
            let (one, other) = (term(selector, key), term(&selectors[(at + 1) % 4], "zone"));
            let weigh = |term: &Value, weight| json!({"weight": weight, "podAffinityTerm": term});
            let affinity = [
                json!({"podAntiAffinity": {required: [one, other]}}),
                json!({"podAffinity": {required: [one]}}),
                json!({"podAffinity": {preferred: [weigh(&one, 3), weigh(&other, 7)]},
                    "podAntiAffinity": {preferred: [weigh(&other, 9), weigh(&one, 1)]}}),
            ];
            for (kind, affinity) in affinity.into_iter().enumerate() {
                let when = ["DoNotSchedule", "ScheduleAnyway"][at % 2];
                pods.push(pod_with(&format!("p{at}-{key}-{kind}"), |p| {
                    p["metadata"]["labels"] = json!({"app": format!("a{kind}")});
                    p["spec"]["affinity"] = affinity;
                    p["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1,
                        "topologyKey": key, "whenUnsatisfiable": when,
                        "labelSelector": selector}]);
                }));
            }
        }
    }
    pods
}

#[test]
fn terms_beyond_the_limits_are_evaluated_as_those_within() {
    let (mut kept, mut passing) = (cluster(9), cluster(9));
    passing.limit_counters(CounterLimits { pod: 0, ..CounterLimits::default() });
    let mut found = 0;
    for (at, pod) in odd_pods().iter().enumerate() {
        let mut decided = Vec::new();
        for cluster in [&mut kept, &mut passing] {
            let program = cluster.compile(pod).expect("a pod");
            // A class of pods that is newer than the counters is counted too.
            let new = pod_with(&format!("new{at}"), |p| {
                p["metadata"]["labels"] =
                    json!({"app": format!("a{}", at % 4), "new": at.to_string()});
            });
            cluster.assume(&new, &format!("n{}", at % 9)).expect("room");
            let mut scratch = Scratch::default();
            let (outcome, detail) = decide_in_detail(cluster.view(), &program, &[], &mut scratch);
            found += outcome.feasible;
            decided.push((outcome, detail.passing, detail.scores, scratch.total));
        }
        assert_eq!(decided[0], decided[1], "{:?}", pod.metadata.name);
    }
    assert!(kept.counter_ids.len() > 5 && passing.counter_ids.len() == 0 && found > 100);
}

#[test]
fn counters_of_a_namespace_are_limited_until_its_programs_are_dropped() {
    let mut cluster = cluster(3);
    cluster.limit_counters(CounterLimits { namespace: 10, ..CounterLimits::default() });
    let compile = |cluster: &mut Cluster, name: &str, namespace: &str| {
        cluster.compile(&shy(name, namespace, 4)).expect("a pod")
    };
    let many: Vec<_> = (0..5).map(|at| compile(&mut cluster, &format!("p{at}"), "many")).collect();
    let passing: Vec<bool> = many.iter().map(|program| program.is_passing).collect();
    assert_eq!(passing, [false, false, false, true, true]);
    assert!(!compile(&mut cluster, "p", "few").is_passing, "another namespace has its own share");
    cluster.sweep();
    assert!(compile(&mut cluster, "again", "many").is_passing, "they are in use");
    assert!(!compile(&mut cluster, "p0", "many").pods.preferred.is_empty());
    drop(many);
    cluster.sweep();
    assert!(!compile(&mut cluster, "again", "many").is_passing);
    assert_eq!(cluster.counter_ids.len(), 4);
}

#[test]
fn pod_over_the_attempt_budget_leaves_no_counters() {
    let mut cluster = cluster(3);
    for (work, bytes, limit) in [(1_000, u64::MAX, Limit::Work), (u64::MAX, 1_000, Limit::Memory)] {
        let spent = AttemptBudget::new(Limits { work, bytes }, || false);
        let error = cluster.compile_within(&shy("p", "ns", 100), &spent).expect_err("too much");
        assert!(matches!(error, DeltaError::Exhausted(why) if why.limit == limit), "{error}");
    }
    assert_eq!((cluster.counter_ids.len(), cluster.view.counts.counters.len()), (0, 0));
    let spent = AttemptBudget::new(Limits { work: 1_000, bytes: 10_000 }, || false);
    cluster.compile_within(&shy("p", "ns", 4), &spent).expect("few terms cost little");
}

#[test]
fn classes_selected_by_terms_of_a_namespace_are_limited() {
    let mut cluster = cluster(3);
    cluster.limit_counters(CounterLimits { selected: 100, ..CounterLimits::default() });
    for at in 0..20 {
        let other = pod_with(&format!("other{at}"), |p| {
            p["metadata"]["labels"] = json!({"app": format!("other{at}")});
        });
        cluster.assume(&other, "n0").expect("room");
    }
    let wide = |name: &str, namespace: &str| {
        let not = json!({"matchExpressions":
            [{"key": "app", "operator": "NotIn", "values": [format!("{namespace}-{name}")]}]});
        pod_with(name, |p| {
            p["metadata"]["namespace"] = json!(namespace);
            let mut term = term(&not, "zone");
            term["namespaceSelector"] = json!({});
            p["spec"]["affinity"] = json!({"podAffinity":
                {"preferredDuringSchedulingIgnoredDuringExecution":
                    [{"weight": 1, "podAffinityTerm": term}]}});
        })
    };
    let mut placed = Vec::new();
    let refused = loop {
        let pod = wide(&format!("p{}", placed.len()), "wide");
        match cluster.compile(&pod) {
            Ok(_) => placed.push(cluster.assume(&pod, "n1").expect("room")),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, DeltaError::TermsOfNamespace("wide".to_owned()));
    assert!((4..=5).contains(&placed.len()), "{} of 21 classes or more", placed.len());
    assert!(
        cluster
            .compile(&pod_with("p", |p| {
                p["metadata"]["namespace"] = json!("wide");
            }))
            .is_ok(),
        "one without terms"
    );
    assert!(cluster.compile(&wide("p", "other")).is_ok());
    placed.into_iter().for_each(|id| cluster.remove(id));
    cluster.sweep();
    assert!(cluster.compile(&wide("again", "wide")).is_ok());
}

#[test]
fn pod_whose_counters_are_not_kept_is_helped_by_every_deleted_pod() {
    let mut cluster = cluster(2);
    cluster.limit_counters(CounterLimits { pod: 1, ..CounterLimits::default() });
    let pod = shy("p", "ns", 2);
    let (spec, program) = (cluster.read_pod(&pod).expect("p"), cluster.compile(&pod).expect("p"));
    let rejected = cluster.rejected(&spec, &program).expect("a pod");
    let other = cluster.read_pod(&bound("other", "n0")).expect("a pod");
    let gone = HintEvent::PodGone(std::rc::Rc::new(cluster.facts(&other)), "n0".into());
    assert!(cluster.helps(&gone, &rejected, Plugin::InterPodAffinity));
    assert!(!cluster.helps(&gone, &rejected, Plugin::NodePorts), "of ports enough is known");
}

#[test]
fn dropped_counters_are_removed_from_unrelated_pods() {
    let mut cluster = cluster(2);
    let web = cluster.read_pod(&pod_with("web", |_| ())).expect("a pod");
    cluster.place_spec(&web, "n0", true);
    let everything = pod_with("p", |p| {
        let not = |at: usize| {
            json!({"matchExpressions":
            [{"key": "app", "operator": "NotIn", "values": [format!("a{at}")]}]})
        };
        let terms = (0..1_000).map(|at| term(&not(at), "zone"));
        let terms: Vec<Value> =
            terms.map(|term| json!({"weight": 1, "podAffinityTerm": term})).collect();
        p["spec"]["affinity"] =
            json!({"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}});
    });
    let program = cluster.compile(&everything).expect("a pod");
    let counted =
        |cluster: &Cluster| cluster.facts_of(web.key).expect("it is there").counters_len();
    assert_eq!(counted(&cluster), 1_000, "while it is decided");
    drop(program);
    cluster.compile(&pod_with("web2", |_| ())).expect("a pod");
    assert_eq!(counted(&cluster), 0);
}
