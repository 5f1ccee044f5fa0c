//! What names that one node or pod has alone cost: labels, extended resources, namespaces.

use serde_json::{Map, Value, json};

use super::Cluster;
use super::tests::{bound, node};
use crate::Profile;

/// Each name with the same value.
fn all(count: usize, value: &Value) -> Value {
    let names = (0..count).map(|at| (format!("x.y/{at}"), value.clone()));
    Value::Object(names.collect::<Map<_, _>>())
}

#[test]
fn a_resource_of_which_a_pod_asks_for_nothing_has_no_column_and_another_is_short() {
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
    assert_eq!(cluster.view().scalars.iter().count(), 0);
    cluster.set_pod(&asking("1")).expect("pod");
    assert_eq!(cluster.view().scalars.iter().count(), 10_000);
    let more = cluster.view().heap_bytes() - before;
    assert!(more < 10_000 * 200, "{more} bytes");
    cluster.remove_pod(&asking("1")).expect("there");
    cluster.sweep();
    assert_eq!(cluster.view().scalars.iter().count(), 0);
}
