//! All objects of one kind, followed by one watch and kept as small as their readers allow.
//!
//! The watch brings the initial objects one by one, so that there is never a list of all of them;
//! an API server that cannot do so is asked for pages of `PAGE` objects. A kind that the API server does not have
//! under one path is looked for under the next.
//!
//! Effects; the record is one value. Owner: whoever holds the `Collection`. Bounds: what is kept is
//! the record's to bound; one watch.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::time::Duration;

use kube::Client;
use pintle_api::Share;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::object::Meta;
use super::wire::{self, Event, Events, Pace, WireError};

/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Objects of one answer to a list.
const PAGE: u32 = 500;
/// How long a watch is asked to last, in seconds.
const WATCH_SECONDS: u32 = 600;

/// What is kept of the objects.
pub(super) trait Kept: Default + 'static {
    /// An object on the wire.
    type Wire: DeserializeOwned + 'static;
    /// Where the objects are; more than one where a kind changed its version.
    const PATHS: &'static [&'static str];
    /// For messages.
    const NAME: &'static str;

    /// The object's metadata.
    fn meta(object: &Self::Wire) -> &Meta;
    /// It was added or changed; false when there is no room for it.
    fn put(&mut self, object: Self::Wire) -> bool;
    /// It was deleted.
    fn remove(&mut self, object: Self::Wire);
}

#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct ListWire<T> {
    metadata: ListMeta,
    items: Vec<T>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct ListMeta {
    resource_version: String,
    /// Where the next page begins; empty on the last one.
    r#continue: String,
}

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing yet.
    Nothing,
    /// That the API server has no such kind.
    NoKind,
    /// All objects.
    All,
}

struct State<K> {
    kept: RefCell<K>,
    known: Cell<Known>,
    /// Grows with each change.
    version: watch::Sender<u64>,
    told_full: Cell<bool>,
}

/// The watch of all objects of a kind, open while somebody wants them.
pub(super) struct Collection<K: Kept> {
    state: Rc<State<K>>,
    task: RefCell<Option<JoinHandle<()>>>,
}

impl<K: Kept> Default for Collection<K> {
    fn default() -> Self {
        let state = State {
            kept: RefCell::default(),
            known: Cell::new(Known::Nothing),
            version: watch::Sender::new(0),
            told_full: Cell::new(false),
        };
        Self { state: Rc::new(state), task: RefCell::default() }
    }
}

impl<K: Kept> Collection<K> {
    /// Opens the watch if it is not.
    pub(super) fn open(&self, client: &Client) {
        self.task.borrow_mut().get_or_insert_with(|| {
            pintle_daemon::tasks::singleton(
                "collection",
                run(client.clone(), Rc::clone(&self.state)),
            )
        });
    }

    /// Ends the watch and forgets what it told.
    pub(super) fn close(&self) {
        if let Some(task) = self.task.borrow_mut().take() {
            task.abort();
        }
        self.state.known.set(Known::Nothing);
        *self.state.kept.borrow_mut() = K::default();
    }

    /// What is known, after `patience` at the latest.
    pub(super) async fn known(&self, patience: Duration) -> Known {
        let mut versions = self.state.version.subscribe();
        let told = async {
            while self.state.known.get() == Known::Nothing {
                if versions.changed().await.is_err() {
                    return;
                }
            }
        };
        // Whatever is known then is the answer.
        let _ = tokio::time::timeout(patience, told).await;
        self.state.known.get()
    }

    /// The record.
    pub(super) fn kept(&self) -> Ref<'_, K> {
        self.state.kept.borrow()
    }

    /// Tells of changes.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.state.version.subscribe()
    }
}

impl<K: Kept> Drop for Collection<K> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Where a watch stands.
struct Place {
    /// Which of the kind's paths.
    path: usize,
    /// The version that it goes on from; `None` begins anew.
    from: Option<String>,
    /// The API server can begin a watch with all objects.
    streams: bool,
}

async fn run<K: Kept>(client: Client, state: Rc<State<K>>) {
    let mut pace = Pace::new(RETRY.0, RETRY.1);
    let mut place = Place { path: 0, from: None, streams: true };
    let mut said = String::new();
    loop {
        match follow(&client, &state, &mut place, &mut pace).await {
            Ok(()) => said.clear(),
            Err(WireError::Gone(_)) => place.from = None,
            Err(WireError::Refused(_)) if place.streams && place.from.is_none() => {
                place.streams = false;
            }
            Err(WireError::NotFound(_)) => {
                place = Place { path: place.path + 1, from: None, streams: true };
                if place.path < K::PATHS.len() {
                    continue;
                }
                // It may come: an API server is changed one setting at a time.
                place.path = 0;
                if state.known.get() == Known::Nothing {
                    state.tell(Known::NoKind);
                }
            }
            Err(error) => {
                let error = error.to_string();
                // Pods may wait for them: said aloud, but not over and over.
                if error == said {
                    tracing::debug!(error, "{} cannot be watched", K::NAME);
                } else {
                    tracing::warn!(error, "{} cannot be watched; trying again", K::NAME);
                }
                said = error;
            }
        }
        pace.wait().await;
    }
}

async fn follow<K: Kept>(
    client: &Client,
    state: &State<K>,
    place: &mut Place,
    pace: &mut Pace,
) -> Result<(), WireError> {
    let at = K::PATHS[place.path];
    let mut fresh = K::default();
    if place.from.is_none() && !place.streams {
        let version =
            list(client, at, &mut |object| state.has_room::<K>(fresh.put(object))).await?;
        state.replace(std::mem::take(&mut fresh));
        place.from = Some(version);
    }
    let mut initial = place.from.is_none();
    let mut events =
        Events::<K::Wire>::open(client, &Share::default(), &path(at, place.from.as_deref()))
            .await?;
    while let Some(event) = events.next().await {
        let event = event?;
        pace.reset();
        if initial {
            match event {
                Event::Bookmark(version, true) => {
                    initial = false;
                    state.replace(std::mem::take(&mut fresh));
                    place.from = Some(version);
                }
                other => apply(state, &mut fresh, other),
            }
            continue;
        }
        place.from = Some(version_of::<K>(&event));
        let changes = !matches!(event, Event::Bookmark(..));
        apply(state, &mut *state.kept.borrow_mut(), event);
        if changes {
            state.tell(Known::All);
        }
    }
    Ok(())
}

/// Every object, page by page; returns the version that they are of.
async fn list<T: DeserializeOwned>(
    client: &Client,
    at: &str,
    take: &mut impl FnMut(T),
) -> Result<String, WireError> {
    let mut next = String::new();
    loop {
        let more = match next.is_empty() {
            true => String::new(),
            false => format!("&continue={}", escaped(&next)),
        };
        let path = format!("{at}?limit={PAGE}{more}");
        let page: ListWire<T> = wire::read(client, &Share::default(), &path).await?;
        page.items.into_iter().for_each(&mut *take);
        if page.metadata.r#continue.is_empty() {
            return Ok(page.metadata.resource_version);
        }
        next = page.metadata.r#continue;
    }
}

/// Tokens of pages are base64 for URLs today, which nobody promises.
fn escaped(token: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let each = token.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    each.collect()
}

fn path(at: &str, from: Option<&str>) -> String {
    let begin = match from {
        Some(version) => format!("resourceVersion={version}"),
        None => "resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".into(),
    };
    format!("{at}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&{begin}")
}

fn version_of<K: Kept>(event: &Event<K::Wire>) -> String {
    match event {
        Event::Applied(object) | Event::Deleted(object) => K::meta(object).resource_version.clone(),
        Event::Bookmark(version, _) => version.clone(),
    }
}

fn apply<K: Kept>(state: &State<K>, kept: &mut K, event: Event<K::Wire>) {
    match event {
        Event::Applied(object) => state.has_room::<K>(kept.put(object)),
        Event::Deleted(object) => kept.remove(object),
        Event::Bookmark(..) => {}
    }
}

impl<K> State<K> {
    fn replace(&self, kept: K) {
        *self.kept.borrow_mut() = kept;
        self.tell(Known::All);
    }

    /// Says once that one was left out.
    fn has_room<T: Kept>(&self, it_has: bool) {
        if !it_has && !self.told_full.replace(true) {
            tracing::warn!("there are more {} than the agent keeps; pods miss the others", T::NAME);
        }
    }

    fn tell(&self, known: Known) {
        self.known.set(known);
        self.version.send_modify(|version| *version += 1);
    }
}
