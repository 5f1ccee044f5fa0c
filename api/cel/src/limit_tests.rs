//! Limits of an expression on the evaluating thread: no crash, no long stall, no exhausted memory.
//!
//! Each of these was admitted by upstream's compiler: a user with the right to create claims can
//! write it.

use std::cell::Cell;

use pintle_sched_core::attempt_budget;
use pintle_sched_core::attempt_budget::{AttemptBudget, Limit};

use super::tests::device;
use super::*;

/// One second and 64 MiB.
const ALLOWED: attempt_budget::Limits =
    attempt_budget::Limits { work: 100_000_000, bytes: 64 << 20 };

fn within(text: &str, allowed: attempt_budget::Limits) -> Result<bool, Unanswered> {
    let selector = Selector::compile(text, false).map_err(Unanswered::Error)?;
    let budget = AttemptBudget::new(allowed, || false);
    let limits = EvaluationLimits { budget: &budget, is_late: &|| false };
    selector.matches(&device(), &Patterns::default(), limits)
}

fn answer(text: &str) -> Result<bool, Unanswered> {
    within(text, ALLOWED)
}

fn exhausts(text: &str) -> Limit {
    match answer(text) {
        Err(Unanswered::Exhausted(exhausted)) => exhausted.limit,
        other => panic!("{other:?} of {}", &text[..text.len().min(200)]),
    }
}

fn refuses(text: &str, error: &str) {
    let refused = Err(Unanswered::Error(format!("operation cancelled: {error} exceeded").into()));
    assert_eq!(answer(text), refused, "{}", &text[..text.len().min(200)]);
}

/// `n0` is bound to the first value, each further name to two of the previous one.
fn doubled(first: &str, count: usize, body: &str) -> String {
    let mut text = format!("cel.bind(n0, {first}, ");
    for at in 1..count {
        text += &format!("cel.bind(n{at}, [n{0}, n{0}], ", at - 1);
    }
    text + &body.replace("LAST", &format!("n{}", count - 1)) + &")".repeat(count)
}

#[test]
fn format_with_any_width_or_precision_does_not_panic() {
    for text in [
        "'%.65536f'.format([1.0]).size() == 65538",
        "'%.65536e'.format([1.0]).size() == 65536",
        "'%.1000000f'.format([0.1]).endsWith('0') && '%.1000000e'.format([1.0]).startsWith(' ')",
        "'%.1074f'.format([5e-324]).endsWith('5') && '%.1075f'.format([5e-324]).endsWith('50')",
        "'%.0f|%.1f'.format([1234567.0, -1234.56]) == '1,234,567|-1,234.6'",
    ] {
        assert_eq!(answer(text), Ok(true), "{text}");
    }
}

#[test]
fn text_over_a_mebibyte_is_rejected_before_it_is_built() {
    let clauses = "%.65000f".repeat(20);
    let values = vec!["1.0"; 20].join(",");
    for text in [
        format!("'{clauses}'.format([{values}]) != ''"),
        "cel.bind(t, lists.range(2000).map(n, '%.1000f').join(), \
            t.format(lists.range(2000).map(n, 1.0)) != '')"
            .to_owned(),
        "cel.bind(t, '%.600000f'.format([1.0]), t + t != '')".to_owned(),
        "cel.bind(t, '%.600000f'.format([1.0]), [t, t].join() != '')".to_owned(),
        "cel.bind(t, '%.600000f'.format([1.0]), '%s%s'.format([t, t]) != '')".to_owned(),
        "cel.bind(t, '%.600000f'.format([1.0]), '%x'.format([t]) != '')".to_owned(),
        "cel.bind(t, '%.100000f'.format([1.0]), t.replace('0', '123456789012') != '')".to_owned(),
    ] {
        refuses(&text, "text length limit");
    }
}

#[test]
fn memory_of_an_evaluation_is_limited() {
    for text in [
        "lists.range(2000000000) == []".to_owned(),
        "cel.bind(t, '%.200000f'.format([1.0]), lists.range(40).map(n, t.upperAscii()) == [] || \
            lists.range(400).map(n, '%s'.format([t])) == [])"
            .to_owned(),
        "cel.bind(t, '%.1000000f'.format([1.0]), t.split('') == [])".to_owned(),
        doubled("[0, 0]", 60, "LAST.flatten(64) == []"),
        "cel.bind(l, lists.range(100000), cel.bind(k, l + l, cel.bind(m, k + k, m + m == [])))"
            .to_owned(),
    ] {
        let unlimited = attempt_budget::Limits::NONE;
        let refused = "operation cancelled: memory limit exceeded".into();
        assert_eq!(within(&text, unlimited), Err(Unanswered::Error(refused)), "{text}");
    }
}

#[test]
fn sort_with_numbers_that_are_none_does_not_panic() {
    let numbers: Vec<String> = (0..60)
        .map(|n| match n % 3 {
            0 => "0.0/0.0".to_owned(),
            _ => format!("{}.5", n * 7 % 13),
        })
        .collect();
    let list = format!("[{}]", numbers.join(", "));
    for text in [
        format!("{list}.sort() != []"),
        format!("{list}.sortBy(n, -n) != []"),
        format!("{list}.sort()[59] == 12.5 && {list}.sort()[19] != {list}.sort()[19]"),
        format!("{list}.sort()[20] == 0.5"),
        // As upstream: comparisons with NaN are always false.
        format!("{list}.min() != 0.5 && {list}.max() != 12.5"),
        "[2.0, 0.0/0.0, 1.0].min() == 1.0 && [1, 3, 2].max() == 3".to_owned(),
    ] {
        assert_eq!(answer(&text), Ok(true), "{text}");
    }
}

#[test]
fn shared_parts_of_values_are_compared_once() {
    for text in [
        doubled("[0, 0]", 60, "LAST == [n58, n58]"),
        doubled("[0, 0]", 60, "LAST in [[n58, n58]] && sets.contains([LAST], [[n58, n58]])"),
        doubled("[0, 0]", 60, "[LAST, [n58, n58]].distinct() == [LAST]"),
        doubled("[0.0 / 0.0]", 3, "LAST != LAST"),
        doubled("[0.0 / 0.0]", 60, "LAST != LAST"),
    ] {
        assert_eq!(answer(&text), Ok(true), "{text}");
    }
}

#[test]
fn walks_that_meet_shared_parts_many_times_spend_the_attempt() {
    for text in [
        doubled("[]", 60, "LAST.flatten(64) == []"),
        doubled("['']", 60, "[LAST].indexOf('x') == 0"),
    ] {
        assert_eq!(exhausts(&text), Limit::Work, "{text}");
    }
    refuses(&doubled("[0, 0]", 60, "'%s'.format([LAST]) != ''"), "text length limit");
}

#[test]
fn pattern_that_takes_longer_than_is_left_is_not_searched_for() {
    let text = "'%.1000000f'.format([1.0])";
    let long = format!("{text}.matches('(0?){{1000}}[^0]x')");
    assert_eq!(exhausts(&long), Limit::Work);
    assert_eq!(exhausts(&format!("{text}.findAll('(0?){{1000}}[^0]x') == []")), Limit::Work);
    // Upstream answers this after a while; so does pintle if the attempt has the time.
    let short = "'%.30000f'.format([1.0]).matches('(0?){20}[^0]$')";
    assert_eq!(answer(short), Ok(false));
}

#[test]
fn pattern_compilation_is_charged_and_pattern_count_is_limited() {
    let many = |count: usize| {
        format!("lists.range({count}).all(n, 'x'.matches('[a-z]{{1,60}}|x' + string(n)))")
    };
    assert_eq!(answer(&many(3)), Ok(true));
    assert!(matches!(answer(&many(10_000)), Err(Unanswered::Exhausted(_) | Unanswered::Error(_))));
}

#[test]
fn calls_within_each_other_are_limited_through_bound_values() {
    let mut text = "cel.bind(n0, 0, ".to_owned();
    for at in 1..120 {
        text += &format!("cel.bind(n{at}, {}n{}{}, ", "-(".repeat(40), at - 1, ")".repeat(40));
    }
    let text = text + "n119 == 0" + &")".repeat(120);
    if Selector::compile(&text, false).is_ok() {
        refuses(&text, "recursion limit");
    }
    assert_eq!(answer(&doubled("[0]", 100, "LAST == LAST")), Ok(true));
}

#[test]
fn exhausted_attempt_budget_ends_evaluation_even_under_a_short_circuit() {
    let long = "lists.range(1000).all(a, lists.range(1000).all(b, a + b >= 0))";
    let few = attempt_budget::Limits { work: 100_000, bytes: 1 << 20 };
    for text in
        [long.to_owned(), format!("{long} || true"), format!("cel.bind(a, {long}, a || !a)")]
    {
        assert!(matches!(within(&text, few), Err(Unanswered::Exhausted(_))), "{text}");
    }
}

#[test]
fn deadline_is_checked_before_uninterruptible_operations() {
    let selector = Selector::compile("'x'.matches('x+y') || [3, 1].sort() == []", false);
    let selector = selector.expect("an expression");
    let looks = Cell::new(0);
    let is_late = || {
        looks.set(looks.get() + 1);
        false
    };
    let budget = AttemptBudget::unlimited();
    let limits = EvaluationLimits { budget: &budget, is_late: &is_late };
    assert_eq!(selector.matches(&device(), &Patterns::default(), limits), Ok(false));
    // At compiling a pattern, at searching, and at sorting.
    assert!(looks.get() >= 3, "{}", looks.get());
}

#[test]
fn panic_becomes_an_expression_error_with_its_message() {
    let before = panics().get();
    let found = catch(|| panic!("index {} of nothing", 7)).map(drop);
    assert_eq!(found, Err(Unanswered::Error("internal error: index 7 of nothing".into())));
    assert_eq!(catch(|| Err(Unanswered::Late)).map(drop), Err(Unanswered::Late));
    assert!(panics().get() > before);
}
