//! `/pressure`: how close the node is to each threshold of eviction, the next victims, and the
//! images that garbage collection would delete.
//!
//! Input: pods' usage, read now; the decisions' own report and that of the images, which the main
//! thread gives. Output: JSON with whole bytes and seconds. `shown` is pure. Bounds: `ANSWER_WAIT`,
//! `IMAGES_WAIT`.

use std::time::Duration;

use pintle_agent_core::eviction::observed::Scope;
use pintle_agent_core::eviction::rank::Uses;
use pintle_agent_core::eviction::report::{EvictionReport, Gauge};
use pintle_agent_core::explain::span;
use pintle_agent_core::garbage::images;
use pintle_daemon::serve::answer::HttpAnswer;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::stats::{self, PodGauge};
use crate::{Query, ServerParts, answers};

/// Timeout of the main thread.
const ANSWER_WAIT: Duration = Duration::from_secs(3);

/// Timeout of the runtime's list of images.
const IMAGES_WAIT: Duration = Duration::from_secs(5);

/// Answers the command socket.
pub(super) async fn answer(parts: &ServerParts) -> HttpAnswer {
    if let Some(awaited) = parts.health.awaited() {
        let error = format!("the agent is starting: {awaited}");
        return HttpAnswer::refusal(503, &error, &[]);
    }
    let (answer, answered) = oneshot::channel();
    let (uses, images) = tokio::join!(uses(parts), images(parts));
    let asking = async {
        parts.queries.send(Query::Pressure { uses, answer }).await.ok()?;
        answered.await.ok()
    };
    match tokio::time::timeout(ANSWER_WAIT, asking).await {
        Ok(Some(report)) => HttpAnswer::json(&answers::versioned(shown(&report, images.as_ref()))),
        Ok(None) => HttpAnswer::refusal(503, "the agent is shutting down", &[]),
        Err(_) => {
            let error = format!("the main loop has not answered for {}", span(ANSWER_WAIT));
            HttpAnswer::refusal(
                503,
                &error,
                &["see what it waits for in the agent's log".to_owned()],
            )
        }
    }
}

/// Usage of pods now; unknown while the server has no connection to the runtime.
async fn uses(parts: &ServerParts) -> Option<Uses> {
    let runtime = parts.own_runtime.get()?.clone();
    let setup = stats::setup(&parts.config, &runtime).await;
    let gauge = PodGauge::new(parts.gauges.clone(), &parts.config, setup, runtime);
    gauge.read(&parts.views.load(), &Scope::All, true).await
}

/// The plan for each image; unknown while the runtime or the main thread does not answer.
async fn images(parts: &ServerParts) -> Option<images::ImageReport> {
    let (answer, answered) = oneshot::channel();
    let asking = async {
        parts.queries.send(Query::Images { answer }).await.ok()?;
        answered.await.ok()
    };
    tokio::time::timeout(IMAGES_WAIT, asking).await.ok()?
}

fn shown(report: &EvictionReport, images: Option<&images::ImageReport>) -> Value {
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
        "images": images.map(of_images),
    })
}

/// The images in the order of their deletion.
fn of_images(report: &images::ImageReport) -> Value {
    let (go, stay): (Vec<_>, Vec<_>) = report.images.iter().partition(|(_, j)| j.verdict.goes());
    let image = |(name, judged): &(String, images::Judged)| {
        json!({
            "name": name,
            "id": judged.id,
            "bytes": judged.bytes,
            "unusedSeconds": judged.unused_for.as_secs(),
            "goes": judged.verdict.goes(),
            "why": judged.verdict.words(),
        })
    };
    json!({
        "usedPercent": report.used_percent,
        "highPercent": report.policy.high_percent,
        "lowPercent": report.policy.low_percent,
        "isOn": report.policy.is_on(),
        "images": go.into_iter().chain(stay).map(image).collect::<Vec<_>>(),
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
        "stall": gauge.stall.map(|stall| json!({
            "percent": stall.now.map(percent),
            "thresholdPercent": percent(stall.least),
            "cache": stall.cache,
            "sparesCache": stall.spares_cache(),
            "words": stall.words(),
        })),
        "next": gauge.next.as_ref().map(|next| json!({
            "pod": next.pod,
            "why": next.rule.words(Some(gauge.signal.starved())),
        })),
        "isBlind": gauge.is_blind,
    })
}

/// Percent of hundredths of a percent.
fn percent(hundredths: u16) -> f64 {
    f64::from(hundredths) / 100.0
}
