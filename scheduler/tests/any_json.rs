//! Any file content is read as objects or rejected with a message, never with a crash.
#![allow(missing_docs)]

use pintle_sched_core::Profile;
use pintle_scheduler::simulate::load::{self, Dump};
use pintle_scheduler::simulate::place::{Questions, Simulation};
use pintle_scheduler::simulate::progress::Progress;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Any JSON, with the words of the API as frequent keys and values.
fn any_json() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        Just("Node"),
        Just("Pod"),
        Just("List"),
        Just("NodeList"),
        Just("v1"),
        Just("cpu"),
        Just("100m"),
        Just("1Gi"),
        Just("In"),
        Just("NoSchedule"),
        Just(""),
        Just("\u{1F600}"),
    ];
    let key = prop_oneof![
        Just("kind"),
        Just("apiVersion"),
        Just("items"),
        Just("metadata"),
        Just("name"),
        Just("spec"),
        Just("status"),
        Just("allocatable"),
        Just("containers"),
        Just("resources"),
        Just("requests"),
        Just("labels"),
        Just("taints"),
        Just("object"),
        Just("type"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((key.clone(), inner), 0..6)
                .prop_map(|pairs| pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

fn sample() -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels":
            {"kubernetes.io/hostname": "n", "topology.kubernetes.io/zone": "z"}},
         "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
         "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"},
             "images": [{"names": ["x:1"], "sizeBytes": 100000000}]}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d",
            "labels": {"app": "a"}},
         "spec": {"containers": [{"name": "c", "image": "x:1", "ports": [{"containerPort": 1, "hostPort": 1}],
             "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
             "tolerations": [{"operator": "Exists"}],
             "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                 {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}]}},
             "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                 "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}]}}]})
}

/// Replaces the leaf number `at` (counted in order) by `with`.
fn replace(value: &mut Value, at: &mut usize, with: &Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|v| replace(v, at, with)),
        Value::Object(map) => map.values_mut().for_each(|v| replace(v, at, with)),
        leaf => {
            if *at == 0 {
                *leaf = with.clone();
            }
            *at = at.wrapping_sub(1);
        }
    }
}

fn feed(bytes: &[u8]) {
    let mut dump = Dump::default();
    match load::load("any.json", bytes, &mut dump) {
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.starts_with("any.json:") && error.line >= 1 && error.column >= 1,
                "{text}"
            );
        }
        Ok(()) => {
            let progress = Progress::new(false);
            let run = Simulation::run(dump, Profile::default(), &Questions::default(), &progress);
            if let Err(error) = run {
                assert!(!error.to_string().is_empty());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_json_is_read_or_refused_with_a_position(value in any_json()) {
        feed(value.to_string().as_bytes());
    }

    #[test]
    fn dump_with_one_wrong_leaf_is_accepted_or_rejected(at in 0..40usize, with in any_json()) {
        let mut dump = sample();
        replace(&mut dump, &mut at.clone(), &with);
        feed(serde_json::to_string_pretty(&dump).expect("JSON").as_bytes());
    }

    #[test]
    fn a_dump_cut_anywhere_or_with_any_byte_changed_is_refused(at in 0..1500usize, byte in any::<u8>()) {
        let mut bytes = sample().to_string().into_bytes();
        feed(&bytes[..at.min(bytes.len())]);
        let at = at % bytes.len();
        bytes[at] = byte;
        feed(&bytes);
    }
}
