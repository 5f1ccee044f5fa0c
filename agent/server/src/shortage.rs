//! `/pressure`: how far the node is from each threshold of eviction, and who would go first.
//!
//! Input: what pods take, read now; the decisions' own report, which the main thread gives. Output:
//! JSON with whole bytes and seconds. `shown` is pure. Bounds: `ANSWER_WAIT`.

use std::time::Duration;

use pintle_agent_core::eviction::observed::Scope;
use pintle_agent_core::eviction::rank::Uses;
use pintle_agent_core::eviction::report::{Gauge, Report};
use pintle_agent_core::explain::span;
use pintle_daemon::serve::answer::Answer;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::stats::{self, PodGauge};
use crate::{Parts, Query, answers};

/// How long the main thread may take.
const ANSWER_WAIT: Duration = Duration::from_secs(3);

/// Answers the command socket.
pub(super) async fn answer(parts: &Parts) -> Answer {
    let (answer, answered) = oneshot::channel();
    let uses = uses(parts).await;
    let asking = async {
        parts.queries.send(Query::Pressure { uses, answer }).await.ok()?;
        answered.await.ok()
    };
    match tokio::time::timeout(ANSWER_WAIT, asking).await {
        Ok(Some(report)) => Answer::json(&answers::versioned(shown(&report))),
        Ok(None) => Answer::refusal(503, "the agent is shutting down", &[]),
        Err(_) => {
            let error = format!("the main loop has not answered for {}", span(ANSWER_WAIT));
            Answer::refusal(503, &error, &["see what it waits for in the agent's log".to_owned()])
        }
    }
}

/// What pods take now; unknown while the server has no connection to the runtime.
async fn uses(parts: &Parts) -> Option<Uses> {
    let runtime = parts.own_runtime.get()?.clone();
    let setup = stats::setup(&parts.config, &runtime).await;
    let gauge = PodGauge::new(parts.gauges.clone(), &parts.config, setup, runtime);
    gauge.read(&parts.views.load(), &Scope::All, true).await
}

fn shown(report: &Report) -> Value {
    let evictions = report.evictions.iter().map(|eviction| {
        json!({
            "at": eviction.at.to_timestamp().to_string(),
            "pod": eviction.pod,
            "uid": eviction.uid.as_str(),
            "sentence": eviction.sentence(),
            "message": eviction.message,
        })
    });
    json!({
        "signals": report.gauges.iter().map(signal).collect::<Vec<_>>(),
        "evictions": evictions.collect::<Vec<_>>(),
    })
}

fn signal(gauge: &Gauge) -> Value {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs());
    json!({
        "signal": gauge.signal.as_str(),
        "available": gauge.available,
        "capacity": gauge.capacity,
        "threshold": gauge.least,
        "graceSeconds": gauge.grace.as_secs(),
        "metForSeconds": seconds(gauge.met_for),
        "perSecond": gauge.per_second,
        "metInSeconds": seconds(gauge.met_in),
        "next": gauge.next.as_ref().map(|next| json!({
            "pod": next.pod,
            "why": next.rule.words(),
        })),
    })
}
