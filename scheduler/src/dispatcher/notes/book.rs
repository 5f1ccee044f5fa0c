//! Event series: events to be written, written ones, and times of retries. Pure.
//!
//! ```text
//! record ─> waits ─next─> is sent ─ended─┬─> settled ─ repeated ─> waits
//!             ^──── RETRY_AFTER ─────────┘      └─ SERIES_OVER ─> forgotten
//! ```
//! Input: notes, results of requests, the time. Output: the next request. Owner: the writer of
//! events. Namespaces take turns, so that a tenant's ten thousand pending pods hold up no other
//! tenant's events. Bounds: `WAITING_MAX` bytes for all waiting and remembered events: the oldest
//! settled ones are dropped first. If none is left to drop, a note is lost, and counted: the newest
//! of the namespace with most, or the new one if that is its own.
// k8s: staging/src/k8s.io/client-go/tools/events/event_broadcaster.go

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pintle_api_types::fair::FairQueue;
use pintle_api_types::jitter::jitter;
use pintle_scheduler_core::cycle::command::{Note, Related};

/// Bytes of waiting and remembered notes: some 10,000 of the longest, 30,000 of the usual ones.
pub(super) const WAITING_MAX: usize = 16 << 20;
/// Tries of one event in a row.
// k8s: event_broadcaster.go maxTriesPerEvent
const TRIES_MAX: u32 = 12;
/// Wait before a retry, at least; up to a quarter more.
// k8s: event_broadcaster.go defaultSleepDuration, attemptRecording
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// A series is finished after this time without a repetition.
// k8s: event_broadcaster.go finishTime
const SERIES_OVER: Duration = Duration::from_secs(6 * 60);
/// Interval of writing a series that continues.
// k8s: event_broadcaster.go refreshTime
const WRITE_AGAIN: Duration = Duration::from_secs(30 * 60);

/// A note; two with the same key are equal, whatever their messages.
#[derive(Clone, Debug)]
struct Same(Rc<Note>);

impl Same {
    /// Returns the identity of an event: two events with the same key form a series.
    // k8s: event_broadcaster.go getKey
    fn key(&self) -> impl Hash + PartialEq + '_ {
        let Note { about, version, related, warning, reason, action, .. } = &*self.0;
        (reason, action, about, version.as_deref().unwrap_or_default(), related, warning)
    }

    /// Returns the namespace that it counts for.
    fn namespace(&self) -> &str {
        self.0.about.key.namespace()
    }

    /// Returns the bytes that remembering it takes.
    fn cost(&self) -> usize {
        let note = &*self.0;
        let of_related = match &note.related {
            Some(Related::Pod(pod) | Related::Group(pod, _)) => pod.key.as_str().len(),
            None => 0,
        };
        let texts = note.note.len()
            + note.about.key.as_str().len()
            + note.about.uid.len()
            + note.version.as_ref().map_or(0, String::len)
            + of_related;
        // Twice its own size: in the table, and in the queue.
        texts + size_of::<Note>() + size_of::<NoteState>() + 4 * size_of::<Self>()
    }
}

impl PartialEq for Same {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Same {}

impl Hash for Same {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.key().hash(hasher);
    }
}

/// State of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the queue, or waiting for a retry.
    Waits,
    /// A request is in flight.
    IsSent,
    /// Nothing to do.
    Settled,
}

type Namespace = Rc<str>;

/// State of a note.
#[derive(Debug)]
struct NoteState {
    state: State,
    first: Timestamp,
    last: Timestamp,
    /// Number of occurrences.
    count: i32,
    /// The last written count; zero before the first write.
    written_count: i32,
    tries: u32,
    seen: Instant,
    written: Instant,
    /// It is dropped once that is written.
    is_over: bool,
}

/// A request to be sent.
#[derive(Clone, Debug)]
pub(super) struct EventRequest {
    same: Same,
    /// Time of the first occurrence.
    pub(super) first: Timestamp,
    /// It was created before, as far as is known.
    pub(super) is_made: bool,
    count: i32,
    last: Timestamp,
}

impl EventRequest {
    /// The note.
    pub(super) fn note(&self) -> &Note {
        &self.same.0
    }

    /// Returns the number of occurrences and the time of the last one, if it is a series.
    pub(super) fn series(&self) -> Option<(i32, Timestamp)> {
        (self.count > 1).then_some((self.count, self.last))
    }
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventWritten {
    /// Written, or rejected for good.
    Settled,
    /// No answer: retried later.
    Again,
}

/// Notes of one sink: those of one namespace, and so of one pod, in order.
#[derive(Debug, Default)]
struct SinkQueue {
    queue: FairQueue<Namespace, Same>,
    later: VecDeque<(Instant, Same)>,
}

/// All series.
#[derive(Debug)]
pub(super) struct Book {
    notes: HashMap<Same, NoteState>,
    lines: Vec<SinkQueue>,
    bytes: usize,
    /// Bytes by namespace.
    shares: HashMap<Namespace, usize>,
    bytes_max: usize,
    settled: usize,
    lost: u64,
    /// Number of lost notes that was logged.
    logged_lost: u64,
    is_losing: bool,
}

/// Message to log about lost notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The first note was lost.
    Begins,
    /// So many were lost, until nothing waited any more.
    Ended(u64),
}

impl Book {
    /// Creates an empty book for so many sinks.
    pub(super) fn new(sinks: usize, bytes_max: usize) -> Self {
        let lines = (0..sinks).map(|_| SinkQueue::default()).collect();
        Self {
            notes: HashMap::new(),
            lines,
            bytes: 0,
            shares: HashMap::new(),
            bytes_max,
            settled: 0,
            lost: 0,
            logged_lost: 0,
            is_losing: false,
        }
    }

    /// Records a note. Returns the sink that now has work, if any. Notes about one pod stay in
    /// order.
    pub(super) fn record(&mut self, now: Instant, at: Timestamp, note: Note) -> Option<usize> {
        let same = Same(Rc::new(note));
        let line = self.line(&same);
        if let Some(known) = self.notes.get_mut(&same) {
            known.count = known.count.saturating_add(1);
            (known.last, known.seen, known.is_over) = (at, now, false);
            // The second occurrence makes it a series; from then on it is written periodically.
            if known.state != State::Settled || known.written_count > 1 {
                return None;
            }
            self.enqueue(&same);
            return Some(line);
        }
        if !self.has_room(&same) {
            self.lost += 1;
            return None;
        }
        let namespace = self.add(&same);
        let known = NoteState {
            state: State::Waits,
            first: at,
            last: at,
            count: 1,
            written_count: 0,
            tries: 0,
            seen: now,
            written: now,
            is_over: false,
        };
        self.notes.insert(same.clone(), known);
        self.lines[line].queue.push(namespace, same);
        Some(line)
    }

    /// Returns the next request of this sink.
    pub(super) fn next(&mut self, line: usize, now: Instant) -> Option<EventRequest> {
        let SinkQueue { queue, later } = &mut self.lines[line];
        while later.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, same)) = later.pop_front() {
                queue.push(same.namespace().into(), same);
            }
        }
        let (_, same) = queue.pop()?;
        let known = self.notes.get_mut(&same)?;
        known.state = State::IsSent;
        let NoteState { first, last, count, .. } = *known;
        Some(EventRequest { same, first, is_made: known.written_count > 0, count, last })
    }

    /// Returns when this sink has work at the latest, if nothing new is recorded.
    pub(super) fn due(&self, line: usize) -> Option<Instant> {
        self.lines[line].later.front().map(|(due, _)| *due)
    }

    /// A request ended.
    pub(super) fn ended(&mut self, request: &EventRequest, written: EventWritten, now: Instant) {
        let same = &request.same;
        let line = self.line(same);
        let Some(known) = self.notes.get_mut(same) else { return };
        if written == EventWritten::Again {
            known.tries += 1;
            if known.tries < TRIES_MAX {
                known.state = State::Waits;
                let due = now + jitter(RETRY_AFTER, 0.25);
                self.lines[line].later.push_back((due, same.clone()));
                return;
            }
            self.lost += 1;
        }
        (known.tries, known.written_count, known.written) = (0, request.count, now);
        known.state = State::Settled;
        let becomes_series = known.written_count < 2 && known.count > 1;
        let is_over = known.is_over;
        self.settled += 1;
        if is_over {
            self.forget(same);
        } else if becomes_series {
            self.enqueue(same);
        }
    }

    /// Drops finished series, and writes continuing ones.
    pub(super) fn look(&mut self, now: Instant) {
        let (mut over, mut behind) = (Vec::new(), Vec::new());
        for (same, known) in
            self.notes.iter_mut().filter(|(_, known)| known.state == State::Settled)
        {
            let is_over = now.duration_since(known.seen) > SERIES_OVER;
            let is_behind = known.count > known.written_count;
            let is_due = now.duration_since(known.written) > WRITE_AGAIN;
            if is_behind && (is_over || is_due) {
                known.is_over = is_over;
                behind.push(same.clone());
            } else if is_over {
                over.push(same.clone());
            }
        }
        over.iter().for_each(|same| self.forget(same));
        behind.iter().for_each(|same| self.enqueue(same));
    }

    /// Nothing waits.
    fn is_idle(&self) -> bool {
        self.settled == self.notes.len()
    }

    /// Returns what to log about lost notes, once each.
    pub(super) fn loss(&mut self) -> Option<Loss> {
        let new = self.lost - self.logged_lost;
        if new == 0 {
            return None;
        }
        if self.is_idle() {
            (self.logged_lost, self.is_losing) = (self.lost, false);
            return Some(Loss::Ended(new));
        }
        (!std::mem::replace(&mut self.is_losing, true)).then_some(Loss::Begins)
    }

    fn line(&self, same: &Same) -> usize {
        let mut hasher = DefaultHasher::new();
        same.0.about.uid.hash(&mut hasher);
        let at = hasher.finish() % self.lines.len() as u64;
        usize::try_from(at).unwrap_or(0)
    }

    /// Enqueues a settled note again.
    fn enqueue(&mut self, same: &Same) {
        if let Some(known) = self.notes.get_mut(same) {
            known.state = State::Waits;
            self.settled -= 1;
            let line = self.line(same);
            self.lines[line].queue.push(same.namespace().into(), same.clone());
        }
    }

    /// Drops a settled note.
    fn forget(&mut self, same: &Same) {
        if let Some((same, _)) = self.notes.remove_entry(same) {
            self.settled -= 1;
            self.subtract(&same);
        }
    }

    /// Adds a note's bytes, and returns its namespace.
    fn add(&mut self, same: &Same) -> Namespace {
        self.bytes += same.cost();
        let namespace = match self.shares.get_key_value(same.namespace()) {
            Some((namespace, _)) => Rc::clone(namespace),
            None => same.namespace().into(),
        };
        *self.shares.entry(Rc::clone(&namespace)).or_default() += same.cost();
        namespace
    }

    fn subtract(&mut self, same: &Same) {
        self.bytes -= same.cost();
        if let Some(share) = self.shares.get_mut(same.namespace()) {
            *share -= same.cost();
            if *share == 0 {
                self.shares.remove(same.namespace());
            }
        }
    }

    /// Makes room if needed: a quarter of the settled notes are dropped at once, so that not each
    /// new note searches for the oldest. If none is settled, the namespace with most loses one.
    fn has_room(&mut self, new: &Same) -> bool {
        while self.bytes + new.cost() > self.bytes_max {
            if self.settled == 0 {
                if !self.give_for(new) {
                    return false;
                }
                continue;
            }
            let settled = self.notes.iter().filter(|(_, known)| known.state == State::Settled);
            let mut settled: Vec<_> = settled.map(|(same, t)| (t.seen, same.clone())).collect();
            settled.sort_by_key(|(seen, _)| *seen);
            settled.truncate(settled.len().div_ceil(4));
            settled.iter().for_each(|(_, same)| self.forget(same));
        }
        true
    }

    /// Drops the newest waiting note of the namespace with most, unless that is the new note's own
    /// or would then have less than it.
    fn give_for(&mut self, new: &Same) -> bool {
        let most = self.shares.iter().max_by_key(|(_, share)| **share);
        let Some((most, share)) = most.map(|(most, share)| (Rc::clone(most), *share)) else {
            return false;
        };
        let own = self.shares.get(new.namespace()).copied().unwrap_or(0);
        if share < own + 2 * new.cost() {
            return false;
        }
        let longest = self.lines.iter_mut().max_by_key(|line| line.queue.count(&most));
        let Some(same) = longest.and_then(|line| line.queue.pop_newest(&most)) else {
            return false;
        };
        self.notes.remove(&same);
        self.subtract(&same);
        self.lost += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use pintle_api_types::key::ObjectKey;
    use pintle_scheduler_core::pod_fields::PodRef;

    use super::*;

    const AT: Timestamp = Timestamp::UNIX_EPOCH;

    fn note(pod: &str, text: &str) -> Note {
        Note {
            about: PodRef { key: ObjectKey::new("default", pod), uid: pod.into() },
            reporter: "default-scheduler".into(),
            version: Some("7".to_owned()),
            related: None,
            warning: true,
            reason: "FailedScheduling",
            action: "Scheduling",
            note: text.to_owned(),
        }
    }

    fn book() -> Book {
        Book::new(1, WAITING_MAX)
    }

    #[test]
    fn ten_thousand_pods_that_fit_nowhere_have_an_event_each() {
        let (mut book, now) = (Book::new(8, WAITING_MAX), Instant::now());
        let text = "x".repeat(1024);
        for at in 0..10_000 {
            let name = format!("a-deployment-with-a-long-name-5d9c7b9f7c-{at:05}");
            assert!(book.record(now, AT, note(&name, &text)).is_some(), "{at}");
        }
        assert_eq!(book.lost, 0);
        let written = (0..8).map(|line| std::iter::from_fn(|| book.next(line, now)).count());
        assert_eq!(written.sum::<usize>(), 10_000);
    }

    #[test]
    fn events_beyond_the_limit_are_counted_as_lost_and_old_series_dropped_first() {
        let now = Instant::now();
        let cost = Same(Rc::new(note("p0", "m"))).cost();
        let mut book = Book::new(1, 2 * cost);
        assert_eq!(book.record(now, AT, note("p0", "m")), Some(0));
        assert_eq!(book.record(now, AT, note("p1", "m")), Some(0));
        assert_eq!(book.record(now, AT, note("p2", "m")), None);
        assert_eq!(book.record(now, AT, note("p3", "m")), None);
        assert_eq!([book.loss(), book.loss()], [Some(Loss::Begins), None]);
        for _ in 0..2 {
            assert_eq!(book.loss(), None);
            let request = book.next(0, now).expect("it waits");
            book.ended(&request, EventWritten::Settled, now);
        }
        assert_eq!([book.loss(), book.loss()], [Some(Loss::Ended(2)), None]);
        assert_eq!(book.record(now, AT, note("p3", "m")), Some(0));
        assert_eq!((book.lost, book.notes.len(), book.bytes), (2, 2, 2 * cost));
    }

    #[test]
    fn repeated_event_becomes_a_series_written_at_its_start_and_end() {
        let (mut book, now) = (book(), Instant::now());
        book.record(now, AT, note("p", "m"));
        let request = book.next(0, now).expect("it waits");
        assert_eq!((request.is_made, request.series()), (false, None));
        // It occurs again while the first request is in flight.
        assert_eq!(book.record(now, AT, note("p", "other words")), None);
        book.ended(&request, EventWritten::Settled, now);
        let request = book.next(0, now).expect("a series");
        assert_eq!((request.is_made, request.series()), (true, Some((2, AT))));
        book.ended(&request, EventWritten::Settled, now);
        assert_eq!(book.record(now, AT, note("p", "m")), None);
        assert!(book.next(0, now).is_none());
        let later = now + SERIES_OVER + Duration::from_secs(1);
        book.look(later);
        let request = book.next(0, later).expect("its end");
        assert_eq!(request.series(), Some((3, AT)));
        book.ended(&request, EventWritten::Settled, later);
        assert_eq!((book.notes.len(), book.bytes, book.is_idle()), (0, 0, true));
    }

    #[test]
    fn unanswered_event_is_tried_twelve_times_and_delays_no_other_event() {
        let (mut book, mut now) = (book(), Instant::now());
        book.record(now, AT, note("p", "m"));
        for tried in 1..=TRIES_MAX {
            let request = book.next(0, now).expect("it is due");
            assert!(!request.is_made);
            book.ended(&request, EventWritten::Again, now);
            book.record(now, AT, note(&format!("other-{tried}"), "m"));
            let other = book.next(0, now).expect("another pod's");
            assert_eq!(&*other.note().about.uid, format!("other-{tried}"));
            book.ended(&other, EventWritten::Settled, now);
            if let Some(due) = book.due(0) {
                assert!(due >= now + RETRY_AFTER && due <= now + RETRY_AFTER * 5 / 4);
                now = due;
            }
        }
        assert_eq!((book.due(0), book.lost, book.is_idle()), (None, 1, true));
        // As upstream: a repeated event is taken for a series, which is created if it does not
        // exist.
        assert_eq!(book.record(now, AT, note("p", "m")), Some(0));
        let request = book.next(0, now).expect("it waits");
        assert_eq!((request.is_made, request.series()), (true, Some((2, AT))));
    }

    fn of(namespace: &str, pod: &str) -> Note {
        let mut note = note(pod, "m");
        note.about.key = ObjectKey::new(namespace, pod);
        note
    }

    #[test]
    fn a_tenant_with_many_pods_neither_fills_the_book_nor_delays_anothers_event() {
        let (mut book, now) = (Book::new(2, 64 << 10), Instant::now());
        let crowd = |number: usize| of("crowd", &format!("p{number:04}"));
        for number in 0..1000 {
            book.record(now, AT, crowd(number));
        }
        let lost = book.lost;
        assert!(lost > 0 && book.bytes <= 64 << 10, "it is full of the crowd's");
        for number in 0..10 {
            let sink = book.record(now, AT, of("quiet", &format!("q{number:04}")));
            assert!(sink.is_some(), "{number}: the crowd gives room");
        }
        assert!(book.bytes <= 64 << 10 && book.lost > lost, "and each of those is counted");
        assert_eq!(book.record(now, AT, crowd(2000)), None);
        let mut first = Vec::new();
        for _ in 0..20 {
            let next = [0, 1].map(|line| book.next(line, now));
            first.extend(next.into_iter().flatten());
        }
        let quiet = first.iter().filter(|r| r.note().about.key.namespace() == "quiet").count();
        assert_eq!(quiet, 10, "they do not wait for the crowd's to be written");
        for request in &first {
            book.ended(request, EventWritten::Settled, now);
        }
        let shares: usize = book.shares.values().sum();
        assert_eq!(shares, book.bytes);
    }
}
