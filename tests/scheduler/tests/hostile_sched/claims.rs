//! Claims of devices: expressions that the API server admits, and searches without an end.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use pintle_testbed::attacks;
use serde_json::{Value, json};

use crate::ground::{AttackedCluster, pod};

attacks!(AttackedCluster, "claims":
    precision_beyond_what_the_standard_library_formats,
    exponents_of_the_same_precision,
    lists_without_an_order,
    doubled_lists_compared,
    doubled_lists_as_text,
    doubled_lists_flattened,
    texts_of_gigabytes,
    a_regex_of_seconds,
    a_regex_of_seconds_in_a_hundred_pods,
    loops_within_loops,
    a_search_without_an_end,
    a_hundred_searches_without_an_end,
    one_claim_named_many_times,
);

/// A claim with one device that an expression chooses.
fn chosen(name: &str, expression: &str) -> Value {
    let selectors = json!([{"cel": {"expression": expression}}]);
    let exactly = json!({"deviceClassName": "gpu", "count": 1, "selectors": selectors});
    claim(name, json!([{"name": "r", "exactly": exactly}]))
}

fn claim(name: &str, requests: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
}

/// A pod that uses claims.
fn user(name: &str, claims: &[&str]) -> Value {
    let named = claims.iter().enumerate();
    let named =
        named.map(|(at, claim)| json!({"name": format!("c{at}"), "resourceClaimName": claim}));
    pod(name, json!({"resourceClaims": named.collect::<Vec<Value>>()}))
}

/// Pods with claims that have this expression, each answered in the end.
fn evaluate(ground: &mut AttackedCluster, expression: &str, pods: usize) {
    let names: Vec<String> = (0..pods).map(|at| format!("p{at}")).collect();
    ground.create::<ResourceClaim>(names.iter().map(|name| chosen(name, expression)).collect());
    ground.create::<Pod>(names.iter().map(|name| user(name, &[name])).collect());
    ground.bystander("beside the expression");
    let answers = ground.are_answered(&[&names[0]]);
    eprintln!("    {answers:?}");
}

/// `cel.bind(n0, FIRST, cel.bind(n1, [n0, n0], .. LAST))`: a value of 2^levels parts in so many
/// lists.
fn doubled(levels: usize, last: impl Fn(&str) -> String) -> String {
    let mut text = String::new();
    for at in 0..levels {
        let value = match at {
            0 => "[0, 0]".to_owned(),
            _ => format!("[n{0}, n{0}]", at - 1),
        };
        text += &format!("cel.bind(n{at}, {value}, ");
    }
    text + &last(&format!("n{}", levels - 1)) + &")".repeat(levels)
}

/// A text of `32 << doublings` bytes, as `t`, in `body`.
fn long_text(doublings: usize, body: &str) -> String {
    let mut text = format!("cel.bind(t0, '{}', ", "a".repeat(32));
    for at in 1..=doublings {
        text += &format!("cel.bind(t{at}, t{0} + t{0}, ", at - 1);
    }
    text + &body.replace("$t", &format!("t{doublings}")) + &")".repeat(doublings + 1)
}

fn precision_beyond_what_the_standard_library_formats(ground: &mut AttackedCluster) {
    evaluate(ground, "'%.65536f'.format([1.0]) != ''", 1);
}

fn exponents_of_the_same_precision(ground: &mut AttackedCluster) {
    evaluate(ground, "'%.999999e'.format([1.0]) != ''", 1);
}

/// Not-a-number among numbers: no order that a sorting function may rely on.
fn lists_without_an_order(ground: &mut AttackedCluster) {
    let numbers: Vec<String> = (0..40)
        .map(|at| if at % 3 == 0 { "0.0/0.0".to_owned() } else { format!("{}.5", (at * 7) % 23) })
        .collect();
    let list = numbers.join(", ");
    evaluate(ground, &format!("[{list}].sort() != [] || [{list}].min() > 0.0"), 1);
    ground.create::<ResourceClaim>(vec![chosen("by", &format!("[{list}].sortBy(x, x) != []"))]);
    ground.create::<Pod>(vec![user("by", &["by"])]);
    ground.bystander("beside the second list");
}

fn doubled_lists_compared(ground: &mut AttackedCluster) {
    evaluate(
        ground,
        &doubled(60, |last| format!("{last} == cel.bind(m, {last}, [m[0], m[1]])")),
        1,
    );
}

fn doubled_lists_as_text(ground: &mut AttackedCluster) {
    evaluate(ground, &doubled(40, |last| format!("'%s'.format([{last}]) != ''")), 1);
}

fn doubled_lists_flattened(ground: &mut AttackedCluster) {
    evaluate(ground, &doubled(40, |last| format!("{last}.flatten(64).size() > 0")), 1);
}

fn texts_of_gigabytes(ground: &mut AttackedCluster) {
    let clauses = "%.65000f".repeat(100);
    let numbers = vec!["1.0"; 100].join(", ");
    evaluate(ground, &format!("'{clauses}'.format([{numbers}]) != ''"), 3);
}

fn a_regex_of_seconds(ground: &mut AttackedCluster) {
    evaluate(ground, &long_text(10, "$t.matches('(a?){1000}[^a]')"), 1);
}

fn a_regex_of_seconds_in_a_hundred_pods(ground: &mut AttackedCluster) {
    evaluate(ground, &long_text(8, "$t.matches('(a?){1000}[^a]')"), 100);
}

fn loops_within_loops(ground: &mut AttackedCluster) {
    let list = format!("[{}]", vec!["1"; 24].join(", "));
    let within = format!("{list}.all(x, {list}.all(y, {list}.exists(z, x + y + z == 4)))");
    evaluate(ground, &format!("!({within})"), 20);
}

/// All but one of a node's devices, in any order, and that one twice.
fn endless(name: &str) -> Value {
    let request = |name: &str, count: usize, selector: &str| {
        json!({"name": name, "exactly": {"deviceClassName": "gpu", "count": count,
            "selectors": [{"cel": {"expression": selector}}]}})
    };
    let only = "device.attributes['d.example'].only";
    claim(name, json!([request("most", 7, "true"), request("x", 1, only), request("y", 1, only)]))
}

fn a_search_without_an_end(ground: &mut AttackedCluster) {
    ground.create::<ResourceClaim>(vec![endless("p0")]);
    ground.create::<Pod>(vec![user("p0", &["p0"])]);
    ground.bystander("beside the search");
    eprintln!("    {:?}", ground.are_answered(&["p0"]));
}

fn a_hundred_searches_without_an_end(ground: &mut AttackedCluster) {
    let names: Vec<String> = (0..100).map(|at| format!("p{at}")).collect();
    ground.create::<ResourceClaim>(names.iter().map(|name| endless(name)).collect());
    ground.create::<Pod>(names.iter().map(|name| user(name, &[name])).collect());
    ground.bystander("beside the searches");
    eprintln!("    {:?}", ground.are_answered(&["p0"]));
}

fn one_claim_named_many_times(ground: &mut AttackedCluster) {
    ground.create::<ResourceClaim>(vec![chosen("one", "true")]);
    let pods = (0..20).map(|at| user(&format!("p{at}"), &["one"; 200]));
    ground.create::<Pod>(pods.collect());
    ground.bystander("beside the pods");
    eprintln!("    {:?}", ground.are_answered(&["p0"]));
}
