//! Computes the next step of a reflector, which is a list, a watch or a wait: pure.
//!
//! Input: the result of the last step, and the time. Output: a [`ReflectorPlan`]. The first list is
//! the newest state, or the state of the server's watch cache. Each later list is at least as new
//! as the known state, so the reflector does not go back by itself. Since 1.31 the watch cache also
//! serves the newest state, but only for a list without a limit. If the server no longer has the
//! known version, or has not reached it yet, the next list is the newest state, whatever its
//! version. So the reflector follows a store that was restored from a backup.
//!
//! Upstream does not notice such a store during a watch: the server accepts a watch of a version
//! that it has not reached yet, and omits all events up to that version, even bookmarks. Here an
//! event with a lower version than the last one ends the watch. If the server sends bookmarks,
//! which come once a minute, `IDLE_MAX` without any event ends the watch, too. A watch without a
//! single event is followed by a list.
//! Bounds: one request at a time. A failed list is repeated without a wait only in another form:
//! whole, as the newest state, or at the kind's next path.
// k8s: staging/src/k8s.io/client-go/tools/cache/reflector.go ListAndWatch

use std::time::Duration;

use super::backoff::ReflectorBackoff;
use super::error::InformerError;

/// Objects in a page of a list that is requested in pages.
// k8s: staging/src/k8s.io/client-go/tools/pager/pager.go defaultPageSize
const PAGE: u32 = 500;
/// Duration that a watch requests, in seconds: random between these.
const WATCH_SECONDS: (u32, u32) = (300, 600);
/// Duration of a watch of one object, in seconds; there are many such watches.
// k8s: pkg/kubelet/util/manager/watch_based_manager.go MinWatchTimeout
const ONE_WATCH_SECONDS: (u32, u32) = (1800, 3600);
/// Time beyond the requested duration of a watch after which the client ends the watch.
const WATCH_GRACE: Duration = Duration::from_secs(30);
/// Time without an event after which the watch of a server that sends bookmarks is ended.
const IDLE_MAX: Duration = Duration::from_secs(180);
/// A watch that ends within this time and made no progress is followed by a wait.
const SHORT: Duration = Duration::from_secs(1);
/// A watch that made progress and lasted so long resets the backoff, because the server works.
const WELL: Duration = Duration::from_secs(10);
/// The pause before a watch whose connection broke is requested again.
// k8s: staging/src/k8s.io/client-go/rest/with_retry.go retryAfterResponse
const LOST_WAIT: Duration = Duration::from_secs(1);

/// The state that the first list must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstList {
    /// Any state that the server has at hand; it may be older than the state before a restart.
    Any,
    /// The newest state: a stale list is not accepted.
    #[default]
    Newest,
    /// There are no lists: one object is watched. Its reader reads the object before the watch
    /// begins and after each call of `ObjectSink::read_again`.
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
    /// Token of the next page; with `None` the list starts over, and earlier pages are discarded.
    pub(super) token: Option<String>,
}

/// A request for a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WatchPlan {
    pub(super) path: usize,
    pub(super) from: String,
    pub(super) seconds: u32,
    /// Time after which the client ends the watch.
    pub(super) lasts_max: Duration,
    /// Time without an event after which the client ends the watch. `None` becomes a duration when
    /// the first bookmark arrives: see [`Reflector::idle_max`].
    pub(super) idle_max: Option<Duration>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReflectorPlan {
    List(ListPlan),
    /// The one object must be read; this is in place of a list.
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
    /// The next list is the newest state, because the server may not have the known version.
    unavailable: bool,
    /// The server sent a list of any state in pages, so its watch cache is off.
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
    /// An event of this watch had another version than the known one.
    made_progress: bool,
}

const LIST: ReflectorStep = ReflectorStep::List { whole: false, token: None };
/// The state of the server's watch cache.
const ANY_VERSION: &str = "0";

impl Reflector {
    /// A reflector that has listed nothing yet, of a kind with so many paths. `retry` is the first
    /// and the longest wait.
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
            made_progress: false,
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

    /// The next step; `chance` is a random number from 0 to 1.
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
        // A watch of one object begins with that object alone, so its versions are in order.
        let one = self.first == FirstList::Never;
        self.ordered = one || (!from.is_empty() && from != ANY_VERSION);
        (self.events, self.made_progress) = (0, false);
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

    /// True if the list may be requested with a limit. The watch cache ignores the limit of a list
    /// of any state; it serves other lists only without a limit.
    fn may_divide(&self) -> bool {
        self.divides || self.list_at() == ListAt::Any
    }

    /// Records a page; true if it was the last one. `token` is that of the next page, or empty.
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

    /// Records a failed request for a page; false if the next request is made without a wait.
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

    /// Continues with the kind's next path, without a wait unless all paths have been tried.
    fn next_path(&mut self) {
        self.path = (self.path + 1) % self.paths;
        self.wait = self.path == 0;
        (self.next, self.unavailable) = (LIST, self.version.is_some());
    }

    /// Records an event. False if its version is lower than the last one: the server's store went
    /// back, and the caller must end the watch. `version` is empty if it could not be decoded.
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
        self.made_progress |= self.version.as_deref() != Some(version);
        if self.ordered {
            self.version = Some(version.to_owned());
        }
        true
    }

    /// Time without an event after which the caller must end a watch.
    pub(super) fn idle_max(&self) -> Option<Duration> {
        self.bookmarks.then_some(IDLE_MAX)
    }

    /// Records the duration of a watch that had been opened. A call with the reason of its end
    /// follows: `closed`, `idle` or `watch_failed`.
    pub(super) fn lasted(&mut self, lasted: Duration) {
        if self.made_progress && lasted >= WELL {
            self.backoff.well();
        }
    }

    /// Records that a watch was ended after [`Reflector::idle_max`] without an event.
    pub(super) fn idle(&mut self) {
        self.next = LIST;
    }

    /// Records that a watch ended after this time without an error of the server: it was closed, or
    /// its connection broke. A server closes the watch of a slow client. So a watch that made
    /// progress continues without a wait, because the client would fall further behind.
    // k8s: staging/src/k8s.io/client-go/tools/cache/reflector.go handleAnyWatch VeryShortWatchError
    pub(super) fn closed(&mut self, lasted: Duration) {
        self.wait = lasted < SHORT && !self.made_progress;
        self.next = if self.events == 0 { LIST } else { ReflectorStep::Watch };
    }

    /// Records that a watch could not be opened, or that the server sent an error. False if the
    /// error needs no report, because it is normal that a version expires or is not reached yet.
    // k8s: reflector.go watch, isWatchErrorRetriable; client-go/rest/request.go Watch
    pub(super) fn watch_failed(&mut self, error: &InformerError) -> bool {
        self.wait = true;
        // There may be many reflectors of one object each. In an outage an attempt of theirs must
        // not cause a read, and they must not all make an attempt each second.
        let one = self.first == FirstList::Never;
        match error {
            // The known version is still valid, and lists would only burden a server that has just
            // recovered.
            InformerError::Busy(_) | InformerError::Unreachable(_) => {}
            InformerError::Lost(_) => (self.wait, self.broke) = (one, !one),
            InformerError::Failed(_) if one => {}
            InformerError::TooLarge(_) => (self.next, self.unavailable) = (LIST, true),
            InformerError::NotFound(_) => self.next_path(),
            InformerError::Expired(_) | InformerError::Failed(_) => self.next = LIST,
        }
        !matches!(error, InformerError::Expired(_) | InformerError::TooLarge(_))
    }

    /// True if the last watch counts as short: it lasted less than `SHORT` and had no event.
    // k8s: reflector.go VeryShortWatchError
    pub(super) fn is_short(&self, lasted: Duration) -> bool {
        lasted < SHORT && self.events == 0
    }
}

/// The kind of an event, as far as it determines the use of its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionEvent {
    Added,
    Changed,
    Bookmark,
}

/// True if one version is lower than the other; false if one of them is not a number.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/resourceversion CompareResourceVersion
fn is_older(one: &str, other: &str) -> bool {
    match (one.parse::<u128>(), other.parse::<u128>()) {
        (Ok(one), Ok(other)) => one < other,
        _ => false,
    }
}
