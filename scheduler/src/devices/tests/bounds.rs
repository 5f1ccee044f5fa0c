//! What one pod's claims may cost the thread that decides all pods.

use super::*;

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
