//! Cost of names that one node or pod has alone: labels, extended resources, namespaces.

use serde_json::{Map, Value, json};

use super::Cluster;
use super::tests::{bound, node, node_with, pod_with};
use crate::columns::counters::Scope;
use crate::intern::Str;
use crate::select::Scratch;
use crate::{Profile, decide};

/// A map with the same value for each name.
fn all(count: usize, value: &Value) -> Value {
    let names = (0..count).map(|at| (format!("x.y/{at}"), value.clone()));
    Value::Object(names.collect::<Map<_, _>>())
}

#[test]
fn zero_request_creates_no_column_and_a_rare_resource_uses_little_memory() {
    let mut cluster = Cluster::new(Profile::default());
    for at in 0..2_000 {
        cluster.set_node(&node(&format!("n{at}"))).expect("node");
    }
    let asking = |amount: &str| {
        let mut pod = bound("p", "n300");
        let all = all(10_000, &json!(amount));
        let container = &mut pod.spec.as_mut().expect("spec").containers[0];
        container.resources = serde_json::from_value(json!({"requests": all})).expect("resources");
        pod
    };
    let before = cluster.view().heap_bytes();
    cluster.set_pod(&asking("0")).expect("pod");
    assert_eq!(cluster.view().sparse.scalars.iter().count(), 0);
    cluster.set_pod(&asking("1")).expect("pod");
    assert_eq!(cluster.view().sparse.scalars.iter().count(), 10_000);
    let more = cluster.view().heap_bytes() - before;
    assert!(more < 10_000 * 200, "{more} bytes");
    cluster.remove_pod(&asking("1")).expect("there");
    cluster.sweep();
    assert_eq!(cluster.view().sparse.scalars.iter().count(), 0);
}

#[test]
fn a_label_that_only_one_node_has_costs_no_column() {
    let mut cluster = Cluster::new(Profile::default());
    for at in 0..5_000 {
        cluster.set_node(&node(&format!("n{at}"))).expect("node");
    }
    let own = |value: &str| {
        node_with("n4999", |node| node["metadata"]["labels"] = all(20_000, &json!(value)))
    };
    let before = cluster.view().heap_bytes();
    for value in ["1", "2", "3"] {
        cluster.set_node(&own(value)).expect("node");
        let more = cluster.view().heap_bytes() - before;
        assert!(more < 20_000 * 300, "{more} bytes");
    }
    cluster.set_node(&node("n4999")).expect("node");
    assert!(cluster.view().heap_bytes() <= before);
}

/// Returns the nodes where a pod with this requirement on label `tier` fits.
fn fitting(cluster: &mut Cluster, operator: &str, values: &[&str]) -> Vec<u32> {
    let mut asks = json!({"key": "tier", "operator": operator});
    if !values.is_empty() {
        asks["values"] = json!(values);
    }
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [asks]}]});
    let pod = pod_with("p", |pod| {
        pod["spec"]["affinity"] =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
    });
    let program = cluster.compile(&pod).expect("pod");
    let mut scratch = Scratch::default();
    decide(cluster.view(), &program, &mut scratch);
    scratch.feasible.iter().collect()
}

#[test]
fn rare_label_matches_like_a_common_label() {
    // A fourth of the nodes has it: a list in a small cluster, a column in a larger one.
    for nodes in [20_u32, 100] {
        let mut cluster = Cluster::new(Profile::default());
        let tier = |row: u32| row.is_multiple_of(4).then_some(row % 12);
        for row in 0..nodes {
            let labelled = node_with(&format!("n{row}"), |node| {
                if let Some(tier) = tier(row) {
                    node["metadata"]["labels"]["tier"] = json!(tier.to_string());
                }
            });
            cluster.set_node(&labelled).expect("node");
        }
        // One node loses it, and one comes back.
        cluster.set_node(&node("n4")).expect("node");
        cluster.remove_node("n8").expect("there");
        let eighth = node_with("n8", |node| node["metadata"]["labels"]["tier"] = json!("8"));
        cluster.set_node(&eighth).expect("node");
        let tier = |row: u32| tier(row).filter(|_| row != 4);
        type Is = fn(Option<u32>) -> bool;
        let cases: [(&str, &[&str], Is); 6] = [
            ("Exists", &[], |tier| tier.is_some()),
            ("DoesNotExist", &[], |tier| tier.is_none()),
            ("In", &["0", "8"], |tier| matches!(tier, Some(0 | 8))),
            ("NotIn", &["0", "8"], |tier| !matches!(tier, Some(0 | 8))),
            ("Gt", &["3"], |tier| tier.is_some_and(|tier| tier > 3)),
            ("Lt", &["3"], |tier| tier.is_some_and(|tier| tier < 3)),
        ];
        let key = cluster.interner.find("tier").expect("it is named");
        assert_eq!(cluster.view().keys.find(key).is_some(), nodes == 100);
        for counts in [false, true] {
            if counts {
                // A counter by the key makes a column.
                cluster.key(key);
                assert!(cluster.view().keys.rare(key).is_empty());
            }
            for (operator, values, is) in cases {
                let want: Vec<u32> = (0..nodes).filter(|row| is(tier(*row))).collect();
                assert_eq!(fitting(&mut cluster, operator, values), want, "{operator} {nodes}");
            }
        }
        (0..nodes).for_each(|row| cluster.remove_node(&format!("n{row}")).expect("there"));
        assert_eq!(cluster.view().keys.rare(key).len(), 0);
    }
}

#[test]
fn affinity_terms_of_a_pod_with_equal_namespaces_share_one_namespace_list() {
    let mut cluster = Cluster::new(Profile::default());
    for at in 0..300 {
        let namespace = json!({"metadata": {"name": format!("n{at}"), "labels": {"of": "all"}}});
        cluster.set_namespace(&serde_json::from_value(namespace).expect("namespace"));
    }
    let term = |at: usize| {
        json!({"weight": 1, "podAffinityTerm": {"topologyKey": "zone",
            "labelSelector": {"matchLabels": {"app": at.to_string()}},
            "namespaceSelector": {"matchLabels": {"of": "all"}}}})
    };
    let pod = pod_with("p", |pod| {
        pod["spec"]["affinity"] = json!({"podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution":
                (0..100).map(term).collect::<Vec<_>>()}});
    });
    let _held = cluster.compile(&pod).expect("pod");
    let lists: std::collections::HashSet<*const Str> = cluster
        .counter_ids
        .iter()
        .filter_map(|(key, _)| match &key.all[0].scope {
            Scope::These(list) => Some(list.as_ptr()),
            Scope::All => None,
        })
        .collect();
    assert_eq!((cluster.counter_ids.len(), lists.len()), (100, 1));
    // A pod with another label selects none of them.
    let key = cluster.interner.find("app").expect("it is named");
    let (value, namespace) = (cluster.interner.intern("web"), cluster.interner.intern("ns"));
    assert_eq!(cluster.counter_ids.candidates(namespace, &[(key, value)]).count(), 0);
}
