//! The next step of a reflector: pure. It lists, watches, waits, and keeps its current version.
//!
//! Input: the result of the last step, and the time. Output: a [`ReflectorPlan`]. It starts at the
//! newest state, or at the state of the server's watch cache, and never goes back from there on its
//! own: a list after a failure is at least as new as the known state. Since 1.31 the watch cache
//! also serves the newest state, but only to a client that takes it in one answer. When the server
//! no longer has that version, or has not reached it yet, the list is the newest from etcd. So the
//! reflector follows a store that was restored from a backup.
//!
//! Where upstream would stay blind: a server whose store went back accepts a watch of a version
//! that it has yet to reach, and skips everything up to there, bookmarks too. Here a version that
//! is lower than the last one ends a watch. So does silence of `IDLE_MAX` of a server that sends
//! bookmarks, which otherwise come once a minute. A list follows a watch without a single event.
//! Bounds: one request at a time, at most one list at once after another.
// k8s: staging/src/k8s.io/client-go/tools/cache/reflector.go ListAndWatch

use std::time::Duration;

use super::backoff::ReflectorBackoff;
use super::error::InformerError;

/// Objects of one answer to a list, where the server divides it.
// k8s: staging/src/k8s.io/client-go/tools/pager/pager.go defaultPageSize
const PAGE: u32 = 500;
/// Duration that a watch requests, in seconds: random between these.
const WATCH_SECONDS: (u32, u32) = (300, 600);
/// Duration of a watch of one object, in seconds; there are many such watches.
// k8s: pkg/kubelet/util/manager/watch_based_manager.go MinWatchTimeout
const ONE_WATCH_SECONDS: (u32, u32) = (1800, 3600);
/// A watch that lasts so much longer than it was asked to is ended here.
const WATCH_GRACE: Duration = Duration::from_secs(30);
/// Silence after which a server that sends bookmarks is asked for a list.
const IDLE_MAX: Duration = Duration::from_secs(180);
/// A watch that ends within this time and made no progress costs a wait.
const SHORT: Duration = Duration::from_secs(1);
/// A watch that made progress and lasted so long has shown that the server works.
const WELL: Duration = Duration::from_secs(10);
/// The pause before a watch whose connection broke is requested again.
// k8s: staging/src/k8s.io/client-go/rest/with_retry.go retryAfterResponse
const LOST_WAIT: Duration = Duration::from_secs(1);

/// The state that the first list must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstList {
    /// Any state that the server has at hand; it may be older than the state before a restart.
    Any,
    /// The newest: a stale list is never taken for the whole.
    #[default]
    Newest,
    /// There are no lists: one object is followed, which the follower reads itself before it begins
    /// and whenever it gets `ObjectSink::read_again`.
    Never,
}

/// The state that a list must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ListAt {
    Any,
    NotOlderThan(String),
    Newest,
}

/// A request for a list, or for the rest of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListPlan {
    pub(super) path: usize,
    pub(super) at: ListAt,
    pub(super) limit: Option<u32>,
    /// Token of the next page; with `None` the list starts over, and earlier pages do not count.
    pub(super) token: Option<String>,
}

/// A request for a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WatchPlan {
    pub(super) path: usize,
    pub(super) from: String,
    pub(super) seconds: u32,
    /// Time after which the client ends it.
    pub(super) lasts_max: Duration,
    /// Silence after which the client ends it; [`Reflector::idle_max`] may set it later.
    pub(super) idle_max: Option<Duration>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReflectorPlan {
    List(ListPlan),
    /// In place of a list: the one object is to be read.
    ReadAgain,
    Watch(WatchPlan),
    Wait(Duration),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ReflectorStep {
    List { whole: bool, token: Option<String> },
    Watch,
}

/// The state of a reflector.
#[derive(Clone, Debug)]
pub(super) struct Reflector {
    first: FirstList,
    /// Paths that the kind may have.
    paths: usize,
    path: usize,
    /// Version of the known state; `None` before the first list.
    version: Option<String>,
    /// The server does not have that version.
    unavailable: bool,
    /// The server divides a list of any state: its watch cache is off.
    divides: bool,
    next: ReflectorStep,
    wait: bool,
    /// A connection broke: the wait is `LOST_WAIT`.
    broke: bool,
    backoff: ReflectorBackoff,
    /// The server sends bookmarks.
    bookmarks: bool,
    /// The next watch can continue from the versions of this watch's events.
    ordered: bool,
    /// Events of this watch.
    events: u64,
    /// An event of this watch was newer than the known version.
    got_on: bool,
}

const LIST: ReflectorStep = ReflectorStep::List { whole: false, token: None };
/// The state of the server's watch cache.
const ANY_VERSION: &str = "0";

impl Reflector {
    /// A reflector that has listed nothing yet, of a kind with so many paths; waits are from the
    /// first to the longest.
    pub(super) fn new(first: FirstList, paths: usize, retry: (Duration, Duration)) -> Self {
        assert!(paths > 0, "a kind has a path");
        let one = first == FirstList::Never;
        Self {
            first,
            paths,
            path: 0,
            version: one.then(|| ANY_VERSION.to_owned()),
            unavailable: false,
            divides: false,
            next: if one { ReflectorStep::Watch } else { LIST },
            wait: false,
            broke: false,
            backoff: ReflectorBackoff::new(retry.0, retry.1),
            bookmarks: false,
            ordered: false,
            events: 0,
            got_on: false,
        }
    }

    /// The version of the known state.
    pub(super) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Events of the last watch.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// The next step; `chance` is from 0 to 1.
    pub(super) fn plan(&mut self, now: Duration, chance: f64) -> ReflectorPlan {
        if std::mem::take(&mut self.broke) {
            return ReflectorPlan::Wait(LOST_WAIT);
        }
        if std::mem::take(&mut self.wait) {
            return ReflectorPlan::Wait(self.backoff.wait(now, chance));
        }
        match &self.next {
            ReflectorStep::List { .. } if self.first == FirstList::Never => {
                let from = Some(ANY_VERSION.to_owned());
                (self.version, self.unavailable, self.next) = (from, false, ReflectorStep::Watch);
                ReflectorPlan::ReadAgain
            }
            ReflectorStep::List { whole, token } => ReflectorPlan::List(ListPlan {
                path: self.path,
                at: self.list_at(),
                limit: (!whole && self.may_divide()).then_some(PAGE),
                token: token.clone(),
            }),
            ReflectorStep::Watch => ReflectorPlan::Watch(self.watch(chance)),
        }
    }

    fn watch(&mut self, chance: f64) -> WatchPlan {
        let from = self.version.clone().unwrap_or_default();
        // The beginning of one object's watch is in order, for it is that object.
        let one = self.first == FirstList::Never;
        self.ordered = one || (!from.is_empty() && from != ANY_VERSION);
        (self.events, self.got_on) = (0, false);
        let (least, most) = if one { ONE_WATCH_SECONDS } else { WATCH_SECONDS };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // below 3600
        let seconds = least + (f64::from(most - least) * chance.clamp(0.0, 1.0)) as u32;
        let lasts_max = Duration::from_secs(seconds.into()) + WATCH_GRACE;
        WatchPlan { path: self.path, from, seconds, lasts_max, idle_max: self.idle_max() }
    }

    // k8s: reflector.go relistResourceVersion
    fn list_at(&self) -> ListAt {
        match (&self.version, self.first) {
            _ if self.unavailable => ListAt::Newest,
            (Some(version), _) if !version.is_empty() => ListAt::NotOlderThan(version.clone()),
            (_, FirstList::Any) => ListAt::Any,
            (_, FirstList::Newest | FirstList::Never) => ListAt::Newest,
        }
    }

    /// A list from the watch cache comes in one answer; only a list that is read from etcd is
    /// divided into pages.
    fn may_divide(&self) -> bool {
        self.divides || self.list_at() == ListAt::Any
    }

    /// A page came; true when it was the last one.
    pub(super) fn page(&mut self, version: &str, token: &str) -> bool {
        let ReflectorStep::List { token: at, .. } = &mut self.next else { return false };
        if !token.is_empty() {
            let in_memory = self.first == FirstList::Any && self.version.is_none();
            self.divides |= in_memory && !self.unavailable;
            *at = Some(token.to_owned());
            return false;
        }
        self.version = Some(version.to_owned());
        self.unavailable = false;
        self.next = ReflectorStep::Watch;
        true
    }

    /// A page did not come; false when another request may succeed at once.
    pub(super) fn list_failed(&mut self, error: &InformerError) -> bool {
        let ReflectorStep::List { token, whole } = &self.next else { return true };
        let newest = self.list_at() == ListAt::Newest;
        self.wait = true;
        match error {
            // k8s: staging/src/k8s.io/client-go/tools/pager/pager.go FullListIfExpired
            InformerError::Expired(_) if token.is_some() && !whole => {
                self.next = ReflectorStep::List { whole: true, token: None };
                self.wait = false;
            }
            InformerError::Expired(_) | InformerError::TooLarge(_) => {
                (self.next, self.unavailable) = (LIST, true);
                self.wait = newest;
            }
            InformerError::NotFound(_) => self.next_path(),
            _ => self.next = LIST,
        }
        self.wait
    }

    /// Tries the kind's next path, at once unless all have been tried.
    fn next_path(&mut self) {
        self.path = (self.path + 1) % self.paths;
        self.wait = self.path == 0;
        (self.next, self.unavailable) = (LIST, self.version.is_some());
    }

    /// An event came; false when it cannot be: the server went back, and the watch is to be ended.
    /// The version is empty when it could not be read.
    pub(super) fn event(&mut self, version: &str, kind: VersionEvent) -> bool {
        self.events += 1;
        self.bookmarks |= kind == VersionEvent::Bookmark;
        if version.is_empty() {
            return true;
        }
        if self.ordered && self.version.as_deref().is_some_and(|last| is_older(version, last)) {
            (self.next, self.unavailable, self.wait) = (LIST, true, true);
            return false;
        }
        // A watch from no version begins with the existing objects, in any order.
        self.ordered |= kind != VersionEvent::Added;
        self.got_on |= self.version.as_deref() != Some(version);
        if self.ordered {
            self.version = Some(version.to_owned());
        }
        true
    }

    /// Silence after which a watch is to be ended.
    pub(super) fn idle_max(&self) -> Option<Duration> {
        self.bookmarks.then_some(IDLE_MAX)
    }

    /// A watch that was opened ended after so long; the reason follows.
    pub(super) fn lasted(&mut self, lasted: Duration) {
        if self.got_on && lasted >= WELL {
            self.backoff.well();
        }
    }

    /// A watch was silent for too long.
    pub(super) fn idle(&mut self) {
        self.next = LIST;
    }

    /// A watch ended after a while, without an error or by a broken connection. Servers close
    /// watches that do not keep up: one that made progress continues at once, or it would fall ever
    /// further behind.
    // k8s: staging/src/k8s.io/client-go/tools/cache/reflector.go handleAnyWatch VeryShortWatchError
    pub(super) fn closed(&mut self, lasted: Duration) {
        self.wait = lasted < SHORT && !self.got_on;
        self.next = if self.events == 0 { LIST } else { ReflectorStep::Watch };
    }

    /// A watch could not be opened, or the server sent an error; returns false when that is nothing
    /// unusual.
    // k8s: reflector.go watch, isWatchErrorRetriable; client-go/rest/request.go Watch
    pub(super) fn watch_failed(&mut self, error: &InformerError) -> bool {
        self.wait = true;
        // Many follow one object each: an outage must cost neither as many reads as attempts, nor
        // as many attempts as there are of them each second.
        let one = self.first == FirstList::Never;
        match error {
            // The place is not lost: whole lists are no help to a server that has just come back.
            InformerError::Busy(_) | InformerError::Unreachable(_) => {}
            InformerError::Lost(_) => (self.wait, self.broke) = (one, !one),
            InformerError::Failed(_) if one => {}
            InformerError::TooLarge(_) => (self.next, self.unavailable) = (LIST, true),
            InformerError::NotFound(_) => self.next_path(),
            InformerError::Expired(_) | InformerError::Failed(_) => self.next = LIST,
        }
        !matches!(error, InformerError::Expired(_) | InformerError::TooLarge(_))
    }

    /// True when a watch that lasted so long counts as a short one.
    // k8s: reflector.go VeryShortWatchError
    pub(super) fn is_short(&self, lasted: Duration) -> bool {
        lasted < SHORT && self.events == 0
    }
}

/// The kind of an event, for the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionEvent {
    Added,
    Changed,
    Bookmark,
}

/// Versions that are no numbers have no order.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/resourceversion CompareResourceVersion
fn is_older(one: &str, other: &str) -> bool {
    match (one.parse::<u128>(), other.parse::<u128>()) {
        (Ok(one), Ok(other)) => one < other,
        _ => false,
    }
}
