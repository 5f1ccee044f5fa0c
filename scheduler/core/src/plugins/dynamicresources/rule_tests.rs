//! DeviceTaintRules.

use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use serde_json::{Value, json};

use super::offer::{Offers, Slice};
use super::rules::{LeanRule, TaintRule};
use super::tests::{exactly, own, read, short, wants, within};
use super::usage::Usage;

fn rule(selector: Value, effect: &str) -> TaintRule {
    let taint = json!({"key": "k", "value": "v", "effect": effect});
    let spec = json!({"deviceSelector": selector, "taint": taint});
    TaintRule::read(&read::<DeviceTaintRule>(json!({"metadata": {"name": "rule"}, "spec": spec})))
}

/// The devices `a` and `b` of the driver `d` in the pools `p` and `q`.
fn offers() -> Offers {
    let mut offers = Offers::default();
    for pool in ["p", "q"] {
        let devices = json!([{"name": "a"}, {"name": "b"}]);
        offers.set(Slice::read(&read(own(pool, devices)), false));
    }
    offers
}

fn first_of(offers: &Offers, request: Value) -> String {
    let claims = wants(json!([exactly("r", request)]));
    short(&within(offers, &Usage::default(), claims, &|| false))
}

#[test]
fn rule_taints_only_devices_that_match_all_its_selector_fields() {
    for (selector, first) in [
        (Value::Null, "Nothing"),
        (json!({}), "Nothing"),
        (json!({"driver": "d"}), "Nothing"),
        (json!({"driver": "other"}), "r=p/a"),
        (json!({"pool": "p"}), "r=q/a"),
        (json!({"pool": "q"}), "r=p/a"),
        (json!({"device": "a"}), "r=p/b"),
        (json!({"device": "z"}), "r=p/a"),
        (json!({"driver": "d", "pool": "p", "device": "a"}), "r=p/b"),
        (json!({"driver": "d", "pool": "q", "device": "a"}), "r=p/a"),
        (json!({"driver": "other", "pool": "p", "device": "a"}), "r=p/a"),
        (json!({"driver": ""}), "r=p/a"),
    ] {
        let mut before = offers();
        before.set_rule("rule", Some(rule(selector.clone(), "NoSchedule")));
        assert_eq!(first_of(&before, json!({})), first, "{selector}");
        let mut after = Offers::default();
        after.set_rule("rule", Some(rule(selector.clone(), "NoSchedule")));
        before.all().for_each(|slice| _ = after.set(Slice::clone(slice)));
        assert_eq!(first_of(&after, json!({})), first, "{selector}, and the slices came later");
    }
}

#[test]
fn the_effect_of_a_rule_counts_as_that_of_a_drivers_taint() {
    for (effect, is_hard) in
        [("None", false), ("Future", false), ("NoSchedule", true), ("NoExecute", true)]
    {
        let mut offers = offers();
        offers.set_rule("rule", Some(rule(Value::Null, effect)));
        let found = first_of(&offers, json!({}));
        assert_eq!(found, if is_hard { "Nothing" } else { "r=p/a" }, "{effect}");
    }
}

#[test]
fn device_is_allocated_if_driver_and_rule_taints_are_tolerated() {
    let taints = json!([{"key": "own", "effect": "NoSchedule"}]);
    let mut offers = Offers::default();
    offers.set(Slice::read(&read(own("p", json!([{"name": "a", "taints": taints}]))), false));
    offers.set_rule("rule", Some(rule(json!({"device": "a"}), "NoExecute")));
    let (own, ruled) =
        (json!({"key": "own", "operator": "Exists"}), json!({"key": "k", "value": "v"}));
    for (tolerations, found) in [
        (json!([own]), "Nothing"),
        (json!([ruled]), "Nothing"),
        (json!([own, ruled]), "r=p/a"),
        (json!([{"operator": "Exists"}]), "r=p/a"),
    ] {
        let request = json!({ "tolerations": tolerations });
        assert_eq!(first_of(&offers, request), found, "{tolerations}");
    }
}

#[test]
fn deleted_rule_removes_only_its_own_taint() {
    let mut offers = offers();
    let of_a = || Some(rule(json!({"device": "a"}), "NoSchedule"));
    offers.set_rule("one", of_a());
    offers.set_rule("two", of_a());
    offers.set_rule("one", None);
    assert_eq!(first_of(&offers, json!({})), "r=p/b", "the other one says so as well");
    offers.set_rule("two", Some(rule(json!({"pool": "p"}), "NoSchedule")));
    assert_eq!(first_of(&offers, json!({})), "r=q/a", "it selects others now");
    offers.set_rule("two", None);
    assert_eq!(first_of(&offers, json!({})), "r=p/a");
}

#[test]
fn rule_update_reports_whether_device_taints_changed() {
    let mut offers = offers();
    let of = |pool: &str, effect: &str| Some(rule(json!({"pool": pool}), effect));
    for (name, rule, changes) in [
        ("one", of("nowhere", "NoSchedule"), false),
        ("one", of("p", "NoSchedule"), true),
        ("one", of("p", "NoSchedule"), false),
        ("one", of("p", "NoExecute"), true),
        ("one", of("q", "NoExecute"), true),
        ("two", of("q", "NoExecute"), true),
        ("one", None, true),
        ("one", None, false),
        ("two", of("nowhere", "NoExecute"), true),
        ("two", None, false),
    ] {
        let shown = format!("{name} {rule:?}");
        assert_eq!(offers.set_rule(name, rule), changes, "{shown}");
    }
    assert_eq!(offers.rules().count(), 0);
}

#[test]
fn rule_projection_keeps_only_metadata_selector_and_taint() {
    let spec = json!({"deviceSelector": {"pool": "p"},
        "taint": {"key": "k", "effect": "NoSchedule", "timeAdded": "2024-01-01T00:00:00Z"}});
    let metadata = json!({"name": "rule", "uid": "u", "resourceVersion": "7"});
    let mut whole = json!({"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule",
        "metadata": metadata, "spec": spec, "status": {"conditions": "not even looked at"}});
    whole["metadata"]["managedFields"] = json!("nor this");
    let text = whole.to_string();
    let read: LeanRule = serde_json::from_str(&text).expect("a rule");
    let read = serde_json::to_value(DeviceTaintRule::from(read)).expect("JSON");
    assert_eq!((&read["metadata"], &read["spec"]), (&metadata, &spec));
}
