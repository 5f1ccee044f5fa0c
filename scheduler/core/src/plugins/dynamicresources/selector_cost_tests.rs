//! Recorded costs of upstream; `tests/scheduler/tests/scheduler/selector_vectors.rs` generates more of them and
//! runs cel-go itself.

use k8s_openapi::api::resource::v1::Device;
use serde::Deserialize;

use super::alone;

/// Names a longer recording.
const OTHER: &str = "PINTLE_SELECTOR_COSTS";
/// Expressions about a device, with the results of upstream's compiler and evaluation.
const RECORDED: &str = include_str!("selector_cost_vectors.json");

#[derive(Deserialize)]
struct Recorded {
    driver: String,
    device: Device,
    expressions: Vec<String>,
    answers: Vec<SelectorResult>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SelectorResult {
    #[serde(default)]
    error: String,
    matches: bool,
    cost: u64,
}

#[test]
fn expression_costs_equal_the_upstream_costs() {
    let other = std::env::var(OTHER).map(|path| std::fs::read_to_string(path).expect("a file"));
    let recorded = other.as_deref().unwrap_or(RECORDED);
    let recorded: Recorded = serde_json::from_str(recorded).expect("a recording");
    let mut wrong = Vec::new();
    for (text, theirs) in recorded.expressions.iter().zip(&recorded.answers) {
        let ours = alone::selected(text, &recorded.driver, &recorded.device).expect(text);
        let fits = if theirs.error.is_empty() { Some(theirs.matches) } else { None };
        // A call whose arguments fail may cost a few units more or less.
        let same = ours.cost == theirs.cost || fits.is_none();
        if ours.fits.as_ref().ok().copied() != fits || !same {
            let (cost, said) = (ours.cost, &ours.fits);
            wrong.push(format!("{cost} {said:?}, upstream {} {fits:?}: {text}", theirs.cost));
        }
    }
    wrong.sort_by_key(String::len);
    assert!(
        wrong.is_empty(),
        "{} of {}\n{}",
        wrong.len(),
        recorded.answers.len(),
        wrong.join("\n")
    );
    assert!(recorded.answers.len() > 200);
}
