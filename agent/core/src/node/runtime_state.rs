//! What the container runtime last said about itself, and what that means for the node.
//!
//! Input: answers to the CRI call Status, with the time of each. Output: the errors that make the
//! node not ready, handlers and features. Pure; the poll is in `task.rs`.
// k8s: pkg/kubelet/runtime.go runtimeState, pkg/kubelet/kubelet.go updateRuntimeUp

use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures};
use pintle_cri_v1 as v1;

use pintle_api_types::ids::Mono;

use crate::types::{NodeFacts, RuntimeHandler};

/// Without a good answer for this long the runtime counts as down.
pub const DOWN_AFTER: Duration = Duration::from_secs(30);

/// The runtime as it last answered.
#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeState {
    /// When it last said that it was ready.
    ready_at: Option<Mono>,
    runtime: Option<String>,
    network: Option<String>,
    /// Why its lists make the node not ready; see `pleg`.
    pub lists: Option<String>,
    /// Its handlers, by name.
    pub handlers: Vec<NodeRuntimeHandler>,
    /// Its features, if it tells any.
    pub features: Option<NodeFeatures>,
}

impl Default for RuntimeState {
    fn default() -> Self {
        Self {
            ready_at: None,
            runtime: None,
            network: Some("network state unknown".to_owned()),
            lists: None,
            handlers: Vec::new(),
            features: None,
        }
    }
}

impl RuntimeState {
    /// Takes in an answer. A runtime that does not answer is noticed by the time that passes.
    pub fn heard(&mut self, answer: &v1::StatusResponse, now: Mono) {
        let conditions = answer.status.as_ref().map(|status| &status.conditions[..]);
        let conditions = conditions.unwrap_or_default();
        self.network = problem(conditions, "NetworkReady", "container runtime network not ready");
        self.runtime = problem(conditions, "RuntimeReady", "container runtime not ready");
        if self.runtime.is_some() {
            return;
        }
        self.handlers = handlers(answer);
        self.features = answer.features.as_ref().map(|features| NodeFeatures {
            supplemental_groups_policy: Some(features.supplemental_groups_policy),
        });
        self.ready_at = Some(now);
    }

    /// Puts what the runtime can do into the facts of the workers, once it has said so.
    // k8s: pkg/kubelet/kubelet.go updateRuntimeUp
    pub fn tell(&self, facts: &mut NodeFacts) {
        if self.ready_at.is_none() {
            return;
        }
        let handlers = self.handlers.iter().map(|handler| {
            let features = handler.features.as_ref();
            let has = |of: fn(&NodeRuntimeHandlerFeatures) -> Option<bool>| {
                features.and_then(of).unwrap_or(false)
            };
            RuntimeHandler {
                name: handler.name.clone().unwrap_or_default(),
                recursive_read_only: has(|features| features.recursive_read_only_mounts),
                user_namespaces: has(|features| features.user_namespaces),
            }
        });
        let features = self.features.as_ref();
        let groups = features.and_then(|features| features.supplemental_groups_policy);
        facts.take_runtime(handlers.collect(), groups.unwrap_or(false));
    }

    /// Why pods cannot be connected to a network.
    // k8s: pkg/kubelet/runtime.go networkErrors
    pub fn network_error(&self) -> Option<&str> {
        self.network.as_deref()
    }

    /// Why the node cannot run pods because of the runtime, in the kubelet's order.
    pub fn errors(&self, now: Mono) -> Vec<String> {
        let silent = match self.ready_at {
            None => Some("container runtime status check may not have completed yet".to_owned()),
            Some(at) if now.since(at) >= DOWN_AFTER => Some("container runtime is down".to_owned()),
            _ => None,
        };
        let of_lists = self.lists.clone();
        let all = [silent, of_lists, self.runtime.clone(), self.network.clone()];
        all.into_iter().flatten().collect()
    }
}

fn problem(conditions: &[v1::RuntimeCondition], kind: &str, what: &str) -> Option<String> {
    match conditions.iter().find(|condition| condition.r#type == kind) {
        None => Some(format!("{what}: <nil>")),
        Some(condition) if condition.status => None,
        Some(v1::RuntimeCondition { reason, message, .. }) => {
            Some(format!("{what}: {kind}=false reason:{reason} message:{message}"))
        }
    }
}

/// Sorted, so that a runtime that shuffles them causes no writes.
fn handlers(answer: &v1::StatusResponse) -> Vec<NodeRuntimeHandler> {
    let of = |handler: &v1::RuntimeHandler| {
        let features = handler.features.as_ref();
        NodeRuntimeHandler {
            name: Some(handler.name.clone()),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(
                    features.is_some_and(|has| has.recursive_read_only_mounts),
                ),
                user_namespaces: Some(features.is_some_and(|has| has.user_namespaces)),
            }),
        }
    };
    let mut handlers: Vec<_> = answer.runtime_handlers.iter().map(of).collect();
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    handlers
}

/// The version for `containerRuntimeVersion`: `v` and what is no version number are left out.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go newRuntimeVersion
pub fn version(runtime: &str) -> String {
    let text = runtime.strip_prefix('v').unwrap_or(runtime);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (numbers, rest) = text.split_at(digits);
    let three = numbers.split('.').count() == 3 && numbers.split('.').all(|part| !part.is_empty());
    match three && (rest.is_empty() || rest.starts_with(['-', '+'])) {
        true => text.to_owned(),
        false => numbers.trim_end_matches('.').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, status: bool) -> v1::RuntimeCondition {
        v1::RuntimeCondition {
            r#type: kind.to_owned(),
            status,
            reason: "Why".to_owned(),
            message: "words".to_owned(),
        }
    }

    fn answer(conditions: Vec<v1::RuntimeCondition>) -> v1::StatusResponse {
        v1::StatusResponse { status: Some(v1::RuntimeStatus { conditions }), ..Default::default() }
    }

    fn at(seconds: i64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[test]
    fn a_runtime_that_never_answered_is_told_apart_from_one_that_stopped() {
        let mut state = RuntimeState::default();
        let never = ["container runtime status check may not have completed yet".to_owned()];
        assert_eq!(state.errors(at(5))[..1], never);
        let good = answer(vec![condition("RuntimeReady", true), condition("NetworkReady", true)]);
        state.heard(&good, at(10));
        assert!(state.errors(at(39)).is_empty());
        assert_eq!(state.errors(at(40)), ["container runtime is down"]);
    }

    #[test]
    fn a_runtime_that_answers_and_lists_nothing_is_not_ready() {
        let mut state = RuntimeState::default();
        let good = answer(vec![condition("RuntimeReady", true), condition("NetworkReady", true)]);
        state.heard(&good, at(10));
        state.lists = Some("PLEG is not healthy".to_owned());
        assert_eq!(state.errors(at(11)), ["PLEG is not healthy"]);
        // As the kubelet orders them.
        let down = ["container runtime is down", "PLEG is not healthy"];
        assert_eq!(state.errors(at(40)), down);
    }

    #[test]
    fn what_is_not_ready_is_said_in_the_runtimes_words() {
        let mut state = RuntimeState::default();
        let bad = answer(vec![condition("RuntimeReady", true), condition("NetworkReady", false)]);
        state.heard(&bad, at(10));
        let want = "container runtime network not ready: NetworkReady=false reason:Why \
                    message:words";
        assert_eq!(state.errors(at(10)), [want]);
        state.heard(&answer(Vec::new()), at(11));
        assert_eq!(state.errors(at(11)).len(), 2);
        assert_eq!(state.errors(at(11))[0], "container runtime not ready: <nil>");
    }

    #[test]
    fn workers_hear_what_the_runtime_can_do_once_it_says_so() {
        let mut state = RuntimeState::default();
        let mut facts = NodeFacts { supplemental_groups_policy: true, ..NodeFacts::default() };
        facts.handlers = vec![RuntimeHandler { user_namespaces: true, ..Default::default() }];
        let before = facts.clone();
        state.tell(&mut facts);
        assert_eq!(facts, before, "what the start heard");
        let ready = || vec![condition("RuntimeReady", true), condition("NetworkReady", true)];
        let handler = |name: &str, able: bool| v1::RuntimeHandler {
            name: name.to_owned(),
            features: Some(v1::RuntimeHandlerFeatures {
                recursive_read_only_mounts: able,
                user_namespaces: able,
            }),
        };
        for able in [true, false] {
            let features =
                v1::RuntimeFeatures { supplemental_groups_policy: able, ..Default::default() };
            let told = v1::StatusResponse {
                runtime_handlers: vec![handler("kata", !able), handler("", able)],
                features: able.then_some(features),
                ..answer(ready())
            };
            state.heard(&told, at(10));
            state.tell(&mut facts);
            let can = |name| {
                let handler = facts.handler(name);
                (handler.user_namespaces, handler.recursive_read_only)
            };
            assert_eq!(
                (can(""), can("kata"), can("other")),
                ((able, able), (!able, !able), (false, false))
            );
            assert_eq!((facts.recursive_read_only, facts.supplemental_groups_policy), (able, able));
        }
    }

    #[test]
    fn versions_keep_what_is_semantic() {
        for (given, want) in [
            ("2.1.9+unknown", "2.1.9+unknown"),
            ("v1.7.24", "1.7.24"),
            ("1.7.24~ds1", "1.7.24"),
            ("1.30.0-rc.1", "1.30.0-rc.1"),
            ("1.2", "1.2"),
        ] {
            assert_eq!(version(given), want);
        }
    }
}
