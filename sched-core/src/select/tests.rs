//! Row plugins in addition to columns, and profiles other than the default one.

use std::cell::RefCell;

use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};
use serde_json::json;

use super::*;
use crate::config::{SpreadDefaults, ranks};
use crate::explain;
use crate::filter::status::Code;
use crate::snapshot::tests::{node_with, pod_with};
use crate::{Cluster, Profile};

/// Rejects odd rows, scores the others, and records the rows asked for.
struct Odd(Plugin, RefCell<Vec<u32>>);

impl RowPlugin for Odd {
    fn plugin(&self) -> Plugin {
        self.0
    }

    fn filter(&self, _: &View, _: &Program, row: u32) -> Option<Status> {
        self.1.borrow_mut().push(row);
        let reasons = vec![format!("{} is odd", self.0.name())];
        let code = Code::UnschedulableAndUnresolvable;
        (row % 2 == 1).then_some(Status { plugin: Some(self.0), code, reasons })
    }

    fn score(&self, _: &View, _: &Program, row: u32) -> Option<i64> {
        Some(i64::from(row) * 7 % 101)
    }
}

fn nodes(cluster: &mut Cluster, count: u32) {
    for at in 0..count {
        let node = node_with(&format!("n{at}"), |n| {
            n["metadata"]["labels"]["zone"] = json!(format!("z{}", at % 3));
            n["status"]["allocatable"]["cpu"] = json!((at % 5 + 1).to_string());
        });
        cluster.set_node(&node).expect("node");
    }
}

#[test]
fn plugins_of_single_nodes_leave_the_fast_path_exact() {
    let mut cluster = Cluster::new(Profile::default());
    nodes(&mut cluster, 700);
    let pod = pod_with("p", |p| {
        p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1500m");
    });
    let program = cluster.compile(&pod).expect("pod");
    let claims = Odd(Plugin::DynamicResources, RefCell::default());
    let volumes = Odd(Plugin::VolumeBinding, RefCell::default());
    let plugins: [&dyn RowPlugin; 2] = [&volumes, &claims];
    let (mut fast, mut slow) = (Scratch::default(), Scratch::default());
    let short = decide_with(cluster.view(), &program, &plugins, &mut fast);
    let (long, _) = decide_in_detail(cluster.view(), &program, &plugins, &mut slow);
    assert_eq!(short, long);
    assert_eq!((&fast.feasible, &fast.ties), (&slow.feasible, &slow.ties));
    fast.totals(cluster.view(), &program);
    assert!(fast.feasible.iter().all(|r| fast.total[r as usize] == slow.total[r as usize]));
    assert!(short.feasible > 200 && fast.feasible.iter().all(|row| row % 2 == 0));
    // Their scores count: without them, other nodes win.
    assert_ne!(decide(cluster.view(), &program, &mut fast).best, short.best);
}

#[test]
fn only_feasible_node_is_chosen_despite_an_invalid_preferred_term() {
    let mut cluster = Cluster::new(Profile::default());
    nodes(&mut cluster, 2);
    let requirement = json!({"key": "k", "operator": "Unknown"});
    let term = json!({"weight": 1, "preference": {"matchExpressions": [requirement]}});
    for (cpu, feasible) in [("1500m", 1), ("500m", 2)] {
        let pod = pod_with("p", |p| {
            p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
            p["spec"]["affinity"] = json!({"nodeAffinity":
                {"preferredDuringSchedulingIgnoredDuringExecution": [term]}});
        });
        let program = cluster.compile(&pod).expect("pod");
        let found = decide(cluster.view(), &program, &mut Scratch::default());
        assert_eq!((found.feasible, found.refusal.is_some()), (feasible, feasible == 2));
        assert_eq!(found.first.is_some(), feasible == 1);
    }
}

#[test]
fn a_node_is_rejected_by_the_plugin_that_comes_first() {
    let mut cluster = Cluster::new(Profile::default());
    nodes(&mut cluster, 10);
    // Every node lacks the spread key; those of one CPU lack the CPU as well.
    let pod = pod_with("p", |p| {
        p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1500m");
        p["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "rack",
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}]);
    });
    let program = cluster.compile(&pod).expect("pod");
    let volumes = Odd(Plugin::VolumeBinding, RefCell::default());
    let mut scratch = Scratch::default();
    let (_, detail) = decide_in_detail(cluster.view(), &program, &[&volumes], &mut scratch);
    let statuses = explain::statuses(&cluster, &program, &detail, &mut scratch);
    for (row, status) in &statuses {
        let want = match (row % 5 == 0, row % 2 == 1) {
            (true, _) => Plugin::NodeResourcesFit,
            (_, true) => Plugin::VolumeBinding,
            _ => Plugin::PodTopologySpread,
        };
        assert_eq!(status.plugin, Some(want), "row {row}");
    }
    assert_eq!(statuses.len(), 10);
    let asked: Vec<u32> = (0..10).filter(|row| row % 5 != 0).collect();
    assert_eq!(*volumes.1.borrow(), asked, "volumes of rejected nodes are not checked");
    // One node alone is rejected by the same plugin, in the same words.
    for (row, status) in statuses {
        let alone = explain::status_of_row(&cluster, &program, &[&volumes], row, &mut scratch);
        assert_eq!(alone, Some(status), "row {row}");
    }
    let no_row = explain::status_of_row(&cluster, &program, &[], 10, &mut scratch);
    assert_eq!(no_row, Some(Status::absent()));
}

#[test]
fn a_node_is_rejected_by_the_first_in_the_order_of_the_profile() {
    use Plugin::{
        NodeDeclaredFeatures as Features, NodeResourcesFit as Fit, PodTopologySpread as Spread,
        TaintToleration as Taint, VolumeBinding as Volumes,
    };
    let rejects = |plugin, row: u32| match plugin {
        Fit => row.is_multiple_of(5),
        Taint => row < 5,
        Volumes => row % 2 == 1,
        Spread => row < 8,
        _ => false,
    };
    for order in [
        [Taint, Fit, Volumes, Spread, Features],
        [Fit, Taint, Volumes, Spread, Features],
        [Volumes, Spread, Taint, Fit, Features],
        [Features, Spread, Fit, Volumes, Taint],
    ] {
        let filter_ranks = ranks(order.map(Plugin::name));
        let mut cluster = Cluster::new(Profile { filter_ranks, ..Profile::default() });
        for at in 0..10 {
            let node = node_with(&format!("n{at}"), |n| {
                n["status"]["allocatable"]["cpu"] = json!((at % 5 + 1).to_string());
                if at >= 8 {
                    n["metadata"]["labels"]["rack"] = json!("r");
                }
                if at < 5 {
                    n["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
                }
            });
            cluster.set_node(&node).expect("node");
        }
        let pod = pod_with("p", |p| {
            p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1500m");
            p["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "rack",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}]);
        });
        let program = cluster.compile(&pod).expect("pod");
        let volumes = Odd(Volumes, RefCell::default());
        let mut scratch = Scratch::default();
        let (found, detail) = decide_in_detail(cluster.view(), &program, &[&volumes], &mut scratch);
        assert_eq!(found, decide_with(cluster.view(), &program, &[&volumes], &mut scratch));
        let statuses = explain::statuses(&cluster, &program, &detail, &mut scratch);
        let said: Vec<_> = statuses.iter().map(|(row, s)| (*row, s.plugin)).collect();
        let first = |row| order.into_iter().find(|plugin| rejects(*plugin, row));
        let want: Vec<_> = (0..10).filter_map(|row| Some((row, Some(first(row)?)))).collect();
        assert_eq!(said, want, "{order:?}");
        for (row, status) in statuses {
            let alone = explain::status_of_row(&cluster, &program, &[&volumes], row, &mut scratch);
            assert_eq!(alone, Some(status), "row {row}, {order:?}");
        }
    }
}

/// Limits the nodes to one, whatever plugins the profile has.
struct Only(u32);

impl RowPlugin for Only {
    fn plugin(&self) -> Plugin {
        Plugin::NodeName
    }
    fn always(&self) -> bool {
        true
    }
    fn filter(&self, _: &View, _: &Program, row: u32) -> Option<Status> {
        (row != self.0).then(Status::absent)
    }
    fn score(&self, _: &View, _: &Program, _: u32) -> Option<i64> {
        None
    }
}

#[test]
fn row_plugin_marked_always_filters_although_its_plugin_is_disabled() {
    let mut profile = Profile::default();
    profile.filters[Plugin::NodeName as usize] = false;
    let mut cluster = Cluster::new(profile);
    nodes(&mut cluster, 10);
    let program = cluster.compile(&pod_with("p", |_| ())).expect("pod");
    let mut scratch = Scratch::default();
    let (view, only): (_, &[&dyn RowPlugin]) = (cluster.view(), &[&Only(3)]);
    assert_eq!(decide_with(view, &program, only, &mut scratch).feasible, 1);
    assert_eq!(decide_in_detail(view, &program, only, &mut scratch).0.feasible, 1);
    let alone = |row, scratch: &mut Scratch| rejector(view, &program, only, row, scratch);
    assert_eq!(alone(3, &mut scratch), None);
    assert_eq!(alone(4, &mut scratch), Some(Rejector::OfRows(Status::absent())));
}

#[test]
fn node_checked_alone_accepts_the_same_pods_as_among_all_nodes() {
    let mut cluster = Cluster::new(Profile::default());
    nodes(&mut cluster, 10);
    let pod = pod_with("p", |p| {
        p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1500m");
        p["spec"]["nodeSelector"] = json!({"zone": "z1"});
    });
    let program = cluster.compile(&pod).expect("pod");
    let mut scratch = Scratch::default();
    decide(cluster.view(), &program, &mut scratch);
    let fits: Vec<u32> = scratch.feasible.iter().collect();
    assert_eq!(fits, [1, 4, 7]);
    let alone = |row: &u32| rejector(cluster.view(), &program, &[], *row, &mut scratch).is_none();
    assert_eq!((0..10).filter(alone).collect::<Vec<_>>(), fits);
}

/// Returns a plugin's score of each node: raw and normalised, nothing for rows not scored.
fn scores(cluster: &mut Cluster, pod: &serde_json::Value, plugin: Plugin) -> Vec<(i64, i64)> {
    let pod = serde_json::from_value(pod.clone()).expect("pod");
    let program = cluster.compile(&pod).expect("pod");
    let mut scratch = Scratch::default();
    let fast = decide(cluster.view(), &program, &mut scratch);
    let (slow, detail) = decide_in_detail(cluster.view(), &program, &[], &mut scratch);
    assert_eq!(fast, slow, "with and without details");
    let Some(scores) = &detail.scores[plugin as usize] else { return Vec::new() };
    let of = |row: u32| (scores.raw[row as usize], scores.normalised[row as usize]);
    scratch.feasible.iter().map(of).collect()
}

/// Zones a, b, and a node without; two pods of the workload in a.
fn zones(profile: Profile) -> Cluster {
    let mut cluster = Cluster::new(profile);
    for (name, zone) in [("a", Some("a")), ("b", Some("b")), ("none", None)] {
        let node = node_with(name, |n| {
            zone.iter().for_each(|z| n["metadata"]["labels"]["zone"] = json!(z));
            n["metadata"]["labels"]["pool"] = json!(name);
        });
        cluster.set_node(&node).expect("node");
    }
    let service = json!({"metadata": {"name": "s", "namespace": "ns"},
        "spec": {"selector": {"app": "web"}}});
    cluster.set_service(&serde_json::from_value(service).expect("service"));
    for name in ["one", "two"] {
        cluster.assume(&pod_with(name, |_| ()), "a").expect("room");
    }
    cluster
}

fn list(action: &str, max_skew: i32) -> Profile {
    let constraint = TopologySpreadConstraint {
        max_skew,
        topology_key: "zone".into(),
        when_unsatisfiable: action.into(),
        ..TopologySpreadConstraint::default()
    };
    Profile { spread_defaults: SpreadDefaults::List(vec![constraint]), ..Profile::default() }
}

fn plain() -> serde_json::Value {
    serde_json::to_value(pod_with("new", |_| ())).expect("pod")
}

// From scoring.go: two domains weigh ln(2 + 2); zone a has 2 * 1.386 + (2 - 1) = 3.77, rounded 4,
// zone b 1, and of 4 and 1 they get 100 * (4 + 1 - s) / 4. A node without the key takes no part.
#[test]
fn a_list_of_default_constraints_scores_as_upstream_does() {
    let mut cluster = zones(list("ScheduleAnyway", 2));
    let found = scores(&mut cluster, &plain(), Plugin::PodTopologySpread);
    assert_eq!(found, [(4, 25), (1, 100), (0, 0)]);
    // No workload selects this one: it has no defaults.
    let mut other = plain();
    other["metadata"]["labels"] = json!({"app": "other"});
    assert_eq!(scores(&mut cluster, &other, Plugin::PodTopologySpread), []);
    // A pod with constraints of its own has no defaults either.
    let mut own = plain();
    own["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "pool",
        "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "web"}}}]);
    // Three domains weigh ln(3 + 2): 2 * 1.609 = 3.2 and 0.
    let found = scores(&mut cluster, &own, Plugin::PodTopologySpread);
    assert_eq!(found, [(3, 0), (0, 100), (0, 100)]);
}

// From filtering.go: 2 + 1 - 0 is above the skew in a, 0 + 1 - 0 is not in b.
#[test]
fn a_list_of_default_constraints_filters_as_upstream_does() {
    for (max_skew, rows) in [(1, &[1][..]), (2, &[1]), (3, &[0, 1])] {
        let mut cluster = zones(list("DoNotSchedule", max_skew));
        let pod = serde_json::from_value(plain()).expect("pod");
        let program = cluster.compile(&pod).expect("pod");
        let mut scratch = Scratch::default();
        decide(cluster.view(), &program, &mut scratch);
        assert_eq!(scratch.feasible.iter().collect::<Vec<_>>(), rows, "skew {max_skew}");
    }
}

#[test]
fn added_affinity_filters_and_scores_beside_the_pods_own() {
    let within = |pools: serde_json::Value| {
        let one = json!({"key": "pool", "operator": "In", "values": pools});
        json!({"matchExpressions": [one]})
    };
    let preferred = |weight: i32, pools: serde_json::Value| {
        let one = json!({"weight": weight, "preference": within(pools)});
        json!([one])
    };
    let added = json!({
        "requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [within(json!(["a", "b"]))]},
        "preferredDuringSchedulingIgnoredDuringExecution": preferred(30, json!(["b"]))});
    let added: NodeAffinity = serde_json::from_value(added).expect("affinity");
    let mut cluster = zones(Profile { added_affinity: Some(added), ..Profile::default() });
    assert_eq!(scores(&mut cluster, &plain(), Plugin::NodeAffinity), [(0, 0), (30, 100)]);
    // 100 * 30 / 40 with 40 of the pod's own.
    let mut own = plain();
    own["spec"]["affinity"]["nodeAffinity"] = json!({
        "preferredDuringSchedulingIgnoredDuringExecution": preferred(40, json!(["a"]))});
    assert_eq!(scores(&mut cluster, &own, Plugin::NodeAffinity), [(40, 100), (30, 75)]);
    // No node is left: the profile's required affinity is checked first.
    let mut selecting = plain();
    selecting["spec"]["nodeSelector"] = json!({"pool": "none"});
    let pod = serde_json::from_value(selecting).expect("pod");
    let program = cluster.compile(&pod).expect("pod");
    let mut scratch = Scratch::default();
    let (_, detail) = decide_in_detail(cluster.view(), &program, &[], &mut scratch);
    let statuses = explain::statuses(&cluster, &program, &detail, &mut scratch);
    let reasons: Vec<&str> = statuses.iter().map(|(_, s)| s.reasons[0].as_str()).collect();
    let own = "node(s) didn't match Pod's node affinity/selector";
    assert_eq!(reasons, [own, own, "node(s) didn't match scheduler-enforced node affinity"]);
}

#[test]
fn every_strategy_takes_the_fast_path_to_the_same_totals() {
    use crate::config::Strategy::{LeastAllocated, MostAllocated, RequestedToCapacityRatio};
    let gpu = || vec![("cpu".to_owned(), 1), ("example.com/gpu".to_owned(), 3)];
    let pair = || vec![("cpu".to_owned(), 2), ("memory".to_owned(), 1)];
    let shape = RequestedToCapacityRatio(vec![(0, 2), (50, 10), (100, 0)]);
    for (strategy, fit_resources) in [
        (LeastAllocated, gpu()),
        (MostAllocated, pair()),
        (MostAllocated, gpu()),
        (shape.clone(), pair()),
        (shape, gpu()),
    ] {
        let balanced_resources = fit_resources.iter().map(|(name, _)| name.clone()).collect();
        let profile = Profile { strategy, fit_resources, balanced_resources, ..Profile::default() };
        let mut cluster = Cluster::new(profile.clone());
        for at in 0..600u32 {
            let node = node_with(&format!("n{at}"), |n| {
                n["status"]["allocatable"]["cpu"] = json!((at % 7 + 1).to_string());
                if at % 3 == 0 {
                    n["status"]["allocatable"]["example.com/gpu"] = json!("8");
                }
            });
            cluster.set_node(&node).expect("node");
        }
        let pod = pod_with("p", |p| {
            p["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = json!("1");
        });
        let program = cluster.compile(&pod).expect("pod");
        let (mut fast, mut slow) = (Scratch::default(), Scratch::default());
        let short = decide(cluster.view(), &program, &mut fast);
        fast.totals(cluster.view(), &program);
        let (long, detail) = decide_in_detail(cluster.view(), &program, &[], &mut slow);
        assert_eq!(short, long, "{profile:?}");
        assert_eq!(short.feasible, 200, "those with a GPU");
        let fit = detail.scores[Plugin::NodeResourcesFit as usize].as_ref().expect("scored");
        for row in slow.feasible.iter() {
            assert_eq!(fast.total[row as usize], slow.total[row as usize], "{profile:?}");
            let by_row = resources::fit_score(cluster.view(), &program, row);
            assert_eq!(fit.raw[row as usize], by_row, "{profile:?} row {row}");
        }
    }
}

/// Nodes of three zones, of which some lack one label or two share a hostname where `odd`.
fn zoned(odd: bool) -> Cluster {
    let mut cluster = Cluster::new(Profile::default());
    for at in 0..300 {
        let node = node_with(&format!("n{at}"), |n| {
            let labels = &mut n["metadata"]["labels"];
            labels["zone"] = json!(format!("z{}", at % 3));
            labels["disk"] = json!(["ssd", "hdd"][at % 2]);
            if odd && at % 11 == 0 {
                labels
                    .as_object_mut()
                    .expect("labels")
                    .remove(["zone", "kubernetes.io/hostname"][at % 2]);
            } else if odd && at == 7 {
                labels["kubernetes.io/hostname"] = json!("n8");
            }
        });
        cluster.set_node(&node).expect("node");
    }
    cluster
}

/// A pod that is spread, attracted and repelled by hostname and zone, as the number says.
fn social(name: &str, kind: usize) -> k8s_openapi::api::core::v1::Pod {
    let web = json!({"matchLabels": {"app": "web"}});
    let spread = |key: &str, skew: i32| {
        json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": web})
    };
    let term = |key: &str| json!({"topologyKey": key, "labelSelector": web});
    let weighted = |weight: i32, key| json!([{"weight": weight, "podAffinityTerm": term(key)}]);
    let (host, preferred) =
        ("kubernetes.io/hostname", "preferredDuringSchedulingIgnoredDuringExecution");
    pod_with(name, |p| {
        let spec = &mut p["spec"];
        match kind {
            0 => spec["topologySpreadConstraints"] = json!([spread(host, 3), spread("zone", 5)]),
            1 => spec["topologySpreadConstraints"] = json!([spread("zone", 1), spread(host, 1)]),
            2 => spec["topologySpreadConstraints"] = json!([spread(host, 1), spread(host, 2)]),
            3 => spec["affinity"]["podAntiAffinity"][preferred] = weighted(70, host),
            4 => {
                spec["affinity"]["podAffinity"][preferred] = weighted(30, "zone");
                spec["affinity"]["podAntiAffinity"][preferred] = weighted(9, host);
            }
            5 => {
                spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                    json!([term(host)]);
            }
            6 => {
                spec["nodeSelector"] = json!({"disk": "ssd"});
                spec["topologySpreadConstraints"] = json!([spread(host, 2), spread("zone", 2)]);
            }
            _ => {}
        }
    })
}

/// Places pods of two kinds, and decides for pods of all kinds meanwhile; returns the highest
/// spread score of a node.
fn assert_counts_equal_columns(cluster: &mut Cluster, placed: [usize; 2], pods: usize) -> i64 {
    let (mut fast, mut slow) = (Scratch::default(), Scratch::default());
    let mut most = 0;
    for at in 0..pods {
        // Two nodes that may share a hostname first.
        let node = if at < 4 { 7 + at % 2 } else { (at * at + at / 7) % 300 };
        _ = cluster.assume(&social(&format!("p{at}"), placed[at % 2]), &format!("n{node}"));
        if at > 5 && at % 61 != 0 {
            continue;
        }
        for kind in 0..8 {
            let program = cluster.compile(&social("new", kind)).expect("pod");
            let short = decide(cluster.view(), &program, &mut fast);
            let (long, detail) = decide_in_detail(cluster.view(), &program, &[], &mut slow);
            assert_eq!(short, long, "{kind} after {at} pods of {placed:?}");
            assert_eq!((&fast.feasible, &fast.ties), (&slow.feasible, &slow.ties), "{kind}");
            let totals = fast.totals(cluster.view(), &program);
            for row in slow.feasible.iter() {
                let same = totals[row as usize] == slow.total[row as usize];
                assert!(same, "{kind} on row {row} after {at} pods of {placed:?}");
            }
            let spread = detail.scores.get(Plugin::PodTopologySpread as usize);
            let raw = spread.and_then(|s| s.as_ref()).map(|s| &s.raw);
            most = most.max(raw.and_then(|raw| raw.iter().max()).copied().unwrap_or(0));
        }
    }
    most
}

#[test]
fn scores_by_count_equal_columns_however_many_pods_there_are() {
    let mut most = 0;
    for placed in [[0, 7], [3, 3], [7, 3], [4, 7], [3, 4], [5, 7]] {
        for odd in [false, true] {
            most = most.max(assert_counts_equal_columns(&mut zoned(odd), placed, 500));
        }
    }
    assert!(most > 10, "nodes have several pods: {most}");
}

#[test]
fn identical_pods_that_only_some_nodes_count_for_are_rescored_exactly() {
    for odd in [false, true] {
        let mut cluster = zoned(odd);
        let (program, mut scratch) = {
            let pod = social("same", 6);
            (cluster.compile(&pod).expect("pod"), Scratch::default())
        };
        for at in 0..40 {
            cluster.assume(&social(&format!("p{at}"), 7), &format!("n{}", at * 7)).expect("room");
        }
        let repeat = crate::repeat::Repeat::new(cluster.view(), &program, &mut scratch);
        let mut repeat = repeat.expect("a pod without affinity");
        for at in 0..600 {
            let whole = decide(cluster.view(), &program, &mut scratch);
            let found = repeat.decide(cluster.view());
            assert_eq!((found.best, found.ties), (whole.best, whole.ties), "{at}, odd: {odd}");
            let row = whole.first.expect("room");
            let node = cluster.node_name(row).to_owned();
            cluster.assume(&social(&format!("same{at}"), 6), &node).expect("room");
            assert!(repeat.changed(cluster.view(), row));
        }
    }
}

#[test]
fn toleration_operators_compare_numbers_only_if_the_feature_is_on() {
    let numbers = ["-5", "0", "950", "9223372036854775807"];
    let no_numbers = ["", "-", "-0", "+950", "0950", "1e3", "9223372036854775808", "many"];
    let fit = |compares: bool, effect: &str, op: &str, limit: &str| {
        let profile = Profile { compares_tolerations: compares, ..Profile::default() };
        let mut cluster = Cluster::new(profile);
        for value in numbers.iter().chain(&no_numbers) {
            let node = node_with(&format!("n{value}"), |n| {
                n["spec"]["taints"] = json!([{"key": "k", "value": value, "effect": effect}]);
            });
            cluster.set_node(&node).expect("node");
        }
        let pod = pod_with("p", |p| {
            p["spec"]["tolerations"] = json!([{"key": "k", "operator": op, "value": limit}]);
        });
        let program = cluster.compile(&pod).expect("pod");
        let mut scratch = Scratch::default();
        decide(cluster.view(), &program, &mut scratch);
        scratch.ties.iter().map(|row| numbers.get(row as usize).copied()).collect::<Vec<_>>()
    };
    for effect in ["NoSchedule", "NoExecute", "PreferNoSchedule"] {
        assert_eq!(fit(true, effect, "Gt", "0"), [Some("950"), Some("9223372036854775807")]);
        assert_eq!(fit(true, effect, "Lt", "950"), [Some("-5"), Some("0")]);
        assert_eq!(fit(true, effect, "Lt", "-4"), [Some("-5")]);
    }
    for (compares, limit) in [(false, "0"), (true, "many"), (true, "00")] {
        assert_eq!(fit(compares, "NoSchedule", "Gt", limit), []);
    }
    assert_eq!(fit(true, "NoSchedule", "Equal", "many"), [None]);
}
