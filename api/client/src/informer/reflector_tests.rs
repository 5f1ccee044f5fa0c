//! The reflector against tables.

use std::time::Duration;

use super::backoff::REFLECTOR_BACKOFF;
use super::error::InformerError;
use super::reflector::{
    FirstList, ListAt, ListPlan, Reflector, ReflectorPlan, VersionEvent, WatchPlan,
};

const LONG: Duration = Duration::from_secs(400);
const SHORT: Duration = Duration::from_millis(10);

/// The result of a step.
enum StepResult {
    Page(&'static str, &'static str),
    ListFailed(InformerError),
    WatchFailed(InformerError),
    Event(&'static str, VersionEvent),
    Closed(Duration),
    Idle,
}

fn expired() -> InformerError {
    InformerError::Expired("too old".to_owned())
}
fn too_large() -> InformerError {
    InformerError::TooLarge("too large".to_owned())
}
fn failed() -> InformerError {
    InformerError::Failed("no".to_owned())
}

/// A plan in short form.
fn shown(plan: &ReflectorPlan) -> String {
    match plan {
        ReflectorPlan::Wait(wait) => format!("wait {}", wait.as_millis()),
        ReflectorPlan::Watch(watch) => format!("watch {}", watch.from),
        ReflectorPlan::ReadAgain => "read".to_owned(),
        ReflectorPlan::List(ListPlan { at, limit, token, path }) => {
            let at = match at {
                ListAt::Any => "any".to_owned(),
                ListAt::NotOlderThan(version) => format!("from {version}"),
                ListAt::Newest => "newest".to_owned(),
            };
            let limit = if limit.is_some() { " in pages" } else { "" };
            let token = token.as_ref().map(|token| format!(" at {token}")).unwrap_or_default();
            let path = if *path > 0 { format!(" of {path}") } else { String::new() };
            format!("list {at}{limit}{token}{path}")
        }
    }
}

/// Gives each result to the reflector and checks the plans that follow.
fn replay(mut reflector: Reflector, story: Vec<(StepResult, &str)>) {
    for (at, (came, want)) in story.into_iter().enumerate() {
        match came {
            StepResult::Page(version, token) => {
                assert_eq!(reflector.page(version, token), token.is_empty());
            }
            StepResult::ListFailed(error) => {
                reflector.list_failed(&error);
            }
            StepResult::WatchFailed(error) => {
                reflector.watch_failed(&error);
            }
            StepResult::Event(version, kind) => {
                if reflector.event(version, kind) {
                    assert_eq!(want, "goes on", "step {at}");
                    continue;
                }
            }
            StepResult::Closed(lasted) => reflector.closed(lasted),
            StepResult::Idle => reflector.idle(),
        }
        let mut plans = vec![shown(&reflector.plan(Duration::ZERO, 0.0))];
        while plans.last().is_some_and(|last| last.starts_with("wait") || last == "read") {
            plans.push(shown(&reflector.plan(Duration::ZERO, 0.0)));
        }
        assert_eq!(plans.join(", "), want, "step {at}");
    }
}

fn first(first: FirstList) -> Reflector {
    let mut reflector = Reflector::new(first, 1, REFLECTOR_BACKOFF);
    let plan = shown(&reflector.plan(Duration::ZERO, 0.0));
    let want = if first == FirstList::Any { "list any in pages" } else { "list newest" };
    assert_eq!(plan, want);
    reflector
}

#[test]
fn a_watch_follows_a_list_and_resumes_at_its_last_version() {
    use StepResult::{Closed, Event, Idle, Page};
    replay(
        first(FirstList::Any),
        vec![
            (Page("5", ""), "watch 5"),
            (Event("7", VersionEvent::Changed), "goes on"),
            (Closed(LONG), "watch 7"),
            (Event("9", VersionEvent::Bookmark), "goes on"),
            (Closed(SHORT), "watch 9"),
            (Event("9", VersionEvent::Changed), "goes on"),
            (Closed(SHORT), "wait 800, watch 9"),
            (Event("11", VersionEvent::Added), "goes on"),
            (Idle, "list from 11"),
            (Page("12", ""), "watch 12"),
            (Closed(LONG), "list from 12"),
            (Page("12", ""), "watch 12"),
            (Closed(SHORT), "wait 1600, list from 12"),
        ],
    );
}

#[test]
fn versions_that_the_server_does_not_have_lead_to_a_newest_list() {
    use StepResult::{Event, ListFailed, Page, WatchFailed};
    let connection = || InformerError::Unreachable("refused".to_owned());
    replay(
        first(FirstList::Any),
        vec![
            (ListFailed(failed()), "wait 800, list any in pages"),
            (Page("5", ""), "watch 5"),
            (WatchFailed(connection()), "wait 1600, watch 5"),
            (WatchFailed(InformerError::Busy(String::new())), "wait 3200, watch 5"),
            (WatchFailed(failed()), "wait 6400, list from 5"),
            (ListFailed(failed()), "wait 12800, list from 5"),
            (ListFailed(expired()), "list newest"),
            (ListFailed(expired()), "wait 25600, list newest"),
            (Page("8", ""), "watch 8"),
            (WatchFailed(expired()), "wait 30000, list from 8"),
            (ListFailed(too_large()), "list newest"),
            (Page("3", ""), "watch 3"),
            (Event("2", VersionEvent::Changed), "wait 30000, list newest"),
            (Page("2", ""), "watch 2"),
            (WatchFailed(too_large()), "wait 30000, list newest"),
        ],
    );
}

#[test]
fn a_watch_with_a_broken_connection_is_reopened_each_second_at_its_version() {
    use StepResult::{ListFailed, Page, WatchFailed};
    let lost = || InformerError::Lost("reset".to_owned());
    let mut story = vec![(Page("5", ""), "watch 5")];
    story.extend((0..30).map(|_| (WatchFailed(lost()), "wait 1000, watch 5")));
    story.push((WatchFailed(failed()), "wait 800, list from 5"));
    story.push((ListFailed(lost()), "wait 1600, list from 5"));
    replay(first(FirstList::Any), story);
}

#[test]
fn a_watch_of_one_object_backs_off_after_a_broken_connection() {
    use StepResult::WatchFailed;
    let lost = || InformerError::Lost("reset".to_owned());
    let story = [800, 1_600, 3_200, 6_400].map(|wait| format!("wait {wait}, watch 0"));
    let story = story.iter().map(|want| (WatchFailed(lost()), want.as_str())).collect();
    replay(Reflector::new(FirstList::Never, 1, REFLECTOR_BACKOFF), story);
}

#[test]
fn a_watch_that_made_progress_for_a_while_resets_the_backoff() {
    let mut reflector = first(FirstList::Any);
    reflector.page("5", "");
    let waits = |reflector: &mut Reflector, lasted: Duration, version: &str| {
        reflector.plan(Duration::ZERO, 0.0);
        reflector.event(version, VersionEvent::Changed);
        reflector.lasted(lasted);
        reflector.watch_failed(&failed());
        let wait = shown(&reflector.plan(Duration::ZERO, 0.0));
        reflector.page(version, "");
        wait
    };
    let while_well = Duration::from_secs(10);
    assert_eq!(waits(&mut reflector, SHORT, "6"), "wait 800");
    assert_eq!(waits(&mut reflector, SHORT, "7"), "wait 1600", "too short to reset");
    assert_eq!(waits(&mut reflector, while_well, "8"), "wait 800");
    assert_eq!(waits(&mut reflector, while_well, "8"), "wait 1600", "no new version");
}

#[test]
fn a_paged_list_that_expires_is_requested_whole() {
    use StepResult::{ListFailed, Page, WatchFailed};
    replay(
        first(FirstList::Any),
        vec![
            (Page("5", "a"), "list any in pages at a"),
            (Page("5", "b"), "list any in pages at b"),
            (ListFailed(expired()), "list any"),
            (Page("9", "c"), "list any at c"),
            (ListFailed(expired()), "list newest in pages"),
            (Page("10", "d"), "list newest in pages at d"),
            (ListFailed(failed()), "wait 800, list newest in pages"),
            (Page("11", ""), "watch 11"),
            (WatchFailed(failed()), "wait 1600, list from 11 in pages"),
        ],
    );
    // A server that divides a list of any state has no watch cache.
    replay(
        first(FirstList::Any),
        vec![
            (Page("5", "a"), "list any in pages at a"),
            (Page("5", ""), "watch 5"),
            (WatchFailed(failed()), "wait 800, list from 5 in pages"),
        ],
    );
}

#[test]
fn watch_without_a_version_gets_a_version_only_after_the_initial_events() {
    use StepResult::{Closed, Event, Page};
    replay(
        first(FirstList::Any),
        vec![
            (Page("", ""), "watch "),
            (Event("9", VersionEvent::Added), "goes on"),
            (Event("4", VersionEvent::Added), "goes on"),
            (Closed(LONG), "watch "),
            (Event("9", VersionEvent::Added), "goes on"),
            (Event("12", VersionEvent::Changed), "goes on"),
            (Event("", VersionEvent::Changed), "goes on"),
            (Closed(LONG), "watch 12"),
        ],
    );
}

#[test]
fn a_missing_kind_is_requested_at_each_of_its_paths() {
    use StepResult::{ListFailed, Page, WatchFailed};
    let none = || InformerError::NotFound("no such kind".to_owned());
    let mut reflector = Reflector::new(FirstList::Any, 2, REFLECTOR_BACKOFF);
    reflector.plan(Duration::ZERO, 0.0);
    replay(
        reflector,
        vec![
            (ListFailed(none()), "list any in pages of 1"),
            (ListFailed(none()), "wait 800, list any in pages"),
            (ListFailed(none()), "list any in pages of 1"),
            (Page("5", ""), "watch 5"),
            (WatchFailed(none()), "wait 1600, list newest"),
        ],
    );
}

#[test]
fn single_object_is_never_listed_and_is_read_when_its_version_is_lost() {
    use StepResult::{Closed, Event, Idle, WatchFailed};
    let mut reflector = Reflector::new(FirstList::Never, 1, REFLECTOR_BACKOFF);
    let ReflectorPlan::Watch(WatchPlan { from, seconds, .. }) = reflector.plan(Duration::ZERO, 0.5)
    else {
        panic!("no watch");
    };
    assert_eq!((&*from, seconds), ("0", 2700));
    let none = || InformerError::NotFound("no such kind".to_owned());
    replay(
        reflector,
        vec![
            // There is no object, and no event gave a version.
            (Closed(LONG), "read, watch 0"),
            (Event("7", VersionEvent::Added), "goes on"),
            (Closed(LONG), "watch 7"),
            (WatchFailed(failed()), "wait 800, watch 7"),
            (Closed(SHORT), "wait 1600, read, watch 0"),
            (Event("9", VersionEvent::Changed), "goes on"),
            (Event("8", VersionEvent::Changed), "wait 3200, read, watch 0"),
            (Event("10", VersionEvent::Bookmark), "goes on"),
            (WatchFailed(expired()), "wait 6400, read, watch 0"),
            (WatchFailed(too_large()), "wait 12800, read, watch 0"),
            (WatchFailed(none()), "wait 25600, read, watch 0"),
            (Idle, "read, watch 0"),
        ],
    );
}

#[test]
fn watches_last_five_to_ten_minutes_and_idle_out_only_with_bookmarks() {
    let mut reflector = first(FirstList::Any);
    reflector.page("5", "");
    let mut watch = |chance| match reflector.plan(Duration::ZERO, chance) {
        ReflectorPlan::Watch(WatchPlan { seconds, lasts_max, .. }) => {
            (seconds, lasts_max.as_secs())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!((watch(0.0), watch(0.5), watch(1.0)), ((300, 330), (450, 480), (600, 630)));
    assert_eq!(reflector.idle_max(), None);
    assert!(reflector.event("6", VersionEvent::Bookmark));
    assert_eq!(reflector.idle_max(), Some(Duration::from_secs(180)));
}
