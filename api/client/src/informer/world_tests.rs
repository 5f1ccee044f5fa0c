//! Reflector, store and subscriber against a server that forgets, lags behind, refuses and is
//! restored from backups: in every case they end with the server's state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::{PrunedMeta, key_of};
use pintle_api_types::symbol::Symbol;
use proptest::prelude::*;
use serde::Deserialize;

use super::backoff::REFLECTOR_BACKOFF;
use super::error::InformerError;
use super::reflector::{FirstList, ListAt, ListPlan, Reflector, ReflectorPlan, VersionEvent};
use super::store::{Listed, ObjectStore};
use super::{ObjectChange, Subscription};

const LONG: Duration = Duration::from_secs(400);
const SHORT: Duration = Duration::from_millis(10);

fn expired() -> InformerError {
    InformerError::Expired("too old".to_owned())
}
fn too_large() -> InformerError {
    InformerError::TooLarge("too large".to_owned())
}
fn failed() -> InformerError {
    InformerError::Failed("no".to_owned())
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Thing {
    metadata: PrunedMeta,
    content: u64,
}
pintle_api_types::pruned_object!(Thing);

type Things = BTreeMap<u8, Thing>;

/// An event at the server, or on the way to it.
#[derive(Clone, Debug)]
enum Op {
    Put(u8),
    Delete(u8),
    Bookmark,
    /// Versions before the last are forgotten.
    Compact,
    /// Back by so many versions; the watch may break at that.
    Restore(u64, bool),
    /// The watch cache is so many versions behind.
    Lag(u64),
    /// The watch cache is off: lists come in pages.
    NoCache(bool),
    Close,
    Silence,
    /// The next request fails.
    Fail(InformerError),
    /// The watch ends with an error.
    Error(InformerError),
    /// The client does so many steps.
    Steps(u8),
}

struct ListServer {
    version: u64,
    things: Things,
    history: BTreeMap<u64, Things>,
    log: Vec<(u64, VersionEvent, bool, Thing)>,
    compacted: u64,
    restored: u64,
    contents: u64,
    lag: u64,
    no_cache: bool,
    fail: Option<InformerError>,
}

/// A page: its things, its version, and where the next one begins.
type Page = (Vec<Thing>, String, String);

impl ListServer {
    fn new() -> Self {
        let history = BTreeMap::from([(1, Things::new())]);
        let (things, log) = (Things::new(), Vec::new());
        let (lag, no_cache, fail) = (0, false, None);
        let (version, compacted, restored, contents) = (1, 1, 0, 0);
        Self { version, things, history, log, compacted, restored, contents, lag, no_cache, fail }
    }

    fn change(&mut self, name: u8, put: bool) {
        let old = self.things.get(&name).cloned();
        let Some(uid) = old.as_ref().map_or(put.then_some(self.contents), |_| Some(0)) else {
            return;
        };
        self.version += 1;
        self.contents += 1;
        let resource_version = self.version.to_string().into();
        let (old_uid, known) = (old.as_ref().map(|old| old.metadata.uid.clone()), old.is_some());
        let metadata = PrunedMeta {
            name: name.to_string().into(),
            namespace: Symbol::of("n"),
            uid: old_uid.unwrap_or_else(|| uid.to_string().into()),
            resource_version,
        };
        let thing = Thing { metadata, content: self.contents };
        if put {
            self.things.insert(name, thing.clone());
        } else {
            self.things.remove(&name);
        }
        let kind = if put && !known { VersionEvent::Added } else { VersionEvent::Changed };
        self.log.push((self.version, kind, put, thing));
        self.history.insert(self.version, self.things.clone());
    }

    fn restore(&mut self, back: u64) {
        let to = self.version.saturating_sub(back).max(self.compacted);
        let Some(things) = self.history.get(&to).cloned() else { return };
        (self.version, self.things) = (to, things);
        self.history.retain(|version, _| *version <= to);
        self.log.retain(|(version, ..)| *version <= to);
        self.restored += 1;
    }

    fn list(&mut self, plan: &ListPlan) -> Result<Page, InformerError> {
        if let Some(error) = self.fail.take() {
            return Err(error);
        }
        let (version, after) = match (&plan.token, &plan.at) {
            (Some(token), _) => {
                let parts: Vec<u64> = token.split(':').map(|n| n.parse().expect("ours")).collect();
                if parts[0] < self.compacted || parts[2] != self.restored {
                    return Err(expired());
                }
                (parts[0], u8::try_from(parts[1]).ok())
            }
            (None, ListAt::Any) => {
                let lagging = self.version.saturating_sub(self.lag).max(self.compacted);
                (if self.no_cache { self.version } else { lagging }, None)
            }
            (None, ListAt::NotOlderThan(least)) => {
                if least.parse::<u64>().expect("ours") > self.version {
                    return Err(too_large());
                }
                (self.version, None)
            }
            (None, ListAt::Newest) => (self.version, None),
        };
        let things = &self.history[&version];
        let rest = things.iter().filter(|(name, _)| after.is_none_or(|after| **name > after));
        let rest: Vec<_> = rest.map(|(name, thing)| (*name, thing.clone())).collect();
        let divided = plan.limit.is_some() && (self.no_cache || plan.at == ListAt::Newest);
        let page = if divided { rest.len().min(2) } else { rest.len() };
        let token = match page < rest.len() {
            true => format!("{version}:{}:{}", rest[page - 1].0, self.restored),
            false => String::new(),
        };
        let things = rest[..page].iter().map(|(_, thing)| thing.clone()).collect();
        Ok((things, version.to_string(), token))
    }

    fn watch(&mut self, from: &str) -> Result<u64, InformerError> {
        if let Some(error) = self.fail.take() {
            return Err(error);
        }
        let from: u64 = from.parse().expect("ours");
        if from < self.compacted { Err(expired()) } else { Ok(from) }
    }
}

struct Client {
    now: Duration,
    reflector: Reflector,
    store: Arc<ObjectStore<Thing>>,
    subscription: Subscription<Thing>,
    mirror: BTreeMap<ObjectKey, Arc<Thing>>,
    listed: Listed<Thing>,
    /// The version from which an open watch continues.
    stream: Option<u64>,
    /// The version that is known is of a time before the server was restored.
    outdated: bool,
}

impl Client {
    fn new(first: FirstList) -> Self {
        let store = Arc::new(ObjectStore::new(&[]));
        Self {
            now: Duration::ZERO,
            reflector: Reflector::new(first, 1, REFLECTOR_BACKOFF),
            subscription: Subscription::new(&store),
            store,
            mirror: BTreeMap::new(),
            listed: Listed::default(),
            stream: None,
            outdated: false,
        }
    }

    /// True if a write would overtake the version that the client knew before a restore: a client
    /// that has versions only cannot see that.
    fn is_overtaken_by(&self, server: &ListServer) -> bool {
        let known = self.reflector.version().and_then(|version| version.parse::<u64>().ok());
        self.outdated && known.is_some_and(|known| server.version + 1 >= known)
    }

    fn end(&mut self, lasted: Duration) {
        if self.stream.take().is_some() {
            self.now += lasted;
            self.reflector.lasted(lasted);
            self.reflector.closed(lasted);
        }
    }

    fn step(&mut self, server: &mut ListServer) {
        if let Some(from) = self.stream {
            return self.follow(server, from);
        }
        match self.reflector.plan(self.now, 0.5) {
            ReflectorPlan::Wait(wait) => self.now += wait,
            ReflectorPlan::ReadAgain => unreachable!("there are lists"),
            ReflectorPlan::List(plan) => {
                if plan.token.is_none() {
                    self.listed = Listed::default();
                }
                match server.list(&plan) {
                    Ok((things, version, token)) => {
                        self.listed.objects.extend(things);
                        if self.reflector.page(&version, &token) {
                            self.store.replace(std::mem::take(&mut self.listed));
                            self.outdated = false;
                        }
                    }
                    Err(error) => {
                        self.reflector.list_failed(&error);
                    }
                }
            }
            ReflectorPlan::Watch(plan) => match server.watch(&plan.from) {
                Ok(from) => self.stream = Some(from),
                Err(error) => {
                    self.reflector.watch_failed(&error);
                }
            },
        }
    }

    /// The next event of an open watch.
    fn follow(&mut self, server: &ListServer, from: u64) {
        let next = server.log.iter().find(|(version, ..)| *version > from);
        let Some((version, kind, put, thing)) = next else { return };
        self.stream = Some(*version);
        if !self.reflector.event(&version.to_string(), *kind) {
            self.stream = None;
        } else if *put {
            self.store.apply(thing.clone());
        } else {
            self.store.delete(thing.clone());
        }
    }

    /// Checks that the subscriber's changes are consistent.
    fn listen(&mut self) {
        while let Some(change) = self.subscription.try_next() {
            match change {
                ObjectChange::Added { object, .. } => {
                    let before = self.mirror.insert(key_of(&*object), object);
                    assert_eq!(before, None, "added twice");
                }
                ObjectChange::Updated { old, new } => {
                    let before = self.mirror.insert(key_of(&*new), new);
                    assert_eq!(before, Some(old), "updated from something else");
                }
                ObjectChange::Deleted { object, .. } => {
                    let before = self.mirror.remove(&key_of(&*object));
                    assert_eq!(
                        before.map(|old| old.metadata.uid.clone()),
                        Some(object.metadata.uid.clone())
                    );
                }
            }
        }
    }

    fn knows(&self, server: &ListServer) -> bool {
        let mut known: Vec<_> = self.store.list().iter().map(|thing| (**thing).clone()).collect();
        known.sort_by_key(|thing| thing.metadata.name.parse::<u8>().expect("ours"));
        self.store.is_synced() && known == server.things.values().cloned().collect::<Vec<_>>()
    }
}

fn happen(op: &Op, server: &mut ListServer, client: &mut Client) {
    match op {
        Op::Put(_) | Op::Delete(_) if client.is_overtaken_by(server) => {}
        Op::Put(name) => server.change(*name, true),
        Op::Delete(name) => server.change(*name, false),
        Op::Bookmark => {
            // A server that is not that far, or has events to send first, sends none.
            let version = server.version.to_string();
            if client.stream.is_some_and(|from| from == server.version)
                && !client.reflector.event(&version, VersionEvent::Bookmark)
            {
                client.stream = None;
            }
        }
        Op::Compact => server.compacted = server.version,
        Op::Restore(back, breaks) => {
            server.restore(*back);
            let known = client.reflector.version().and_then(|version| version.parse::<u64>().ok());
            client.outdated |= known.is_some_and(|known| known > server.version);
            match breaks {
                true => client.end(SHORT),
                false => client.stream = client.stream.map(|from| from.min(server.version)),
            }
        }
        Op::Lag(lag) => server.lag = *lag,
        Op::NoCache(no_cache) => server.no_cache = *no_cache,
        Op::Close => client.end(LONG),
        Op::Silence => {
            if client.stream.is_some() && client.reflector.idle_max().is_some() {
                client.stream = None;
                client.reflector.idle();
            }
        }
        Op::Fail(error) => server.fail = Some(error.clone()),
        Op::Error(error) => {
            if client.stream.take().is_some() {
                client.reflector.watch_failed(error);
            }
        }
        Op::Steps(steps) => (0..*steps).for_each(|_| client.step(server)),
    }
}

fn op() -> impl Strategy<Value = Op> {
    let error = prop_oneof![
        Just(expired()),
        Just(too_large()),
        Just(failed()),
        Just(InformerError::Busy(String::new())),
        Just(InformerError::Unreachable(String::new())),
        Just(InformerError::Lost(String::new())),
        Just(InformerError::NotFound(String::new())),
    ];
    prop_oneof![
        6 => (0..6_u8).prop_map(Op::Put),
        3 => (0..6_u8).prop_map(Op::Delete),
        1 => Just(Op::Bookmark),
        1 => Just(Op::Compact),
        1 => (1..10_u64, any::<bool>()).prop_map(|(back, breaks)| Op::Restore(back, breaks)),
        1 => (0..5_u64).prop_map(Op::Lag),
        1 => any::<bool>().prop_map(Op::NoCache),
        1 => Just(Op::Close),
        1 => Just(Op::Silence),
        1 => error.clone().prop_map(Op::Fail),
        1 => error.prop_map(Op::Error),
        6 => (1..8_u8).prop_map(Op::Steps),
    ]
}

#[test]
fn default_first_list_is_not_older_than_its_request() {
    let (mut server, mut client) = (ListServer::new(), Client::new(FirstList::default()));
    (0..6).for_each(|name| server.change(name, true));
    server.lag = 3;
    while !client.store.is_synced() {
        client.step(&mut server);
    }
    assert!(client.knows(&server), "{:?}", client.store.list());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn store_and_subscriber_converge_to_the_server_state(
        newest in any::<bool>(),
        ops in proptest::collection::vec((op(), any::<bool>()), 0..60),
    ) {
        let first = if newest { FirstList::Newest } else { FirstList::Any };
        let (mut server, mut client) = (ListServer::new(), Client::new(first));
        for (op, listens) in &ops {
            happen(op, &mut server, &mut client);
            if *listens {
                client.listen();
            }
        }
        // From now on the server works and nothing is written. A silent watch with a differing
        // store is ended by its silence, or by its own time.
        server.fail = None;
        let mut settled = false;
        for _ in 0..20 {
            (0..200).for_each(|_| client.step(&mut server));
            settled = client.knows(&server);
            if settled {
                break;
            }
            happen(&Op::Silence, &mut server, &mut client);
            client.end(LONG);
        }
        prop_assert!(settled, "{:?} instead of {:?}", client.store.list(), server.things);
        client.listen();
        let told: Vec<_> = client.mirror.values().map(|thing| (**thing).clone()).collect();
        prop_assert_eq!(told, server.things.values().cloned().collect::<Vec<_>>());
        prop_assert!(client.subscription.has_synced());
    }
}
