//! The reflector against tables.

use std::time::Duration;

use super::backoff::CLIENT_GO;
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

/// A plan in a few letters.
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

/// Replays a story; after each result, these are the plans that follow.
fn tell(mut reflector: Reflector, story: Vec<(StepResult, &str)>) {
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
    let mut reflector = Reflector::new(first, 1, CLIENT_GO);
    let plan = shown(&reflector.plan(Duration::ZERO, 0.0));
    let want = if first == FirstList::Any { "list any in pages" } else { "list newest" };
    assert_eq!(plan, want);
    reflector
}

#[test]
fn after_a_list_there_is_a_watch_and_it_goes_on_where_it_ended() {
    use StepResult::{Closed, Event, Idle, Page};
    tell(
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
fn versions_that_the_server_does_not_have_are_given_up() {
    use StepResult::{Event, ListFailed, Page, WatchFailed};
    let connection = || InformerError::Unreachable("refused".to_owned());
    tell(
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
fn a_watch_whose_connection_breaks_is_asked_for_each_second_where_it_was() {
    use StepResult::{ListFailed, Page, WatchFailed};
    let lost = || InformerError::Lost("reset".to_owned());
    let mut story = vec![(Page("5", ""), "watch 5")];
    story.extend((0..30).map(|_| (WatchFailed(lost()), "wait 1000, watch 5")));
    story.push((WatchFailed(failed()), "wait 800, list from 5"));
    story.push((ListFailed(lost()), "wait 1600, list from 5"));
    tell(first(FirstList::Any), story);
}

#[test]
fn of_very_many_watches_each_waits_longer_and_longer_for_a_connection() {
    use StepResult::WatchFailed;
    let lost = || InformerError::Lost("reset".to_owned());
    let story = [800, 1_600, 3_200, 6_400].map(|wait| format!("wait {wait}, watch 0"));
    let story = story.iter().map(|want| (WatchFailed(lost()), want.as_str())).collect();
    tell(Reflector::new(FirstList::Never, 1, CLIENT_GO), story);
}

#[test]
fn a_watch_that_got_on_for_a_while_makes_the_next_wait_the_first() {
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
    assert_eq!(waits(&mut reflector, SHORT, "7"), "wait 1600", "that says nothing");
    assert_eq!(waits(&mut reflector, while_well, "8"), "wait 800");
    assert_eq!(waits(&mut reflector, while_well, "8"), "wait 1600", "nothing new came");
}

#[test]
fn a_list_in_pages_that_is_forgotten_is_asked_for_whole() {
    use StepResult::{ListFailed, Page, WatchFailed};
    tell(
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
    // A server that divides a list of its watch cache has nothing there.
    tell(
        first(FirstList::Any),
        vec![
            (Page("5", "a"), "list any in pages at a"),
            (Page("5", ""), "watch 5"),
            (WatchFailed(failed()), "wait 800, list from 5 in pages"),
        ],
    );
}

#[test]
fn a_watch_from_no_version_has_none_until_it_is_past_the_beginning() {
    use StepResult::{Closed, Event, Page};
    tell(
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
fn a_kind_is_looked_for_under_each_of_its_paths() {
    use StepResult::{ListFailed, Page, WatchFailed};
    let none = || InformerError::NotFound("no such kind".to_owned());
    let mut reflector = Reflector::new(FirstList::Any, 2, CLIENT_GO);
    reflector.plan(Duration::ZERO, 0.0);
    tell(
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
fn one_object_is_never_listed_and_is_read_when_its_place_is_lost() {
    use StepResult::{Closed, Event, Idle, WatchFailed};
    let mut reflector = Reflector::new(FirstList::Never, 1, CLIENT_GO);
    let ReflectorPlan::Watch(WatchPlan { from, seconds, .. }) = reflector.plan(Duration::ZERO, 0.5)
    else {
        panic!("no watch");
    };
    assert_eq!((&*from, seconds), ("0", 2700));
    let none = || InformerError::NotFound("no such kind".to_owned());
    tell(
        reflector,
        vec![
            // Nothing there, and no word of where the watch stands.
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
fn watches_last_five_to_ten_minutes_and_silence_counts_once_there_are_bookmarks() {
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
