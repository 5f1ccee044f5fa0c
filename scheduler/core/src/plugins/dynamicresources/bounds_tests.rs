//! Cost limits of one pod's claims on the thread that decides all pods.

use pintle_sched_core::attempt_budget;

use super::*;

fn selects(text: &str, mut more: Value) -> Value {
    more["selectors"] = json!([{"cel": {"expression": text}}]);
    exactly("r", more)
}

/// The only pool of the node, with `count` devices.
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
    // The last claim finds nothing, so all others are undone.
    let mut claims = many(claim("none", json!({})));
    claims.push(claim("one", json!({"requests": [exactly("r", json!({}))]})));
    assert_eq!(get(Vec::new(), &[], claims), Err(AllocationFailure::Nothing));
}

#[test]
fn a_search_among_devices_of_which_none_fits_ends_in_time() {
    let offers = offers(1_000);
    for mode in ["ExactCount", "All"] {
        let claims = wants(json!([selects("false", json!({"allocationMode": mode}))]));
        let found = within(&offers, &Usage::default(), claims.clone(), &|| false);
        assert_eq!(found, Err(AllocationFailure::Nothing), "{mode}");
        let found = within(&offers, &Usage::default(), claims, &|| true);
        assert_eq!(found, Err(AllocationFailure::Late), "{mode}");
    }
}

#[test]
fn a_selector_that_takes_long_ends_the_search() {
    let text = "lists.range(100).all(a, lists.range(100).all(b, a + b >= 0))";
    for mode in ["ExactCount", "All"] {
        let claims = wants(json!([selects(text, json!({"allocationMode": mode}))]));
        let found = within(&offers(1), &Usage::default(), claims, &|| true);
        assert_eq!(found, Err(AllocationFailure::Late), "{mode}");
    }
}

/// A budget of work, with no limit of memory.
fn budget(work: u64) -> AttemptBudget {
    let limits = attempt_budget::Limits { work, bytes: u64::MAX };
    AttemptBudget::new(limits, || false)
}

const DEAR: &str = "lists.range(100).all(n, n >= 0) && device.attributes['d'].n < 0";

fn try_once(
    selectors: &Selectors,
    offers: &Offers,
    budget: &AttemptBudget,
) -> Result<(), AllocationFailure> {
    let claims = wants(json!([selects(DEAR, json!({}))]));
    let limits = EvaluationLimits { budget, is_late: &|| false };
    bounded(selectors, offers, &Usage::default(), claims, limits).map(drop)
}

#[test]
fn attempt_that_spent_its_budget_gets_further_at_its_next_try() {
    let (offers, selectors) = (offers(300), Selectors::default());
    let tries: Vec<AllocationFailure> = (0..20)
        .map(|_| try_once(&selectors, &offers, &budget(200_000)).expect_err("none fits"))
        .take_while(|failure| *failure != AllocationFailure::Nothing)
        .collect();
    assert!((2..20).contains(&tries.len()), "{}", tries.len());
    assert!(
        tries.iter().all(|failure| matches!(failure, AllocationFailure::Exhausted(_))),
        "{tries:?}"
    );
    // Results of another node or attempt are cached: only the search itself costs.
    assert_eq!(try_once(&selectors, &offers, &budget(100_000)), Err(AllocationFailure::Nothing));
    let fresh = try_once(&Selectors::default(), &offers, &budget(100_000));
    assert!(matches!(fresh, Err(AllocationFailure::Exhausted(_))), "{fresh:?}");
}

#[test]
fn device_that_changed_is_asked_again() {
    let selectors = Selectors::default();
    let mut offers = Offers::default();
    for (model, want) in [("a", "r=p/x"), ("b", "Nothing"), ("a", "r=p/x")] {
        let device = json!([{"name": "x", "attributes": {"model": {"string": model}}}]);
        offers.set(Slice::read(&read(own("p", device)), false));
        for _ in 0..2 {
            let text = "device.attributes['d'].model == 'a'";
            let claims = wants(json!([selects(text, json!({}))]));
            let found = selected(&selectors, &offers, &Usage::default(), claims, &|| false);
            assert_eq!(short(&found), want, "{model}");
        }
    }
}

#[test]
fn error_of_a_device_is_kept_as_well() {
    let (offers, selectors) = (offers(1), Selectors::default());
    let text = "lists.range(10000).all(n, n >= 0) && device.attributes['d'].absent == 1";
    let once = |budget: &AttemptBudget| {
        let claims = wants(json!([selects(text, json!({}))]));
        let limits = EvaluationLimits { budget, is_late: &|| false };
        short(&bounded(&selectors, &offers, &Usage::default(), claims, limits))
    };
    let first = once(&AttemptBudget::unlimited());
    assert!(first.contains("no such key: absent"), "{first}");
    assert_eq!(once(&budget(10_000)), first);
}
