//! Writes that the shadow would make and those that the acting manager made, matched.
//!
//! Input: the writes of each sync, the changes in the tables, the time. Output: a
//! [`ShadowReport`]. A sync replaces what an earlier sync of its key would have written. A write
//! that is still wanted after [`DOUBT_WAIT`] is a difference; so is a change that no sync wants
//! within that time, if only a controller makes such changes. Pure. Bounds: the writes of one sync
//! for each key.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{PODS, REPLICA_SETS, REPLICATION_CONTROLLERS};
use pintle_api_types::request::Request;
use pintle_controllers_core::frame::Now;
use pintle_controllers_core::tables::{Change, Tables};
use serde_json::Value;

use super::mark::{self, Action, Deed, WriteMark};
use super::report::{ShadowReport, WriteDifference, WriteSide};

/// How long a write may be missing: a busy API server takes seconds for it.
pub const DOUBT_WAIT: Duration = Duration::from_secs(10);
/// Letters of a content that are shown.
const CONTENT_MAX: usize = 600;

/// Controllers that delete objects of other clients: a deletion that they no longer want was a
/// mistake. Deletions by other controllers depend on counts, which change.
const DELETERS: [&str; 2] = ["garbage-collector-controller", "namespace-controller"];

/// A controller and a key of it.
type Source = (&'static str, String);

/// A write that the shadow would make.
#[derive(Clone, Debug)]
struct Intent {
    deed: Deed,
    count: usize,
    since: Instant,
    /// Its key was synced again, to see whether the write is still wanted.
    is_asked: bool,
    is_reported: bool,
}

/// A change that the shadow did not want.
#[derive(Clone, Debug)]
struct Doubt {
    controller: &'static str,
    deed: Deed,
    since: Instant,
}

/// The writes of both sides.
#[derive(Debug, Default)]
pub struct Ledger {
    controllers: BTreeSet<&'static str>,
    intents: BTreeMap<Source, BTreeMap<WriteMark, Intent>>,
    by_mark: BTreeMap<WriteMark, BTreeSet<Source>>,
    doubts: VecDeque<Doubt>,
    /// Writes that are not wanted any more, for as long as the other may still make them.
    dropped: VecDeque<(Instant, &'static str, WriteMark)>,
    /// Deletions that may be a user's, for as long as a sync may want them later.
    unattributed: VecDeque<(Instant, WriteMark)>,
    report: ShadowReport,
}

impl Ledger {
    /// One that compares these controllers.
    pub fn new(controllers: impl IntoIterator<Item = &'static str>) -> Self {
        Self { controllers: controllers.into_iter().collect(), ..Self::default() }
    }

    /// The result of the comparison so far.
    pub fn report(&self) -> &ShadowReport {
        &self.report
    }

    /// The differences since the last call, to be logged.
    pub fn take_fresh(&mut self) -> Vec<WriteDifference> {
        self.report.take_fresh()
    }

    /// A sync of the shadow failed.
    pub fn note_failure(&mut self, controller: &'static str) {
        *self.report.failed_syncs.entry(controller).or_default() += 1;
    }

    /// A sync of a key would make these writes.
    pub fn decide(
        &mut self,
        controller: &'static str,
        key: String,
        writes: &[Request],
        tables: &Tables,
        now: Now,
    ) {
        let source = (controller, key);
        let mut new: BTreeMap<WriteMark, Intent> = BTreeMap::new();
        for deed in writes.iter().filter_map(|write| mark::of_request(write, tables)) {
            if self.resolve_doubt(&deed) || self.claim_deletion(controller, &deed) {
                continue;
            }
            let since = now.instant;
            let (is_asked, is_reported) = (false, false);
            let intent = Intent { deed, count: 0, since, is_asked, is_reported };
            let known = new.entry(intent.deed.mark.clone()).or_insert(intent.clone());
            known.count += 1;
            // The last of several writes of one object counts.
            known.deed = intent.deed;
        }
        let old = self.intents.remove(&source).unwrap_or_default();
        for (mark, old) in old {
            match new.get_mut(&mark) {
                Some(known) => {
                    (known.since, known.is_reported) = (old.since, old.is_reported);
                    known.is_asked = old.is_asked;
                }
                None => self.drop_intent(&source, &old, tables, now),
            }
        }
        for mark in new.keys() {
            self.by_mark.entry(mark.clone()).or_default().insert(source.clone());
        }
        if !new.is_empty() {
            self.intents.insert(source, new);
        }
    }

    /// The write is not wanted any more.
    fn drop_intent(&mut self, source: &Source, old: &Intent, tables: &Tables, now: Now) {
        self.unlist(&old.deed.mark, source);
        let mark = &old.deed.mark;
        let is_there = tables
            .meta(mark.kind, &old.deed.key)
            .is_some_and(|meta| meta.uid.as_str() == mark.object && !meta.is_deleting());
        if mark.action == Action::Delete && is_there && DELETERS.contains(&source.0) {
            self.add(WriteSide::Withdrawn, source.0, &old.deed);
        } else if mark.action != Action::DeleteAll {
            self.report.of(source.0, &mark.reason()).overtaken += 1;
            self.dropped.push_back((now.instant, source.0, mark.clone()));
        }
    }

    /// The other decided upon a state that is a little older, as a batch of writes does.
    fn match_dropped(&mut self, deed: &Deed) -> bool {
        let is_it = |(_, _, mark): &(Instant, &str, WriteMark)| *mark == deed.mark;
        let chosen = matches!(deed.mark.action, Action::Create | Action::Delete);
        let Some(at) = self.dropped.iter().position(is_it).filter(|_| chosen) else { return false };
        let (_, controller, mark) = self.dropped.remove(at).expect("it was found");
        let counts = self.report.of(controller, &mark.reason());
        (counts.same, counts.overtaken) = (counts.same + 1, counts.overtaken - 1);
        true
    }

    fn unlist(&mut self, mark: &WriteMark, source: &Source) {
        if let Some(sources) = self.by_mark.get_mut(mark) {
            sources.remove(source);
            if sources.is_empty() {
                self.by_mark.remove(mark);
            }
        }
    }

    /// Something changed in the cluster.
    pub fn note_change(&mut self, change: &Change, tables: &Tables, now: Now) {
        let mut deeds = mark::of_change(change, tables);
        let is_creation = deeds.first().is_some_and(|deed| deed.mark.action == Action::Create);
        if is_creation {
            // Alternatives of one deed: the last names the object for doubts.
            if deeds.iter().any(|deed| self.match_deed(deed, now) || self.match_dropped(deed)) {
                return;
            }
            deeds = deeds.pop().into_iter().collect();
        } else {
            deeds.retain(|deed| {
                !self.match_deed(deed, now)
                    && !self.match_dropped(deed)
                    && !self.match_equal_victim(change, deed, tables, now)
            });
        }
        for deed in deeds {
            self.doubt(change, deed, tables, now);
        }
    }

    /// Counts a deed that the shadow wants, too.
    fn match_deed(&mut self, deed: &Deed, now: Now) -> bool {
        let Some(source) = self.by_mark.get(&deed.mark).and_then(|all| all.first()).cloned() else {
            return self.is_collected(deed);
        };
        let intents = self.intents.get_mut(&source).expect("a listed mark has an intent");
        let intent = intents.get_mut(&deed.mark).expect("a listed mark has an intent");
        let is_same = deed.content.is_none()
            || intent.deed.content.is_none()
            || deed.content == intent.deed.content;
        (intent.count, intent.since) = (intent.count - 1, now.instant);
        (intent.is_asked, intent.is_reported) = (false, false);
        let is_last = intent.count == 0;
        if is_last {
            intents.remove(&deed.mark);
            if intents.is_empty() {
                self.intents.remove(&source);
            }
            self.unlist(&deed.mark, &source);
        }
        let counts = self.report.of(source.0, &deed.mark.reason());
        if is_same {
            counts.same += 1
        } else {
            counts.overtaken += 1
        }
        true
    }

    /// The shadow would delete another pod of the same rank: the order of such pods is chance.
    fn match_equal_victim(
        &mut self,
        change: &Change,
        deed: &Deed,
        tables: &Tables,
        now: Now,
    ) -> bool {
        let Some(source) = self.chooser(change, deed) else { return false };
        let Some(victim) = mark::victim(change) else { return false };
        let is_equal = |known: &Intent| {
            known.deed.mark.action == Action::Delete
                && tables.pods.get(&known.deed.key).is_some_and(|pod| mark::is_tie(pod, victim))
        };
        let intents = self.intents.get(&source);
        let equal = intents.and_then(|all| all.values().find(|known| is_equal(known)));
        let Some(equal) = equal.map(|equal| equal.deed.clone()) else { return false };
        self.match_deed(&equal, now)
    }

    /// The shadow deletes all objects of the kind in the namespace.
    fn is_collected(&mut self, deed: &Deed) -> bool {
        if deed.mark.action != Action::Delete {
            return false;
        }
        let object = deed.key.namespace().to_owned();
        let all = WriteMark { action: Action::DeleteAll, kind: deed.mark.kind, object };
        let Some(source) = self.by_mark.get(&all).and_then(|all| all.first()).cloned() else {
            return false;
        };
        self.report.of(source.0, &all.reason()).same += 1;
        true
    }

    fn doubt(&mut self, change: &Change, deed: Deed, tables: &Tables, now: Now) {
        let author = mark::author(change, &deed, tables)
            .or_else(|| self.chooser(change, &deed).map(|source| source.0));
        match author.filter(|name| self.controllers.contains(name)) {
            Some(controller) => {
                self.doubts.push_back(Doubt { controller, deed, since: now.instant });
            }
            None if deed.mark.action == Action::Delete => {
                self.report.unattributed_deletions += 1;
                self.unattributed.push_back((now.instant, deed.mark));
            }
            None => {}
        }
    }

    /// The controller and key that would delete other pods of the same owner.
    fn chooser(&self, change: &Change, deed: &Deed) -> Option<Source> {
        let owner =
            change.old_meta().filter(|_| deed.mark.action == Action::Delete)?.controller()?;
        let controller = mark::controller_of(&owner.kind)?;
        let key = ObjectKey::new(deed.key.namespace(), &owner.name).to_string();
        let source = (controller, key);
        let intents = self.intents.get(&source)?;
        let is_other = |known: &WriteMark| {
            known.action == Action::Delete && known.kind == deed.mark.kind && *known != deed.mark
        };
        intents.keys().any(is_other).then_some(source)
    }

    /// A sync that waited for a live read wants a deletion that was made meanwhile.
    fn claim_deletion(&mut self, controller: &'static str, deed: &Deed) -> bool {
        let Some(at) = self.unattributed.iter().position(|(_, mark)| *mark == deed.mark) else {
            return false;
        };
        self.unattributed.remove(at);
        self.report.unattributed_deletions -= 1;
        self.report.of(controller, &deed.mark.reason()).same += 1;
        true
    }

    /// A sync wants a change that was made a moment ago.
    fn resolve_doubt(&mut self, deed: &Deed) -> bool {
        let is_it =
            |doubt: &Doubt| doubt.deed.mark == deed.mark && doubt.deed.content == deed.content;
        let Some(at) = self.doubts.iter().position(is_it) else { return false };
        let doubt = self.doubts.remove(at).expect("it was found");
        self.report.of(doubt.controller, &deed.mark.reason()).same += 1;
        true
    }

    /// Reports what has been missing for too long. Returns keys to be synced again, because nothing
    /// may have woken them since the other wrote.
    pub fn tick(&mut self, now: Now, tables: &Tables) -> Vec<(&'static str, ObjectKey)> {
        let is_over = |since: Instant| since + DOUBT_WAIT <= now.instant;
        while self.doubts.front().is_some_and(|doubt| is_over(doubt.since)) {
            let doubt = self.doubts.pop_front().expect("it is there");
            self.add(WriteSide::Theirs, doubt.controller, &doubt.deed);
        }
        while self.unattributed.front().is_some_and(|(since, _)| is_over(*since)) {
            self.unattributed.pop_front();
        }
        while self.dropped.front().is_some_and(|(since, ..)| is_over(*since)) {
            self.dropped.pop_front();
        }
        let mut doubted = Vec::new();
        let mut missing = Vec::new();
        for (source, intents) in &mut self.intents {
            for intent in intents.values_mut() {
                if !intent.is_asked && intent.since + DOUBT_WAIT / 2 <= now.instant {
                    intent.is_asked = true;
                    let (namespace, name) = source.1.split_once('/').unwrap_or(("", &source.1));
                    doubted.push((source.0, ObjectKey::new(namespace, name)));
                } else if !intent.is_reported && is_over(intent.since) {
                    intent.is_reported = true;
                    missing.push((source.clone(), intent.deed.clone()));
                }
            }
        }
        for ((controller, key), deed) in missing {
            if deed.mark.action == Action::DeleteAll
                && !tables.has_undeleted(deed.mark.kind, &deed.mark.object)
            {
                continue; // nothing that could be seen to go
            }
            if is_refused(controller, &key, &deed, tables) {
                self.report.of(controller, &deed.mark.reason()).refused += 1;
            } else {
                self.add(WriteSide::Ours, controller, &deed);
            }
        }
        doubted
    }

    fn add(&mut self, side: WriteSide, controller: &'static str, deed: &Deed) {
        let content = deed.content.as_ref().map(Value::to_string).unwrap_or_default();
        let content = content.chars().take(CONTENT_MAX).collect();
        let (reason, object) = (deed.mark.reason(), deed.name.clone());
        self.report.add(WriteDifference { controller, reason, side, object, content });
    }
}

/// The acting manager tries the same, and the API server refuses it.
fn is_refused(controller: &str, key: &str, deed: &Deed, tables: &Tables) -> bool {
    if deed.mark.action == Action::Create && mark::is_namespace_going(deed.key.namespace(), tables)
    {
        return true;
    }
    let kind = match controller {
        "replicaset-controller" => REPLICA_SETS,
        "replicationcontroller-controller" => REPLICATION_CONTROLLERS,
        _ => return false,
    };
    let (namespace, name) = key.split_once('/').unwrap_or(("", key));
    let key = ObjectKey::new(namespace, name);
    let Some(set) = tables.value(kind, &key).filter(|_| deed.mark.kind == PODS) else {
        return false;
    };
    let conditions = set["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .any(|found| found["type"] == "ReplicaFailure" && found["status"] == "True")
}
