//! Limits of rolling updates.

use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{Deployment, RollingUpdate};
use serde_json::{Value, json};

use super::super::limits::{
    Fenceposts, fenceposts, max_replicas, max_unavailable, new_set_replicas,
};
use super::{deployment, set, sets};
use crate::stub_api::kept;

#[test]
fn fenceposts_are_rounded_and_never_both_zero() {
    for (surge, unavailable, desired, expected) in [
        (json!("0%"), json!("0%"), 0, (0, 1)),
        (json!("39%"), json!("39%"), 10, (4, 3)),
        (json!("oops"), json!("39%"), 10, (0, 0)),
        (json!("55%"), json!("urg"), 10, (0, 0)),
        (Value::Null, json!("39%"), 10, (0, 3)),
        (json!("39%"), Value::Null, 10, (4, 0)),
        (Value::Null, Value::Null, 10, (0, 1)),
        (json!("0%"), json!("1%"), 2, (0, 1)),
        (json!("1%"), json!("25%"), 2, (1, 0)),
        (json!(3), json!(2), 10, (3, 2)),
    ] {
        let update =
            RollingUpdate { max_surge: surge, max_unavailable: unavailable, partition: None };
        let expected = Fenceposts { surge: expected.0, unavailable: expected.1 };
        assert_eq!(fenceposts(&update, desired), expected, "{update:?} of {desired}");
    }
}

#[test]
fn unavailable_pods_are_never_more_than_wanted_ones() {
    for (replicas, unavailable, expected) in [
        (10, json!(5), 5),
        (10, json!(10), 10),
        (5, json!(10), 5),
        (0, json!(10), 0),
        (10, json!("50%"), 5),
        (10, json!("100%"), 10),
        (5, json!("100%"), 5),
    ] {
        let value = deployment(replicas, json!(1), unavailable.clone());
        let deployment: KeptObject<Deployment> = kept(&value);
        assert_eq!(max_unavailable(&deployment.spec), expected, "{unavailable} of {replicas}");
    }
    let mut recreate = deployment(10, json!(1), json!(5));
    recreate["spec"]["strategy"]["type"] = "Recreate".into();
    let recreate: KeptObject<Deployment> = kept(&recreate);
    assert_eq!((max_unavailable(&recreate.spec), max_replicas(&recreate.spec)), (0, 10));
}

#[test]
fn largest_replica_counts_wrap_as_in_upstream() {
    let value = deployment(i32::MAX, json!(1), json!(0));
    let deployment: KeptObject<Deployment> = kept(&value);
    assert_eq!(max_replicas(&deployment.spec), i32::MIN);
    assert_eq!(max_unavailable(&deployment.spec), 0);
}

#[test]
fn new_set_grows_to_the_limit_of_max_surge() {
    for (strategy, wanted, current, surge, expected) in
        [("RollingUpdate", 1, 5, 1, 5), ("RollingUpdate", 6, 2, 10, 6), ("Recreate", 3, 1, 1, 3)]
    {
        let mut value = deployment(wanted, json!(surge), json!(1));
        value["spec"]["strategy"]["type"] = strategy.into();
        let deployment: KeptObject<Deployment> = kept(&value);
        let all = sets(&[set("old", "old", 5, 9)]);
        assert_eq!(new_set_replicas(&deployment.spec, &all, current), Ok(expected));
    }
    let mut value = deployment(1, json!(1), json!(1));
    value["spec"]["strategy"]["type"] = "Other".into();
    let deployment: KeptObject<Deployment> = kept(&value);
    assert!(new_set_replicas(&deployment.spec, &[], 0).is_err());
}
