//! The final reports, compared with the truth.

use std::time::Duration;

use pintle_agent_core::observed::RunState;
use serde_json::Value;

use crate::pods::{Box, Manifest};
use crate::runtime::Container;
use crate::world::World;

/// A change may take so long to be reported.
const FRESH: Duration = Duration::from_secs(25);

impl World {
    /// The last status of each pod agrees with the runtime.
    pub fn told_the_truth(&self) {
        for (name, manifest) in &self.manifests {
            let told = match &self.api {
                Some(api) => api.status(name).cloned(),
                None => self
                    .check
                    .statuses
                    .get(&manifest.uid)
                    .map(|status| serde_json::to_value(&**status).expect("JSON")),
            };
            let told = told.unwrap_or_else(|| panic!("{}: no status is reported", manifest.uid));
            self.pod_is_told(manifest, &told);
        }
    }

    fn pod_is_told(&self, manifest: &Manifest, told: &Value) {
        let mut runs = false;
        let kept = self.keeps_an_end(manifest, told);
        for me in &manifest.boxes {
            let Some(latest) = self.runtime.latest(&manifest.uid, &me.name) else {
                let shown = status_of(told, &me.name);
                assert!(shown["state"]["running"].is_null(), "{}: {shown}", manifest.uid);
                continue;
            };
            let age = self.now.since(latest.started_at.max(latest.finished_at));
            runs |= latest.state == RunState::Running && !me.init && !me.ephemeral;
            if age > FRESH && !kept {
                check_published(manifest, me, latest, told);
            }
        }
        let phase = told["phase"].as_str().unwrap_or_default();
        let over = matches!(phase, "Succeeded" | "Failed");
        assert!(!(runs && over), "{} runs and is {phase}", manifest.uid);
    }

    /// An older store brought a deleted pod back: the runtime has nothing of it, so it is started
    /// again, while the store has a terminal state that its policy does not allow to change. As
    /// upstream nothing of its status changes then: status_manager.go
    /// checkContainerStateTransition.
    fn keeps_an_end(&self, manifest: &Manifest, told: &Value) -> bool {
        let before = self.api.as_ref().and_then(|api| api.said_before(&manifest.uid));
        before.is_some_and(|before| {
            let mut lasting = manifest.boxes.iter().filter(|b| !b.sidecar && !b.ephemeral);
            lasting.any(|me| {
                let shown = status_of(told, &me.name);
                let end = &shown["state"]["terminated"];
                let id = shown["containerID"].as_str().unwrap_or_default();
                let latest = self.runtime.latest(&manifest.uid, &me.name);
                end.is_object()
                    && *end == status_of(before, &me.name)["state"]["terminated"]
                    && (manifest.policy == "Never"
                        || manifest.policy == "OnFailure" && end["exitCode"] == 0)
                    && !self.runtime.containers.contains_key(id.trim_start_matches("://"))
                    && latest.is_some_and(|latest| latest.state != RunState::Exited)
            })
        })
    }
}

fn check_published(manifest: &Manifest, me: &Box, latest: &Container, told: &Value) {
    let shown = status_of(told, &me.name);
    let (state, last) = (&shown["state"], &shown["lastState"]);
    let subject = format!("{}: {} is {:?}", manifest.uid, me.name, latest.state);
    match latest.state {
        RunState::Running => {
            assert!(state["running"].is_object(), "{subject}, reported as {shown}");
            let ready = me.init && !me.sidecar || shown["ready"] == true;
            let never = me.ephemeral || manifest.is_stuck(&me.name, latest.attempt);
            assert!(ready || never, "{subject}, reported as not ready: {shown}");
        }
        RunState::Exited => {
            let is = |end: &Value| end["terminated"]["exitCode"] == latest.code;
            let told = is(state) || state["waiting"].is_object() && is(last);
            assert!(told, "{subject} with {}, reported as {shown}", latest.code);
        }
        RunState::Created | RunState::Unknown => return,
    }
    // As for the kubelet an attempt that was made, never started and removed may count although
    // its number is used again.
    let count = shown["restartCount"].as_u64().unwrap_or_default();
    assert!(count >= latest.attempt.into(), "{subject}: {shown}");
}

fn status_of<'a>(told: &'a Value, name: &str) -> &'a Value {
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let mut all = lists.iter().filter_map(|list| told[list].as_array()).flatten();
    all.find(|status| status["name"] == name).unwrap_or(&Value::Null)
}
