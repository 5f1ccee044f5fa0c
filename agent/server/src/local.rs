//! Routes of the command socket: those of `pintle-agent
//! pods|explain|timeline|plan|retry|pressure|dump`. All of them read but `/retry`, which is a POST.
//!
//! Input: a path and `?pod=NAME`. Output: JSON; a refusal is `{"error", "more"}` with a status of
//! 4xx or 5xx. Everything is answered from the latest snapshot but `/plan`, `/retry` and
//! `/pressure`, which ask the main thread and give up after `MAIN_WAIT`, so that a hung main thread
//! can still be examined.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pintle_agent_core::explain::{
    ExplainSubject, Explanation, RuntimeCall, explain, node_troubles, span,
};
use pintle_agent_core::sync::plan::{Action, DelayedContainer, SyncPlan};
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_agent_core::view::{PodView, Snapshot};
use pintle_agent_core::worker::{Wait, WorkerStage};
use pintle_cri::Client;
use pintle_daemon::clock;
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::listen::{RouteRequest, Service};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::Query;
use crate::rows::row;
use crate::select::{Miss, full, select, uid};
use crate::{ServerParts, answers, dump, shortage, stuck, words};

/// Timeout of the main thread's answer.
const MAIN_WAIT: Duration = Duration::from_secs(3);

/// The command socket's routes.
pub(super) fn routes(parts: Arc<ServerParts>) -> Service {
    Arc::new(move |request| {
        let parts = Arc::clone(&parts);
        Box::pin(async move { route(&parts, &request).await })
    })
}

async fn route(parts: &ServerParts, request: &RouteRequest) -> HttpAnswer {
    let snapshot = parts.views.load();
    let pod = parameter(&request.query, "pod");
    if request.is_post != (request.path == "/retry") {
        return HttpAnswer::not_allowed();
    }
    match request.path.as_str() {
        "/pods" => pods(parts, &snapshot),
        "/dump" => versioned(dump::dump(parts, &snapshot, &calls(parts, &snapshot))),
        "/timeline" => timeline_of(parts, &snapshot, &pod),
        "/explain" => match select(&snapshot, &pod) {
            Ok(view) => explained(parts, &snapshot, view),
            Err(miss) => refusal(parts, &snapshot, &pod, &miss),
        },
        "/pressure" => shortage::answer(parts).await,
        "/plan" => match select(&snapshot, &pod) {
            Ok(view) => planned(parts, view).await,
            Err(miss) => refusal(parts, &snapshot, &pod, &miss),
        },
        "/retry" => match select(&snapshot, &pod) {
            Ok(view) => retried(parts, view).await,
            Err(Miss::Unknown(near)) => unknown(&pod, &near),
            Err(miss) => refusal(parts, &snapshot, &pod, &miss),
        },
        _ => HttpAnswer::not_found(),
    }
}

/// An answer with the version of its form.
fn versioned(value: Value) -> HttpAnswer {
    HttpAnswer::json(&answers::versioned(value))
}

/// The word for where a pod's worker stands; part of the answers' form.
pub(super) fn stage_word(stage: WorkerStage) -> &'static str {
    match stage {
        WorkerStage::Waiting => "Waiting",
        WorkerStage::Syncing => "Syncing",
        WorkerStage::Terminating => "Terminating",
        WorkerStage::Terminated => "Terminated",
        WorkerStage::Finished => "Finished",
    }
}

fn calls(parts: &ServerParts, snapshot: &Snapshot) -> Vec<RuntimeCall> {
    let mut calls = (parts.calls)();
    calls.extend(parts.own_runtime.get().into_iter().flat_map(Client::in_flight));
    let calls = calls.iter().map(stuck::InFlightCall::of_call);
    let turns = parts.pull_queue.waiting().into_iter();
    let turns = turns.map(|(subject, since)| stuck::InFlightCall::of_turn(subject, since));
    let streams = parts.streams.open();
    let streams =
        streams.iter().filter_map(|stream| stuck::InFlightCall::of_stream(stream, snapshot));
    let all: Vec<_> = calls.chain(turns).chain(streams).collect();
    stuck::calls(&all, snapshot, Instant::now())
}

fn explanation(
    parts: &ServerParts,
    snapshot: &Snapshot,
    view: &PodView,
    calls: &[RuntimeCall],
    now: UnixNanos,
) -> Explanation {
    let timeline = parts.recorder.entries(&pod_uid(view));
    let ahead = answers::ahead(snapshot, view);
    let unwritten = parts.api_health.of_pod(&pod_uid(view));
    let unwritten = unwritten.as_ref();
    explain(&ExplainSubject { view, calls, timeline: &timeline, unwritten, ahead, now })
}

fn pods(parts: &ServerParts, snapshot: &Snapshot) -> HttpAnswer {
    let (calls, now) = (calls(parts, snapshot), clock::now());
    let rows: Vec<_> = snapshot
        .pods
        .values()
        .map(|view| row(view, &explanation(parts, snapshot, view, &calls, now), now))
        .collect();
    let orphans: Vec<_> = snapshot
        .orphans
        .iter()
        .map(|o| format!("{}/{} (uid {})", o.namespace, o.name, o.uid))
        .collect();
    let problems: Vec<String> = parts.problems.load().iter().map(ToString::to_string).collect();
    versioned(json!({
        "pods": rows,
        "beingRemoved": orphans,
        "brokenManifests": problems,
        "apiServer": node_troubles(&parts.api_health.troubles(), now),
        "sourcesReady": snapshot.sources_ready,
        "startWaitsFor": parts.health.awaited().as_deref(),
    }))
}

fn explained(parts: &ServerParts, snapshot: &Snapshot, view: &PodView) -> HttpAnswer {
    let calls = calls(parts, snapshot);
    let explanation = explanation(parts, snapshot, view, &calls, clock::now());
    versioned(answers::explained(view, &explanation))
}

fn timeline_of(parts: &ServerParts, snapshot: &Snapshot, pod: &str) -> HttpAnswer {
    match select(snapshot, pod) {
        Ok(view) => {
            let entries = parts.recorder.entries(&pod_uid(view));
            versioned(answers::timeline(&full(view), uid(view), &entries))
        }
        Err(miss) => {
            // A pod that is gone is still remembered by its uid.
            let entries = parts.recorder.entries(&PodUid::from(pod));
            match entries.is_empty() {
                true => refusal(parts, snapshot, pod, &miss),
                false => versioned(answers::timeline("", pod, &entries)),
            }
        }
    }
}

async fn planned(parts: &ServerParts, view: &PodView) -> HttpAnswer {
    let query = |answer| Query::Plan { uid: pod_uid(view), answer };
    match of_main(parts, view, query).await {
        Ok(plan) => versioned(plan_shown(view, &plan)),
        Err(refusal) => refusal,
    }
}

async fn retried(parts: &ServerParts, view: &PodView) -> HttpAnswer {
    let query = |answer| Query::Retry { uid: pod_uid(view), answer };
    match of_main(parts, view, query).await {
        Ok(waits) => versioned(retry_shown(view, &waits)),
        Err(refusal) => refusal,
    }
}

/// The main thread's answer about a pod.
async fn of_main<T>(
    parts: &ServerParts,
    view: &PodView,
    query: impl FnOnce(oneshot::Sender<Option<T>>) -> Query,
) -> Result<T, HttpAnswer> {
    let (answer, answered) = oneshot::channel();
    let query = query(answer);
    let asking = async {
        parts.queries.send(query).await.ok()?;
        answered.await.ok()
    };
    Err(match tokio::time::timeout(MAIN_WAIT, asking).await {
        Ok(Some(Some(reply))) => return Ok(reply),
        Ok(Some(None)) => HttpAnswer::refusal(404, &format!("pod {} is gone", full(view)), &[]),
        Ok(None) => HttpAnswer::refusal(503, "the agent is shutting down", &[]),
        Err(_) => {
            let error = format!("the main loop has not answered for {}", span(MAIN_WAIT));
            HttpAnswer::refusal(
                503,
                &error,
                &["see what it waits for in the agent's log".to_owned()],
            )
        }
    })
}

fn retry_shown(view: &PodView, waits: &[Wait]) -> Value {
    let wait = |wait: &Wait| {
        let left = wait.left.as_secs();
        json!({"what": wait.what, "reason": wait.reason, "leftSeconds": left})
    };
    let mut shown = json!({"waits": waits.iter().map(wait).collect::<Vec<_>>()});
    answers::name_pod(&mut shown, view);
    shown
}

/// One step of a plan.
#[derive(Debug, Serialize)]
struct PlanStep {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    text: String,
}

impl PlanStep {
    fn of(action: &Action) -> Self {
        Self {
            action: action.verb(),
            container: action.container().map(str::to_owned),
            text: words::action(action),
        }
    }
}

fn plan_shown(view: &PodView, plan: &SyncPlan) -> Value {
    let now = clock::clocks();
    let steps = |actions: &[Action]| actions.iter().map(PlanStep::of).collect::<Vec<_>>();
    let held = |held: &DelayedContainer| {
        json!({
            "container": held.name,
            "untilUnixNanos": now.wall_at(held.until).0,
            "waitSeconds": held.wait.map(|wait| wait.as_secs()),
            "leftSeconds": held.until.since(now.mono).as_secs(),
        })
    };
    let mut shown = json!({
        "stage": stage_word(view.stage),
        "underWay": steps(&view.doing),
        "actions": steps(&plan.actions),
        "held": plan.held.iter().map(held).collect::<Vec<_>>(),
    });
    answers::name_pod(&mut shown, view);
    shown
}

fn pod_uid(view: &PodView) -> PodUid {
    view.observed.uid.clone()
}

fn refusal(parts: &ServerParts, snapshot: &Snapshot, pod: &str, miss: &Miss) -> HttpAnswer {
    match miss {
        Miss::Ambiguous(pods) => HttpAnswer::refusal(
            409,
            &format!("several pods may be meant by {pod}; say which"),
            pods,
        ),
        Miss::Unknown(near) => {
            let mut more: Vec<String> =
                near.iter().map(|name| format!("did you mean {name}?")).collect();
            let going = snapshot.orphans.iter().filter(|o| o.name == pod || o.uid.as_str() == pod);
            more.extend(going.map(|o| {
                format!(
                    "pod {}/{} (uid {}) is no longer wanted and is being removed",
                    o.namespace, o.name, o.uid
                )
            }));
            match parts.health.awaited() {
                Some(awaited) => more.push(format!("the agent is starting: {awaited}")),
                None if snapshot.sources_ready => {}
                None => more.push("not every source of pods has been read yet".to_owned()),
            }
            more.extend(parts.problems.load().iter().map(|p| format!("broken manifest: {p}")));
            more.extend(node_troubles(&parts.api_health.troubles(), clock::now()));
            more.push("all pods of this node: pintle-agent pods".to_owned());
            more.push(
                "a pod that is gone: pintle-agent explain POD --at TIME, or timeline POD --at TIME, \
                 of a time when it was there"
                    .to_owned(),
            );
            HttpAnswer::refusal(404, &format!("this node has no pod {pod}"), &more)
        }
    }
}

/// The answer for a pod that is not known.
fn unknown(pod: &str, near: &[String]) -> HttpAnswer {
    let meant = near.first().map(|name| format!("; did you mean {name}?")).unwrap_or_default();
    HttpAnswer::refusal(404, &format!("this node has no pod {pod}{meant}"), &[])
}

/// The value of a query parameter, decoded; empty when it is absent.
fn parameter(query: &str, name: &str) -> String {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.find(|(key, _)| *key == name).map_or("", |(_, value)| value);
    decoded(value)
}

/// Undoes `%2F` and `+`. Bytes that are no UTF-8 become replacement characters.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = tail.get(..2).filter(|_| *first == b'%');
        let hex = escaped.and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_decoded_and_invalid_escapes_kept_verbatim() {
        for (query, pod) in [
            ("pod=ns/web", "ns/web"),
            ("x=1&pod=ns%2Fweb", "ns/web"),
            ("pod=a+b%20c", "a b c"),
            ("pod=100%", "100%"),
            ("pod=%zz", "%zz"),
            ("pod=%C3%A4", "ä"),
            ("pods=x", ""),
            ("", ""),
        ] {
            assert_eq!(parameter(query, "pod"), pod, "{query}");
        }
    }
}
