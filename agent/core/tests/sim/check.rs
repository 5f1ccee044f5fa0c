//! The rules that hold at every step, and those that must hold in the end.

use std::collections::{BTreeMap, BTreeSet};

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use pintle_agent_core::observed::RunState;
use pintle_agent_core::types::{Mono, PodUid};

use crate::apiserver::ApiServer;
use crate::faults::{Fault, Faults};
use crate::pods::{Behaviour, Box, Manifest};
use crate::rng::Rng;
use crate::runtime::{Container, Runtime};

/// Longest time from a change to its consequences, in addition to the waits that belong to it.
const SLACK: Duration = Duration::from_secs(40);

/// Why nothing more is started of a pod.
const PHASE_IS_TERMINAL: &str = "its phase is terminal";

/// The checker's memory of the world.
#[derive(Debug, Default)]
pub struct Checker {
    /// Of every pod there ever was the last version, with the containers that only others had.
    pub known: BTreeMap<PodUid, Manifest>,
    /// How often each container was started.
    starts: BTreeMap<(PodUid, String), u32>,
    /// Init containers that ended well and sidecars that started, by sandbox.
    passed: BTreeSet<(String, String)>,
    /// Pods that the agent knows to be over: nothing of them may be started.
    ended: BTreeMap<PodUid, &'static str>,
    /// Pods with a removed manifest, of which something is left.
    away: BTreeSet<PodUid>,
    /// Pods with a manifest that was removed and came back before nothing was left of them.
    again: BTreeSet<PodUid>,
    /// Terminal phases that were published.
    terminal: BTreeMap<PodUid, String>,
    /// Pods with a deadline and an end that only a dead agent has reported.
    untold: BTreeSet<PodUid>,
    /// Pods whose deadline has passed, which only a dead agent has reported.
    past_deadline: BTreeSet<PodUid>,
    /// When a stop of the container was first requested, and with how much time.
    pub stops: BTreeMap<String, (Mono, i64)>,
    /// The last status of each pod.
    pub statuses: BTreeMap<PodUid, Arc<PodStatus>>,
    /// The machine shuts down: pods may have less time than they request.
    pub shuts_down: bool,
    /// Pods that ended for a shutdown, or were refused because of one.
    shut_down: BTreeSet<PodUid>,
}

impl Checker {
    /// A version of a manifest is the last one now. A container of an earlier one may still run or
    /// start, because the agent learns of the change later.
    pub fn know(&mut self, manifest: &Manifest) {
        let mut last = manifest.clone();
        let before = self.known.remove(&last.uid).map(|before| before.boxes).unwrap_or_default();
        let is_gone = |old: &Box| manifest.boxes.iter().all(|new| new.name != old.name);
        last.boxes.extend(before.into_iter().filter(is_gone));
        self.known.insert(last.uid.clone(), last);
    }

    /// The agent requests a start. From here on no container of an ended pod may appear.
    pub fn start_asked(&mut self, uid: &PodUid, container: &str) {
        if let Some(why) = self.ended.get(uid) {
            panic!("{uid}/{container} is started although {why}");
        }
        *self.starts.entry((uid.clone(), container.to_owned())).or_default() += 1;
    }

    /// A container starts in the runtime.
    pub fn started(&mut self, id: &str, runtime: &Runtime) {
        let this = &runtime.containers[id];
        let twin = runtime.containers.iter().find(|(other, c)| {
            let same = c.uid == this.uid || self.known[&c.uid].of_folder && c.pod == this.pod;
            *other != id && c.state == RunState::Running && same && c.name == this.name
        });
        if let Some((other, twin)) = twin {
            panic!("{} runs twice: {other} of {} and {id} of {}", this.name, twin.uid, this.uid);
        }
        let manifest = self.known[&this.uid].clone();
        let me = manifest.get(&this.name);
        for earlier in &manifest.boxes {
            if earlier.name == this.name && me.init {
                break;
            }
            if !earlier.init || me.ephemeral {
                continue;
            }
            let key = (this.sandbox.clone(), earlier.name.clone());
            assert!(
                self.passed.contains(&key),
                "{} of {} starts before {} was done in sandbox {}",
                this.name,
                this.uid,
                earlier.name,
                this.sandbox
            );
        }
        if me.sidecar {
            self.passed.insert((this.sandbox.clone(), this.name.clone()));
        }
    }

    /// A container ended in the runtime.
    pub fn exited(&mut self, id: &str, runtime: &Runtime, killed: bool) {
        let this = &runtime.containers[id];
        let manifest = &self.known[&this.uid];
        if this.code == 0 && manifest.get(&this.name).init {
            self.passed.insert((this.sandbox.clone(), this.name.clone()));
        }
        if !killed {
            return;
        }
        let (asked, grace) = self.stops[id];
        let had = this.finished_at.since(asked).as_secs_f64();
        assert!(
            had + 0.001 >= grace.min(manifest.grace) as f64,
            "{} of {} had {had} s of {} before SIGKILL",
            this.name,
            this.uid,
            manifest.grace
        );
    }

    /// The agent requests a stop with that timeout.
    pub fn stop_asked(&mut self, uid: &PodUid, id: &str, timeout: i64, now: Mono) {
        let own = self.known[uid].grace.max(2);
        assert!(
            timeout == own || timeout == 2 || self.shuts_down && timeout < own,
            "{id} of {uid} is stopped with {timeout} s, its own is {own}"
        );
        let stop = self.stops.entry(id.to_owned()).or_insert((now, timeout));
        // An agent that finds a pod without a manifest gives it less.
        stop.1 = stop.1.min(timeout);
    }

    /// The agent learned that no manifest wants the pod.
    pub fn removed(&mut self, uid: &PodUid) {
        self.ended.insert(uid.clone(), "its manifest is gone");
        self.away.insert(uid.clone());
    }

    /// The agent learned that the pod is wanted, perhaps again.
    pub fn wanted(&mut self, uid: &PodUid) {
        if self.ended.get(uid) == Some(&"its manifest is gone") {
            self.ended.remove(uid);
        }
        // Its end may have been reported in between, which comes first.
        if self.away.remove(uid) {
            self.again.insert(uid.clone());
        }
    }

    /// The agent has nothing left of the pod: the same uid may start over.
    pub fn gone(&mut self, uid: &PodUid) {
        self.terminal.remove(uid);
        self.ended.remove(uid);
        self.away.remove(uid);
        self.again.remove(uid);
        self.untold.remove(uid);
        self.past_deadline.remove(uid);
    }

    /// The agent died. It may no longer know why a pod was over if the cause leaves no trace: a
    /// deadline, when the API server does not know the start or the wall clock `steps` back behind
    /// it; node affinity; an earlier life of a pod with a manifest that was removed and came back.
    pub fn crashed(&mut self, api: Option<&ApiServer>, steps: bool) {
        let (statuses, again) = (&self.statuses, &self.again);
        let is_forgotten = |uid: &PodUid| {
            let reason = statuses.get(uid).and_then(|status| status.reason.as_deref());
            match reason.unwrap_or_default() {
                "DeadlineExceeded" => steps || !api.is_some_and(|api| api.knows_start(uid)),
                "Evicted" => !api.is_some_and(|api| api.knows_end(uid)),
                "NodeAffinity" => true,
                // Whichever agent reported its end.
                _ => again.contains(uid),
            }
        };
        self.terminal.retain(|uid, _| !is_forgotten(uid));
        let terminal = &self.terminal;
        self.ended.retain(|uid, why| *why != PHASE_IS_TERMINAL || terminal.contains_key(uid));
        let told = |uid: &PodUid| api.is_some_and(|api| api.knows_end(uid));
        let is_late = |status: &PodStatus| status.reason.as_deref() == Some("DeadlineExceeded");
        let late = self.statuses.iter().filter(|(uid, status)| is_late(status) && !told(uid));
        self.past_deadline.extend(late.map(|(uid, _)| uid.clone()));
        self.statuses.clear();
        // The next agent has one life of each to report.
        self.again.clear();
        let timed = |uid: &&PodUid| self.known[*uid].deadline_s.is_some() && !told(uid);
        self.untold.extend(self.terminal.keys().filter(timed).cloned());
    }

    /// An agent keeps the ends that it reported for a shutdown that was given up. A new agent knows
    /// none of them: a pod that the API server does not know to be over starts over, as a folder's
    /// pods do after each restart of their agent.
    pub fn forgets_shutdown(&mut self, api: Option<&ApiServer>) {
        for uid in std::mem::take(&mut self.shut_down) {
            let is_told = self.statuses.contains_key(&uid);
            if is_told || api.is_some_and(|api| api.knows_end(&uid)) {
                self.shut_down.insert(uid);
            } else {
                self.terminal.remove(&uid);
                self.ended.remove(&uid);
            }
        }
    }

    /// The API server's store is an older one: a pod that neither it nor the agent knows to be over
    /// may be started again, because the runtime has nothing left of it.
    pub fn undone(&mut self, is_known: impl Fn(&PodUid) -> bool) {
        self.terminal.retain(|uid, _| is_known(uid));
        let terminal = &self.terminal;
        self.ended.retain(|uid, why| *why != PHASE_IS_TERMINAL || terminal.contains_key(uid));
    }

    /// A status was published for a pod.
    pub fn published(&mut self, uid: &PodUid, pod: &Pod, status: &Arc<PodStatus>) {
        let phase = status.phase.as_deref().unwrap_or_default();
        self.statuses.insert(uid.clone(), Arc::clone(status));
        // The next agent finds a pod with a deadline that has passed meanwhile. The deadline takes
        // precedence over the ends of its containers, as upstream: kubelet_pods.go
        // generateAPIPodStatus.
        let untold = self.untold.remove(uid);
        let late =
            untold && (phase, status.reason.as_deref()) == ("Failed", Some("DeadlineExceeded"));
        // It does not check the deadline of a pod that was deleted meanwhile: the ends of the
        // containers count.
        let is_deleted = pod.metadata.deletion_timestamp.is_some();
        let is_past = self.past_deadline.remove(uid) && is_deleted && phase == "Succeeded";
        if let Some(terminal) = self.terminal.get(uid).filter(|_| !late && !is_past) {
            assert_eq!(terminal, phase, "{uid} left its terminal phase");
        }
        if matches!(status.reason.as_deref(), Some("Terminated" | "NodeShutdown")) {
            self.shut_down.insert(uid.clone());
        }
        if phase == "Succeeded" || phase == "Failed" {
            self.terminal.insert(uid.clone(), phase.to_owned());
            self.ended.insert(uid.clone(), PHASE_IS_TERMINAL);
        }
    }

    /// The world is quiet: it must agree with the manifests.
    pub fn converged(
        &self,
        wanted: &BTreeMap<String, Manifest>,
        runtime: &Runtime,
        now: Mono,
        faults: Faults,
    ) {
        let uids: BTreeSet<_> = wanted.values().map(|m| &m.uid).collect();
        for (id, sandbox) in &runtime.sandboxes {
            assert!(uids.contains(&sandbox.uid), "sandbox {id} of {} is left over", sandbox.uid);
        }
        for (id, container) in &runtime.containers {
            let of = &container.uid;
            assert!(uids.contains(of), "container {id} of {of} is left over");
        }
        for manifest in wanted.values() {
            self.pod_converged(manifest, runtime, now, faults);
        }
    }

    fn pod_converged(&self, manifest: &Manifest, runtime: &Runtime, now: Mono, faults: Faults) {
        let uid = &manifest.uid;
        let over = self.terminal.contains_key(uid);
        let mut of_pod = runtime.containers.values().filter(|c| c.uid == *uid);
        if over {
            let runs = of_pod.find(|c| c.state == RunState::Running);
            assert!(runs.is_none(), "{uid} is over and {runs:?} runs");
        }
        assert!(over || manifest.deadline_s.is_none(), "{uid} runs longer than it may");
        let homeless = !runtime.sandboxes.values().any(|s| s.uid == *uid && s.ready);
        if manifest.policy == "Never" && homeless && !over {
            // As upstream: a pod that never restarts gets no second sandbox, whatever is missing.
            return;
        }
        let failed_init = self.init_fails_for_good(manifest);
        assert!(over || !failed_init, "{uid}: init failed and the pod is not Failed");
        let mut reached = true;
        for container in &manifest.boxes {
            let latest = runtime.latest(uid, &container.name);
            let never = container.image_from_s == u64::MAX;
            if container.init && !container.sidecar {
                // Later containers wait for it.
                reached &=
                    !never && !matches!(container.behaviour, Behaviour::Ends { code: 1.., .. });
                continue;
            }
            if failed_init && !container.init && !container.ephemeral {
                assert!(latest.is_none(), "{uid}: {} ran after a failed init", container.name);
            }
            let pulled = reached && !never;
            reached &= !(container.init && (never || container.ends_before_it_starts()));
            match latest {
                Some(latest) if !over => {
                    self.container_converged(manifest, container, latest, now, faults);
                }
                Some(_) => {}
                None => assert!(over || !pulled, "{uid}: {} never ran", container.name),
            }
        }
    }

    fn container_converged(
        &self,
        manifest: &Manifest,
        me: &Box,
        latest: &Container,
        now: Mono,
        faults: Faults,
    ) {
        let (uid, name, state) = (&manifest.uid, &me.name, latest.state);
        let changed = latest.started_at.max(latest.finished_at);
        let since = now.since(changed);
        let again = !me.ephemeral
            && (me.sidecar
                || manifest.policy == "Always"
                || manifest.policy == "OnFailure" && latest.code != 0);
        match state {
            RunState::Running => {
                let grace = Duration::from_secs(manifest.grace.unsigned_abs());
                let sick = me.sick_after_ms.map(|ms| Duration::from_millis(ms) + grace + SLACK);
                let healed = sick.is_none_or(|sick| since < sick);
                assert!(healed, "{uid}: {name} is sick for {since:?} and goes on");
                let stuck = me.stuck_ms.filter(|_| manifest.is_stuck(name, latest.attempt));
                let stuck = stuck.map(|ms| Duration::from_millis(ms) + grace + SLACK);
                let given_up = stuck.is_none_or(|stuck| since < stuck);
                assert!(given_up, "{uid}: {name} does not start for {since:?} and goes on");
                let same = latest.made.hash == self.hash_of(manifest, name);
                assert!(same || since < SLACK, "{uid}: {name} runs with another image");
                let known = manifest.of_folder || faults.has(Fault::Disk) || me.ephemeral;
                let cpu = i64::try_from(me.cpu_millis).expect("small") == latest.made.cpu_millis;
                assert!(known || cpu, "{uid}: {name} has {} m", latest.made.cpu_millis);
            }
            RunState::Exited if again => {
                let wait = self.longest_wait(manifest, me, faults);
                let never = me.image_from_s == u64::MAX;
                assert!(
                    never || since < wait + SLACK,
                    "{uid}: {name} ended {since:?} ago, attempt {}, and is not started again",
                    latest.attempt
                );
            }
            RunState::Exited => {}
            RunState::Created | RunState::Unknown => {
                // An ephemeral container is made once, whatever becomes of its start.
                let stays = me.ephemeral || since < SLACK;
                assert!(stays, "{uid}: {name} is {state:?} for {since:?}");
            }
        }
    }

    fn hash_of(&self, manifest: &Manifest, name: &str) -> u32 {
        crate::agent::making(Some(&manifest.pod), name).hash
    }

    /// An init container ends badly, and nothing before it is waited for in vain.
    fn init_fails_for_good(&self, manifest: &Manifest) -> bool {
        let comes = |b: &&Box| b.image_from_s != u64::MAX && !b.ends_before_it_starts();
        let mut reached = manifest.boxes.iter().take_while(comes);
        manifest.policy == "Never"
            && reached.any(|b| {
                b.init && !b.sidecar && matches!(b.behaviour, Behaviour::Ends { code: 1, .. })
            })
    }

    /// How long a container may wait after an end, by its starts: in a new sandbox its attempts
    /// start over, its waits do not.
    fn longest_wait(&self, manifest: &Manifest, me: &Box, faults: Faults) -> Duration {
        let longest = Duration::from_secs(300);
        // Failed calls count as well, and a restarted agent adopts the running containers that it
        // finds.
        let counts = [Fault::Calls, Fault::Crashes, Fault::Hooks, Fault::Images, Fault::Volumes];
        let exact = !counts.into_iter().any(|fault| faults.has(fault));
        let key = (manifest.uid.clone(), me.name.clone());
        let before = self.starts.get(&key).map_or(0, |starts| starts.saturating_sub(1));
        let loops = Duration::from_secs(10) * 2_u32.pow(before.min(10));
        let own = if exact { loops.min(longest) } else { longest };
        // While nothing of a pod runs but a sidecar is to be restarted, the others wait for that.
        let others = manifest.boxes.iter().filter(|b| b.sidecar && b.name != me.name).count();
        own + longest * u32::try_from(others).unwrap_or(0)
    }
}

#[test]
fn longest_allowed_wait_grows_with_the_starts_of_a_container() {
    let manifest = Manifest::random("p", 1, Faults::CALM, &mut Rng::new(1));
    let me = manifest.boxes.last().expect("a container");
    let others = manifest.boxes.iter().filter(|b| b.sidecar && b.name != me.name).count();
    let others = Duration::from_secs(300) * u32::try_from(others).expect("few");
    let mut check = Checker::default();
    for seconds in [10, 20, 40, 80, 160, 300, 300] {
        check.start_asked(&manifest.uid, &me.name);
        let wait = check.longest_wait(&manifest, me, Faults::CALM);
        assert_eq!(wait, Duration::from_secs(seconds) + others);
    }
}

#[test]
fn deadline_may_replace_an_end_known_only_to_a_crashed_agent() {
    let mut pod = Manifest::random("p", 1, Faults::CALM, &mut Rng::new(1));
    let say = |check: &mut Checker, phase: &str, reason: &str| {
        let (phase, reason) = (Some(phase.to_owned()), Some(reason.to_owned()));
        let status = Arc::new(PodStatus { phase, reason, ..PodStatus::default() });
        let told = || check.published(&"p-v1".into(), &Pod::default(), &status);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(told)).is_ok()
    };
    for (deadline_s, dies, phase, reason, is_fine) in [
        (Some(60), true, "Failed", "DeadlineExceeded", true),
        (Some(60), true, "Failed", "Evicted", false),
        (Some(60), true, "Running", "DeadlineExceeded", false),
        (Some(60), false, "Failed", "DeadlineExceeded", false),
        (None, true, "Failed", "DeadlineExceeded", false),
    ] {
        pod.deadline_s = deadline_s;
        let mut check = Checker::default();
        check.know(&pod);
        assert!(say(&mut check, "Succeeded", ""));
        if dies {
            check.crashed(None, false);
        }
        let said = say(&mut check, phase, reason);
        assert_eq!(said, is_fine, "{deadline_s:?} {dies} {phase} {reason}");
        // It is over now, and stays so.
        assert!(!is_fine || !say(&mut check, "Succeeded", ""));
    }
}

#[test]
fn crashed_agent_may_forget_an_end_only_of_a_pod_removed_and_readded() {
    let said = |check: &mut Checker, phase: &str| {
        let phase = Some(phase.to_owned());
        let status = Arc::new(PodStatus { phase, ..PodStatus::default() });
        let told = || check.published(&"p-v1".into(), &Pod::default(), &status);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(told)).is_ok()
    };
    let uid = PodUid::from("p-v1");
    for (told, goes, comes_back, is_fine) in [
        ("before", true, true, true),
        ("by an earlier agent", true, true, true),
        ("in between", true, true, true),
        ("before", true, false, false),
        ("in between", true, false, false),
        ("before", false, true, false),
        ("by an earlier agent", false, true, false),
    ] {
        let mut check = Checker::default();
        check.know(&Manifest::random("p", 1, Faults::CALM, &mut Rng::new(1)));
        let is_before = told != "in between";
        assert!(!is_before || said(&mut check, "Failed"));
        if told == "by an earlier agent" {
            check.crashed(None, false);
        }
        if goes {
            check.removed(&uid);
        }
        assert!(is_before || said(&mut check, "Failed"));
        if comes_back {
            check.wanted(&uid);
        }
        check.crashed(None, false);
        let row = format!("{told} {goes} {comes_back}");
        assert_eq!(said(&mut check, "Pending"), is_fine, "{row}");
        // The life that the next agent reports ends once.
        if is_fine {
            assert!(said(&mut check, "Succeeded"), "{row}");
            check.crashed(None, false);
            assert!(!said(&mut check, "Pending"), "{row}");
        }
    }
}

#[test]
fn debug_container_of_a_newer_manifest_stays_known_after_a_rollback() {
    let old = Manifest::random("p", 1, Faults::CALM, &mut Rng::new(1));
    let mut new = old.clone();
    let debug = Box { name: "debug".to_owned(), ephemeral: true, ..old.boxes[0].clone() };
    new.boxes.push(debug);
    new.boxes[0].image += 1;
    let mut check = Checker::default();
    for version in [&old, &new, &old] {
        check.know(version);
    }
    let known = &check.known[&old.uid];
    assert!(known.get("debug").ephemeral);
    assert_eq!(known.get(&old.boxes[0].name).image, old.boxes[0].image);
    assert_eq!(known.boxes.len(), old.boxes.len() + 1);
}
