//! The whole state of `Pods`, as plain data: from there a replay continues like the agent.
//!
//! Pure. Values that follow from the rest are not in it and are rebuilt: indices, sums of admitted
//! pods, texts of checkpoints. All other state is here; a field that is forgotten shows as a
//! difference of a replay (`flight::proptests`). Only between two inputs, when no command waits.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::admit::TakenResources;
use crate::eviction::Evictor;
use crate::shutdown::Shutdown;
use crate::worker::Settings;
use crate::worker::garbage::Garbage;
use crate::worker::index::Index;
use crate::worker::line::{Blocked, StartQueue};
use crate::worker::lobby::Lobby;
use crate::worker::parts::{ListState, ResizeQueue};
use crate::worker::pods::{FullName, Pods};
use crate::worker::resizes::FREED;
use crate::worker::step::Worker;
use pintle_api_types::ids::{ContainerId, PodUid, Version};

/// See the module's header.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    settings: Settings,
    workers: BTreeMap<PodUid, Worker>,
    waiting: BTreeMap<PodUid, FullName>,
    blocked: BTreeMap<PodUid, Blocked>,
    lobby: Lobby,
    owners: Vec<(FullName, PodUid)>,
    freed: Vec<FullName>,
    sources_ready: bool,
    unreadable: BTreeSet<PodUid>,
    lists: ListState,
    counter: u64,
    resizes: ResizeQueue,
    room_freed: Option<String>,
    contested: Vec<(ContainerId, Option<PodUid>)>,
    #[serde(default)]
    shutdown: Option<Shutdown>,
    #[serde(default)]
    evictor: Evictor,
    #[serde(default)]
    garbage: Garbage,
}

impl State {
    /// Takes its pods out, to be written apart.
    pub(crate) fn take_workers(&mut self) -> BTreeMap<PodUid, Worker> {
        std::mem::take(&mut self.workers)
    }

    /// With the pods that were taken out.
    pub(crate) fn with_workers(mut self, workers: BTreeMap<PodUid, Worker>) -> Self {
        self.workers.extend(workers);
        self
    }
}

impl Pods {
    /// The current state.
    pub fn state(&self) -> State {
        assert!(self.out.is_empty(), "only between two inputs");
        let (waiting, blocked) = self.line.parts();
        State {
            settings: self.settings.clone(),
            workers: self.workers.clone(),
            waiting: waiting.clone(),
            blocked: blocked.clone(),
            lobby: self.lobby.clone(),
            owners: self.owners.iter().map(|(name, uid)| (name.clone(), uid.clone())).collect(),
            freed: self.freed.clone(),
            sources_ready: self.sources_ready,
            unreadable: self.unreadable.clone(),
            lists: self.lists.clone(),
            counter: self.counter,
            resizes: self.resizes.clone(),
            room_freed: self.notes.freed.map(str::to_owned),
            contested: self.index.contested(),
            shutdown: self.shutdown.clone(),
            evictor: self.evictor.clone(),
            garbage: self.garbage.clone(),
        }
    }
}

impl From<State> for Pods {
    fn from(state: State) -> Self {
        let mut pods = Self::new(state.settings);
        let (mut line, mut index) = (StartQueue::default(), Index::default());
        state.waiting.into_iter().for_each(|(uid, name)| line.wait(&uid, name));
        state.blocked.into_iter().for_each(|(uid, blocked)| line.block(&uid, blocked));
        for (uid, worker) in &state.workers {
            let never = (None, Version(u64::MAX));
            index.changed(uid, never, worker.indexed(), worker.observed());
        }
        index.contest(state.contested);
        pods.taken = TakenResources::of(state.workers.values().filter_map(Worker::admitted));
        for uid in state.workers.keys().chain(state.resizes.records.keys()) {
            pods.book.changed(uid);
        }
        (pods.line, pods.index, pods.workers) = (line, index, state.workers);
        pods.lobby = state.lobby;
        pods.owners = state.owners.into_iter().collect();
        pods.freed = state.freed;
        pods.sources_ready = state.sources_ready;
        pods.unreadable = state.unreadable;
        pods.lists = state.lists;
        pods.counter = state.counter;
        pods.resizes = state.resizes;
        pods.shutdown = state.shutdown;
        pods.evictor = state.evictor;
        pods.garbage = state.garbage;
        let freed = state.room_freed;
        pods.notes.freed = FREED.into_iter().find(|why| freed.as_deref() == Some(*why));
        pods
    }
}
