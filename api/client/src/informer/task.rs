//! The task of a reflector: sends the planned requests, and passes the answers to its sink.
//!
//! Owner: the caller that polls it; it ends by being dropped. Bounds: one request at a time. A list
//! that stops coming for `PIECE_WAIT_MAX` is given up, and so is one whose answer does not begin.
//! `dial` and `pool` detect a dead server at its connection. Values that only a list, an event or
//! the beginning of a watch needs are boxed: there may be thousands of tasks, nearly always in
//! between.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use pintle_api_types::jitter;
use pintle_api_types::object::Object;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::FollowSpec;
use super::error::InformerError;
use super::head::OBJECT_BYTES_MAX;
use super::lines::{self, LineEvent, LineSplitter, Unreadable};
use super::pages::{ListMeta, ListScanner};
use super::reflector::{ListPlan, Reflector, ReflectorPlan, VersionEvent, WatchPlan};
use super::sink::ObjectSink;
use super::wire::{self, Pieces};

/// The longest wait for the beginning of a list from its turn on, and for its next piece: the
/// longest time that the server takes for any request.
// k8s: staging/src/k8s.io/apiserver/pkg/server/config.go RequestTimeout
const PIECE_WAIT_MAX: Duration = Duration::from_secs(60);
/// A watch that is not open after this time, usually because it waits for its turn, is given up for
/// a list.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(300);

pub(super) struct FollowTask<T, S> {
    client: Client,
    spec: Arc<FollowSpec>,
    sink: S,
    reflector: Reflector,
    list_begun: Instant,
    /// Objects of the list so far.
    items: usize,
    /// The last reported state; `None` before the first report.
    works: Option<bool>,
    /// True once a list was complete. If the server then lacks the kind, that is not an empty list:
    /// its objects may still be stored, or be served in another version.
    is_listed: bool,
    of: PhantomData<fn() -> T>,
}

/// Reason for the end of a watch.
enum WatchEnd {
    Closed,
    Idle,
    WentBack,
    Error(InformerError),
}

impl<T: Object, S: ObjectSink<T>> FollowTask<T, S> {
    pub(super) fn new(client: Client, spec: Arc<FollowSpec>, sink: S) -> Self {
        let reflector = Reflector::new(spec.first_list, spec.source.paths.len(), spec.retry);
        let (list_begun, items, works, is_listed) = (Instant::now(), 0, None, false);
        let of = PhantomData;
        Self { client, spec, sink, reflector, list_begun, items, works, is_listed, of }
    }

    #[allow(clippy::manual_async_fn)] // An async fn's future would hold `self` twice.
    pub(super) fn run(mut self) -> impl Future<Output = ()> + use<T, S> {
        async move {
            let begun = Instant::now();
            loop {
                match self.reflector.plan(begun.elapsed(), jitter::random()) {
                    ReflectorPlan::Wait(wait) => sleep(wait).await,
                    ReflectorPlan::List(plan) => Box::pin(self.list(&plan)).await,
                    ReflectorPlan::ReadAgain => self.sink.read_again(),
                    ReflectorPlan::Watch(plan) => self.watch(&plan).await,
                }
            }
        }
    }

    async fn list(&mut self, plan: &ListPlan) {
        if plan.token.is_none() {
            self.sink.begin();
            (self.list_begun, self.items) = (Instant::now(), 0);
        }
        match self.page(plan).await {
            Ok(meta) => {
                self.report_success();
                if self.reflector.page(&meta.resource_version, &meta.r#continue) {
                    let took = self.list_begun.elapsed();
                    self.spec.observer.listed(&self.spec.name, took, self.items);
                    self.is_listed = true;
                    self.sink.complete().await;
                    self.sink.at_version(&meta.resource_version).await;
                    self.report_version();
                }
            }
            Err(error) => {
                if self.reflector.list_failed(&error) {
                    self.report_failure("list", &error);
                    if matches!(error, InformerError::NotFound(_)) && !self.is_listed {
                        self.sink.no_kind();
                    }
                }
            }
        }
    }

    /// Requests a page and passes on its objects.
    async fn page(&mut self, plan: &ListPlan) -> Result<ListMeta, InformerError> {
        let late = |_| {
            let seconds = PIECE_WAIT_MAX.as_secs();
            InformerError::Failed(format!("no part of the list arrived within {seconds} s"))
        };
        let path = self.spec.source.list_path(plan);
        let share = self.sink.share();
        let within = Some(PIECE_WAIT_MAX);
        let accepts = self.spec.source.accepts(true);
        let mut pieces = wire::open(&self.client, &path, accepts, &share, within).await?;
        let mut scanner = ListScanner::default();
        let no_list = |error: super::pages::NoList| InformerError::Failed(error.to_string());
        while let Some(piece) = timeout(PIECE_WAIT_MAX, pieces.next()).await.map_err(late)? {
            let (spec, sink, items) = (&self.spec, &mut self.sink, &mut self.items);
            let fed = scanner.feed(&piece?, &mut |item| match lines::item(item) {
                Ok(object) => {
                    *items += 1;
                    sink.listed(object);
                }
                Err(lost) => {
                    spec.unreadable(&lost);
                    sink.listed_unreadable(lost.object);
                }
            });
            fed.map_err(no_list)?;
            self.sink.wait_for_room().await;
        }
        scanner.finish().map_err(no_list)
    }

    async fn watch(&mut self, plan: &WatchPlan) {
        let begun = Instant::now();
        let ends = begun + plan.lasts_max;
        let end = match Box::pin(self.open(plan, ends)).await {
            Err(_) => WatchEnd::Closed,
            Ok(Err(error)) => WatchEnd::Error(error),
            Ok(Ok(pieces)) => {
                self.report_success();
                let end = self.follow(pieces, ends).await;
                let (took, items) = (begun.elapsed(), self.reflector.events());
                self.reflector.lasted(took);
                let short = self.reflector.is_short(took);
                self.spec.observer.watched(&self.spec.name, took, items, short);
                end
            }
        };
        match end {
            WatchEnd::Closed => self.reflector.closed(begun.elapsed()),
            WatchEnd::Idle => {
                tracing::debug!("the watch of {} is silent; listing again", self.spec.name);
                self.reflector.idle();
            }
            WatchEnd::WentBack => {
                tracing::warn!(
                    "the resource version of {} decreased; listing again",
                    self.spec.name
                );
            }
            WatchEnd::Error(error) => {
                if self.reflector.watch_failed(&error) {
                    self.report_failure("watch", &error);
                }
            }
        }
    }

    async fn open(
        &self,
        plan: &WatchPlan,
        ends: Instant,
    ) -> Result<Result<Pieces, InformerError>, Elapsed> {
        let path = self.spec.source.watch_path(plan);
        let share = self.sink.share();
        let until = ends.min(Instant::now() + OPEN_WAIT_MAX);
        let accepts = self.spec.source.accepts(false);
        timeout_at(until, wire::open(&self.client, &path, accepts, &share, None)).await
    }

    /// Handles events until the watch ends.
    async fn follow(&mut self, mut pieces: Pieces, ends: Instant) -> WatchEnd {
        let mut splitter = LineSplitter::default();
        loop {
            let idle = self.reflector.idle_max().map(|idle| Instant::now() + idle);
            let until = idle.map_or(ends, |idle| idle.min(ends));
            let piece = match timeout_at(until, pieces.next()).await {
                Err(_) if until == ends => return WatchEnd::Closed,
                Err(_) => return WatchEnd::Idle,
                Ok(None) => return WatchEnd::Closed,
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, "the watch of {} was interrupted", self.spec.name);
                    return WatchEnd::Closed;
                }
                Ok(Some(Ok(piece))) => piece,
            };
            let mut events = Vec::new();
            splitter.feed(&piece, &mut |line| events.push(lines::event(line)));
            for event in events {
                if let Some(end) = Box::pin(self.event(event)).await {
                    return end;
                }
            }
            self.report_version();
        }
    }

    /// Handles an event; returns the reason if the watch has to end.
    async fn event(&mut self, event: LineEvent<T>) -> Option<WatchEnd> {
        let (version, kind) = match &event {
            LineEvent::Added(object) => (object.resource_version(), VersionEvent::Added),
            LineEvent::Modified(object) | LineEvent::Deleted(object) => {
                (object.resource_version(), VersionEvent::Changed)
            }
            LineEvent::Bookmark(version) => (version.as_str(), VersionEvent::Bookmark),
            LineEvent::Unreadable(lost) => (lost.version.as_str(), VersionEvent::Changed),
            LineEvent::Error(error) => return Some(WatchEnd::Error(error.clone())),
        };
        if !self.reflector.event(version, kind) {
            return Some(WatchEnd::WentBack);
        }
        match event {
            LineEvent::Added(object) | LineEvent::Modified(object) => {
                self.sink.applied(object).await;
            }
            LineEvent::Deleted(object) => self.sink.deleted(object).await,
            LineEvent::Unreadable(lost) => {
                self.spec.unreadable(&lost);
                if let (true, Some(object)) = (lost.deleted, lost.object) {
                    self.sink.deleted_unreadable(object).await;
                }
            }
            LineEvent::Bookmark(version) => self.sink.at_version(&version).await,
            LineEvent::Error(_) => {}
        }
        None
    }

    fn report_version(&self) {
        if let Some(version) = self.reflector.version().and_then(|text| text.parse().ok()) {
            self.spec.observer.version(&self.spec.name, version);
        }
    }

    fn report_success(&mut self) {
        let before = self.works.replace(true);
        if before != Some(true) {
            self.spec.observer.works(&self.spec.name);
        }
        if before == Some(false) && !self.spec.quiet {
            tracing::info!("the API server answers for {} again", self.spec.name);
        }
    }

    fn report_failure(&mut self, what: &str, error: &InformerError) {
        self.spec.observer.fails(&self.spec.name, error);
        let name = &self.spec.name;
        // Logged once, because an outage may be long.
        match self.works.replace(false) {
            _ if self.spec.quiet => tracing::debug!(%error, "cannot {what} {name}"),
            // The definition of the kind was deleted.
            _ if self.is_listed && matches!(error, InformerError::NotFound(_)) => {
                tracing::debug!(%error, "cannot {what} {name}");
            }
            Some(false) => tracing::debug!(%error, "cannot {what} {name}"),
            _ => tracing::warn!(%error, "cannot {what} {name}; trying again"),
        }
    }
}

impl FollowSpec {
    fn unreadable(&self, lost: &Unreadable) {
        let key = lost.object.as_ref().map(|object| &object.key);
        let shown = key.map_or("?", |key| key.as_str());
        match lost.at {
            Some((line, column)) => {
                tracing::warn!(
                    key = shown,
                    line,
                    column,
                    "an object of {} cannot be decoded",
                    self.name
                );
            }
            None => tracing::warn!(
                key = shown,
                "an object of {} has more than {OBJECT_BYTES_MAX} bytes: its last known state is \
                 kept, if there is one",
                self.name
            ),
        }
        self.observer.unreadable(&self.name, key);
    }
}
