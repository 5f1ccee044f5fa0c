//! The rules that hold at every step, and what must be true in the end.

use std::collections::{BTreeMap, BTreeSet};

use pintle_agent_core::observed::RunState;
use pintle_agent_core::types::{PodUid, UnixNanos};

use crate::pods::{Behaviour, Manifest};
use crate::runtime::Runtime;

/// What the checker remembers of the world.
#[derive(Debug, Default)]
pub struct Checker {
    /// Every version of every manifest there ever was.
    pub known: BTreeMap<PodUid, Manifest>,
    /// Init containers that ended well and sidecars that started, by sandbox.
    passed: BTreeSet<(String, String)>,
    /// Pods that the agent knows to be over: nothing of them may be started.
    ended: BTreeMap<PodUid, &'static str>,
    /// Terminal phases that were published.
    terminal: BTreeMap<PodUid, String>,
    /// When a stop of the container was first asked for, and with how much time.
    pub stops: BTreeMap<String, (UnixNanos, i64)>,
}

impl Checker {
    /// The agent asks for a start. From here on nothing of an ended pod may appear.
    pub fn start_asked(&self, uid: &PodUid, container: &str) {
        if let Some(why) = self.ended.get(uid) {
            panic!("{uid}/{container} is started although {why}");
        }
    }

    /// A container starts in the runtime.
    pub fn started(&mut self, id: &str, runtime: &Runtime) {
        let this = &runtime.containers[id];
        let twin = runtime.containers.iter().find(|(other, c)| {
            *other != id && c.state == RunState::Running && c.pod == this.pod && c.name == this.name
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
            if !earlier.init {
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
        let had = this.finished.since(asked).as_secs_f64();
        assert!(
            had + 0.001 >= grace.min(manifest.grace) as f64,
            "{} of {} had {had} s of {} before SIGKILL",
            this.name,
            this.uid,
            manifest.grace
        );
    }

    /// The agent asks for a stop with that timeout.
    pub fn stop_asked(&mut self, uid: &PodUid, id: &str, timeout: i64, now: UnixNanos) {
        let own = self.known[uid].grace.max(2);
        assert!(
            timeout == own || timeout == 2,
            "{id} of {uid} is stopped with {timeout} s, its own is {own}"
        );
        let stop = self.stops.entry(id.to_owned()).or_insert((now, timeout));
        // An agent that finds a pod without a manifest gives it less.
        stop.1 = stop.1.min(timeout);
    }

    /// The agent was told that no manifest wants the pod.
    pub fn removed(&mut self, uid: &PodUid) {
        self.ended.insert(uid.clone(), "its manifest is gone");
    }

    /// The agent was told that the pod is wanted, perhaps again.
    pub fn wanted(&mut self, uid: &PodUid) {
        if self.ended.get(uid) == Some(&"its manifest is gone") {
            self.ended.remove(uid);
        }
    }

    /// The agent has nothing left of the pod: the same uid may begin anew.
    pub fn gone(&mut self, uid: &PodUid) {
        self.terminal.remove(uid);
        self.ended.remove(uid);
    }

    /// A status was published.
    pub fn published(&mut self, uid: &PodUid, phase: &str) {
        if let Some(terminal) = self.terminal.get(uid) {
            assert_eq!(terminal, phase, "{uid} left its terminal phase");
        }
        if phase == "Succeeded" || phase == "Failed" {
            self.terminal.insert(uid.clone(), phase.to_owned());
            self.ended.insert(uid.clone(), "its phase is terminal");
        }
    }

    /// The world is quiet: it must be what the manifests say.
    pub fn converged(&self, wanted: &BTreeMap<String, Manifest>, runtime: &Runtime) {
        let uids: BTreeSet<_> = wanted.values().map(|m| &m.uid).collect();
        for (id, sandbox) in &runtime.sandboxes {
            assert!(uids.contains(&sandbox.uid), "sandbox {id} of {} is left over", sandbox.uid);
        }
        for (id, container) in &runtime.containers {
            let of = &container.uid;
            assert!(uids.contains(of), "container {id} of {of} is left over");
        }
        for manifest in wanted.values() {
            self.pod_converged(manifest, runtime);
        }
    }

    fn pod_converged(&self, manifest: &Manifest, runtime: &Runtime) {
        let uid = &manifest.uid;
        let failed_init = self.init_fails_for_good(manifest);
        let newest = |name: &str| {
            let all = runtime.containers.values().filter(|c| c.uid == *uid && c.name == name);
            all.max_by_key(|c| c.created)
        };
        let over = self.terminal.contains_key(uid);
        let homeless = !runtime.sandboxes.values().any(|s| s.uid == *uid && s.ready);
        if manifest.policy == "Never" && homeless && !over {
            // As upstream: a pod that never restarts gets no second sandbox, whatever is missing.
            return;
        }
        for container in manifest.boxes.iter().filter(|b| !b.init) {
            let latest = newest(&container.name);
            if failed_init {
                assert!(latest.is_none(), "{uid}: {} ran after a failed init", container.name);
                assert!(over, "{uid}: init failed and the pod is not Failed");
                continue;
            }
            let latest = latest.unwrap_or_else(|| panic!("{uid}: {} never ran", container.name));
            let forever = container.behaviour == Behaviour::Forever
                || (matches!(container.behaviour, Behaviour::FailsFirst { .. })
                    && manifest.policy != "Never");
            if forever && !over {
                let state = latest.state;
                // A container that fails first may still wait for its back-off.
                let waits = matches!(container.behaviour, Behaviour::FailsFirst { .. });
                assert!(
                    state == RunState::Running || waits,
                    "{uid}: {} is {state:?} and should run",
                    container.name
                );
            }
            if manifest.policy == "Never" && !forever {
                assert_eq!(latest.state, RunState::Exited, "{uid}: {}", container.name);
            }
        }
    }

    fn init_fails_for_good(&self, manifest: &Manifest) -> bool {
        manifest.policy == "Never"
            && manifest.boxes.iter().any(|b| {
                b.init && !b.sidecar && matches!(b.behaviour, Behaviour::Ends { code: 1, .. })
            })
    }
}
