//! What one pod's claims may cost the thread that decides all pods.

use super::*;

fn selects(text: &str, mut more: Value) -> Value {
    more["selectors"] = json!([{"cel": {"expression": text}}]);
    exactly("r", more)
}

/// The only pool of the node, with so many devices.
fn offers(count: usize) -> Offers {
    let device = |n: usize| json!({"name": format!("x{n}"), "attributes": {"n": {"int": n}}});
    let devices: Vec<Value> = (0..count).map(device).collect();
    let mut offers = Offers::default();
    offers.set(Slice::read(&read(own("p", json!(devices))), false));
    offers
}

#[test]
fn a_pod_may_have_more_claims_than_the_stack_has_room_for() {
    let many = |one: ResourceClaim| vec![one; 20_000];
    let found = get(Vec::new(), &[], many(claim("none", json!({})))).expect("nothing of nothing");
    assert_eq!(found.len(), 20_000);
    let shared = json!([{"name": "a", "allowMultipleAllocations": true}]);
    let one = claim("one", json!({"requests": [exactly("r", json!({}))]}));
    let found = get(vec![own("p", shared)], &[], many(one)).expect("shares");
    assert_eq!(short(&Ok(vec![found[19_999].clone()])), "r=p/a");
    // The last of them gets nothing, and all of the others are given up.
    let mut claims = many(claim("none", json!({})));
    claims.push(claim("one", json!({"requests": [exactly("r", json!({}))]})));
    assert_eq!(get(Vec::new(), &[], claims), Err(Failure::Nothing));
}

#[test]
fn a_search_among_devices_of_which_none_fits_ends_in_time() {
    let offers = offers(1_000);
    for mode in ["ExactCount", "All"] {
        let claims = wants(json!([selects("false", json!({"allocationMode": mode}))]));
        let found = within(&offers, &Usage::default(), claims.clone(), &|| false);
        assert_eq!(found, Err(Failure::Nothing), "{mode}");
        let found = within(&offers, &Usage::default(), claims, &|| true);
        assert_eq!(found, Err(Failure::Late), "{mode}");
    }
}

#[test]
fn a_selector_that_takes_long_ends_the_search() {
    let text = "lists.range(100).all(a, lists.range(100).all(b, a + b >= 0))";
    for mode in ["ExactCount", "All"] {
        let claims = wants(json!([selects(text, json!({"allocationMode": mode}))]));
        let found = within(&offers(1), &Usage::default(), claims, &|| true);
        assert_eq!(found, Err(Failure::Late), "{mode}");
    }
}
