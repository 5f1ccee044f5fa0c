//! List attributes, behind their feature gate.
// k8s: structured/internal/allocatortesting/allocator_testing.go, cel/compile_test.go

use serde_json::{Value, json};

use super::offer::{Offers, Slice};
use super::selectors::Selectors;
use super::tests::{claim, exactly, own, read, selected, short, wants};
use super::usage::Usage;

/// Allocates a claim from these devices, with the gate for list attributes on or off.
fn get(lists: bool, devices: &Value, devices_of_claim: Value) -> String {
    let mut offers = Offers::default();
    offers.set(Slice::read(&read(own("p", devices.clone())), lists));
    let claims = vec![claim("claim", devices_of_claim)];
    let (selectors, usage) = (Selectors::new(lists), Usage::default());
    short(&selected(&selectors, &offers, &usage, claims, &|| false))
}

/// Devices `a`, `b` and so on with an attribute each.
fn devices(attributes: &[Value]) -> Value {
    let names = ["a", "b", "c", "d"];
    let all = attributes.iter().zip(names);
    all.map(|(one, name)| json!({"name": name, "attributes": {"x": one}})).collect()
}

/// Requests for one device each, and a constraint of all.
fn constrained(count: usize, kind: &str) -> Value {
    let request = |at: usize| exactly(&format!("r{at}"), json!({}));
    json!({"requests": (0..count).map(request).collect::<Vec<_>>(), "constraints": [{kind: "d/x"}]})
}

fn texts(all: &[&str]) -> Value {
    json!({ "strings": all })
}

#[test]
fn devices_that_match_have_a_value_in_common() {
    let one = |text: &str| json!({ "string": text });
    for (attributes, count, found) in [
        (vec![one("u"), one("u")], 2, "r0=p/a r1=p/b"),
        (vec![one("u"), one("v")], 2, "Nothing"),
        (vec![texts(&["u", "v"]), texts(&["v", "w"])], 2, "r0=p/a r1=p/b"),
        (vec![texts(&["u", "v"]), texts(&["w"])], 2, "Nothing"),
        (vec![texts(&["u", "v"]), texts(&["v", "w"]), texts(&["w", "u"])], 3, "Nothing"),
        (vec![one("u"), texts(&["u", "v"])], 2, "r0=p/a r1=p/b"),
        (vec![one("u"), texts(&["u", "v"]), texts(&["v", "w"])], 3, "Nothing"),
        (vec![one("u"), texts(&["v"]), texts(&["w", "u"])], 2, "r0=p/a r1=p/c"),
        (vec![json!({"ints": [0, 1]}), json!({"ints": [1, 2]})], 2, "r0=p/a r1=p/b"),
        (vec![json!({"ints": [0, 1]}), json!({"int": 2})], 2, "Nothing"),
        (vec![json!({"bools": [true, false]}), json!({"bools": [true]})], 2, "r0=p/a r1=p/b"),
        (vec![json!({"versions": ["1.0.0"]}), json!({"version": "1.0.0"})], 2, "r0=p/a r1=p/b"),
        (vec![json!({"versions": ["1.0.0"]}), texts(&["1.0.0"])], 2, "Nothing"),
        (vec![json!({}), one("u"), one("u")], 2, "r0=p/b r1=p/c"),
    ] {
        let asked = constrained(count, "matchAttribute");
        assert_eq!(get(true, &devices(&attributes), asked), found, "{attributes:?}");
    }
}

#[test]
fn devices_that_are_distinct_have_no_value_in_common() {
    for (attributes, count, found) in [
        (vec![texts(&["u", "v"]), texts(&["w"])], 2, "r0=p/a r1=p/b"),
        (vec![texts(&["u", "v"]), texts(&["v", "w"])], 2, "Nothing"),
        (vec![texts(&["u"]), texts(&["v"]), texts(&["w"])], 3, "r0=p/a r1=p/b r2=p/c"),
        (vec![texts(&["u"]), texts(&["v"]), texts(&["w", "u"])], 3, "Nothing"),
        (vec![texts(&["u"]), texts(&["u", "v"]), texts(&["v"])], 2, "r0=p/a r1=p/c"),
        (vec![json!({"int": 1}), json!({"ints": [1, 2]})], 2, "Nothing"),
        (vec![json!({"int": 1}), json!({"strings": ["1"]})], 2, "r0=p/a r1=p/b"),
        (vec![json!({}), texts(&["u"])], 2, "r0=p/a r1=p/b"),
    ] {
        let asked = constrained(count, "distinctAttribute");
        assert_eq!(get(true, &devices(&attributes), asked), found, "{attributes:?}");
    }
}

#[test]
fn common_list_values_are_not_restored_when_one_device_is_removed() {
    let attributes = [texts(&["u", "v"]), texts(&["u"]), texts(&["v"]), texts(&["v"])];
    // `a` and `b` share `u`, and no third device has it; `v` is reconsidered only when `a` is
    // removed.
    let found = get(true, &devices(&attributes), constrained(3, "matchAttribute"));
    assert_eq!(found, "r0=p/c r1=p/a r2=p/d");
    let found = get(true, &devices(&attributes), constrained(2, "matchAttribute"));
    assert_eq!(found, "r0=p/a r1=p/b");
}

#[test]
fn selectors_evaluate_list_attributes() {
    let attributes = json!({"texts": {"strings": ["u", "v"]}, "ints": {"ints": [1, 2]},
        "bools": {"bools": [true]}, "versions": {"versions": ["1.2.3", "2.0.0"]},
        "text": {"string": "u"}});
    let all = json!([{"name": "a", "attributes": attributes}]);
    let compiles = "Error(\"claim ns/claim: selector #0: CEL compile error: ";
    let runs = "Error(\"claim ns/claim: selector #0: CEL runtime error: ";
    for (text, found) in [
        ("X.texts.includes('v')", "r=p/a"),
        ("X.texts.includes('w')", "Nothing"),
        ("X.text.includes('u') && !X.text.includes('v')", "r=p/a"),
        ("X.ints.includes(2) && X.ints.includes(2.0) && !X.ints.includes('2')", "r=p/a"),
        ("X.versions.includes(semver('2.0.0'))", "r=p/a"),
        ("'u' in X.texts && X.texts[1] == 'v' && X.texts.size() == 2", "r=p/a"),
        ("X.texts.exists(t, t.startsWith('v')) && X.ints.all(n, n > 0)", "r=p/a"),
        ("X.versions.exists(v, v.isGreaterThan(semver('1.9.0')))", "r=p/a"),
        ("X.bools[0] && X.ints == [1, 2]", "r=p/a"),
        ("lists.range(48).includes(48)", "Nothing"),
        ("lists.range(49).includes(47)", "r=p/a"),
    ] {
        assert_eq!(get(true, &all, selecting(text)), found, "{text}");
    }
    for (text, why) in [
        ("X.texts", format!("{runs}CEL result of type list could not be converted to bool")),
        (
            "lists.range(49).includes(48)",
            format!("{runs}'includes' function cannot be applied to lists longer than 48 values"),
        ),
        ("includes(X.texts, 'u')", format!("{compiles}compilation failed: ERROR: <input>: undecl")),
    ] {
        let found = get(true, &all, selecting(text));
        assert!(found.starts_with(&why), "{text}: {found}");
    }
}

/// A request with a selector.
fn selecting(text: &str) -> Value {
    let text = text.replace("X.", "device.attributes['d'].");
    json!({"requests": [exactly("r", json!({"selectors": [{"cel": {"expression": text}}]}))]})
}

#[test]
fn list_attributes_are_unsupported_without_the_feature_gate() {
    let all = devices(&[texts(&["u"]), texts(&["u"])]);
    let found = get(false, &all, selecting("true"));
    let why = "CEL runtime error: attribute x: unsupported attribute value";
    assert!(found.contains(why), "{found}");
    let found = get(false, &all, selecting("X.x.includes('u')"));
    assert!(found.contains("undeclared reference to 'includes' (in container '')"), "{found}");
    assert_eq!(get(false, &all, constrained(2, "matchAttribute")), "Nothing");
    let scalars = devices(&[json!({"string": "u"}), json!({"string": "v"})]);
    let asked = constrained(2, "distinctAttribute");
    assert_eq!(get(false, &scalars, asked), "r0=p/a r1=p/b");
}

#[test]
fn a_list_with_a_version_that_is_none_is_no_value() {
    let all = devices(&[json!({"versions": ["1.0.0", "one"]})]);
    let found = get(true, &all, selecting("true"));
    assert!(found.contains("attribute x: parse semantic version: "), "{found}");
    let plain = wants(json!([exactly("r", json!({}))]));
    let mut offers = Offers::default();
    offers.set(Slice::read(&read(own("p", all)), true));
    let found = selected(&Selectors::new(true), &offers, &Usage::default(), plain, &|| false);
    assert_eq!(short(&found), "r=p/a", "a request without selectors gets it");
}
