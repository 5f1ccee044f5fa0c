//! `/metrics/probes`: results of probes, and durations of those that succeeded.
//!
//! An attempt without a known outcome is not counted, as with the kubelet. Counted on the main
//! thread by the prober, read by the server's thread, which knows the pods' names from its
//! snapshot. Bounds: `SERIES_MAX` probes; a pod's series are removed with it.
// k8s: pkg/kubelet/prober/prober_manager.go ProberResults, ProberDuration; worker.go doProbe

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pintle_agent_core::probe::plan::ProbeOutcome;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::view::Snapshot;
use pintle_agent_core::worker::ProbeKind;

/// Probes that are counted.
const SERIES_MAX: usize = 4096;
/// Upper bounds of a probe's duration in seconds: Prometheus' own default.
const SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const RESULTS: [&str; 2] = ["successful", "failed"];

const DURATION_HEAD: &str = "# HELP prober_probe_duration_seconds [ALPHA] Duration in seconds for \
    a probe response.\n# TYPE prober_probe_duration_seconds histogram\n";
const TOTAL_HEAD: &str = "# HELP prober_probe_total [BETA] Cumulative number of a liveness, \
    readiness or startup probe for a container by result.\n# TYPE prober_probe_total counter\n";

/// Counts of all probes; clones share them.
#[derive(Clone, Debug, Default)]
pub struct ProbeCounts(Arc<Mutex<BTreeMap<Series, ProbeCount>>>);

/// Pod, container, kind.
type Series = (PodUid, String, &'static str);

#[derive(Clone, Debug, Default)]
struct ProbeCount {
    results: [u64; RESULTS.len()],
    buckets: [u64; SECONDS.len()],
    seconds: f64,
}

impl ProbeCounts {
    /// An attempt ended.
    pub fn ended(
        &self,
        uid: &PodUid,
        container: &str,
        kind: ProbeKind,
        result: ProbeOutcome,
        took: Duration,
    ) {
        let healthy = match result {
            ProbeOutcome::Success => true,
            ProbeOutcome::Failure => false,
            ProbeOutcome::Unknown => return,
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let series = (uid.clone(), container.to_owned(), word(kind));
        if all.len() >= SERIES_MAX && !all.contains_key(&series) {
            return;
        }
        let count = all.entry(series).or_default();
        count.results[usize::from(!healthy)] += 1;
        if !healthy {
            return;
        }
        let seconds = took.as_secs_f64();
        count.seconds += seconds;
        for (bucket, bound) in count.buckets.iter_mut().zip(SECONDS) {
            *bucket += u64::from(seconds <= bound);
        }
    }

    /// Nothing is left of a pod.
    // k8s: pkg/kubelet/prober/worker.go run
    pub(super) fn forget(&self, uid: &PodUid) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(of, ..), _| of != uid);
    }

    /// The exposition; `started_at` is this process' start in seconds.
    pub(super) fn render(&self, snapshot: &Snapshot, started_at: f64) -> String {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(uid, ..), _| snapshot.pods.contains_key(uid));
        let mut out = String::new();
        let timed = || all.iter().filter(|(_, count)| count.results[0] > 0);
        if timed().next().is_some() {
            out.push_str(DURATION_HEAD);
        }
        for ((uid, container, kind), count) in timed() {
            let [before, kind] = labels(snapshot, uid, container, kind);
            durations(&mut out, &format!("{before},{kind}"), count);
        }
        if !all.is_empty() {
            out.push_str(TOTAL_HEAD);
        }
        for ((uid, container, kind), count) in all.iter() {
            let [before, kind] = labels(snapshot, uid, container, kind);
            for (result, times) in RESULTS.iter().zip(count.results).filter(|(_, n)| *n > 0) {
                // To a string: cannot fail.
                let _ = writeln!(
                    out,
                    "prober_probe_total{{{before},pod_uid=\"{uid}\",{kind},result=\"{result}\"}} \
                     {times}"
                );
            }
        }
        out + &start_of_process(started_at)
    }
}

/// When the process began, as every small exposition shows it.
pub(super) fn start_of_process(started_at: f64) -> String {
    format!(
        "# HELP process_start_time_seconds [ALPHA] Start time of the process since unix epoch in \
         seconds.\n# TYPE process_start_time_seconds gauge\n\
         process_start_time_seconds {started_at}\n"
    )
}

fn durations(out: &mut String, labels: &str, count: &ProbeCount) {
    let name = "prober_probe_duration_seconds";
    let total = count.results[0];
    for (bucket, bound) in count.buckets.iter().zip(SECONDS) {
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {bucket}");
    }
    let _ = writeln!(
        out,
        "{name}_bucket{{{labels},le=\"+Inf\"}} {total}\n{name}_sum{{{labels}}} {}\n\
         {name}_count{{{labels}}} {total}",
        count.seconds
    );
}

/// The labels before and after the pod's uid, in the order of their names. Names of pods and
/// containers need no escapes.
fn labels(snapshot: &Snapshot, uid: &PodUid, container: &str, kind: &str) -> [String; 2] {
    let view = snapshot.pods.get(uid);
    let (namespace, pod) = view.map_or(("", ""), |view| {
        (pintle_api_types::pod::namespace(&view.pod), pintle_api_types::pod::name(&view.pod))
    });
    let before = format!("container=\"{container}\",namespace=\"{namespace}\",pod=\"{pod}\"");
    [before, format!("probe_type=\"{kind}\"")]
}

fn word(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Readiness => "Readiness",
        ProbeKind::Liveness => "Liveness",
        ProbeKind::Startup => "Startup",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::testing::{snapshot_of, view};
    use serde_json::json;

    #[test]
    fn probe_attempts_are_counted_by_result_and_dropped_with_their_pod() {
        let counts = ProbeCounts::default();
        let (uid, kind) = ("u".into(), ProbeKind::Readiness);
        for (result, millis) in [
            (ProbeOutcome::Failure, 3),
            (ProbeOutcome::Unknown, 3),
            (ProbeOutcome::Success, 30),
            (ProbeOutcome::Success, 30_000),
        ] {
            counts.ended(&uid, "c", kind, result, Duration::from_millis(millis));
        }
        let pod = view(json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u"}}));
        let text = counts.render(&snapshot_of(vec![pod.clone()]), 1.5);
        let pod_labels = "container=\"c\",namespace=\"ns\",pod=\"p\"";
        let timed = format!("{pod_labels},probe_type=\"Readiness\"");
        let counted = format!("{pod_labels},pod_uid=\"u\",probe_type=\"Readiness\"");
        for line in [
            "# TYPE prober_probe_total counter\n".to_owned(),
            format!("prober_probe_total{{{counted},result=\"successful\"}} 2\n"),
            format!("prober_probe_total{{{counted},result=\"failed\"}} 1\n"),
            format!("prober_probe_duration_seconds_bucket{{{timed},le=\"0.005\"}} 0\n"),
            format!("prober_probe_duration_seconds_bucket{{{timed},le=\"0.05\"}} 1\n"),
            format!("prober_probe_duration_seconds_bucket{{{timed},le=\"+Inf\"}} 2\n"),
            format!("prober_probe_duration_seconds_sum{{{timed}}} 30.03\n"),
            "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.5\n".to_owned(),
        ] {
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(!text.contains("unknown"), "{text}");
        let failed = ProbeCounts::default();
        failed.ended(&uid, "c", kind, ProbeOutcome::Failure, Duration::ZERO);
        failed.ended(&uid, "d", kind, ProbeOutcome::Unknown, Duration::ZERO);
        let text = failed.render(&snapshot_of(vec![pod]), 1.5);
        assert!(!text.contains("duration") && !text.contains("\"d\""), "{text}");
        let empty = counts.render(&Snapshot::default(), 1.5);
        assert!(!empty.contains("prober_probe"), "{empty}");
    }

    #[test]
    fn forgotten_pod_frees_its_probe_series_for_another_pod() {
        let counts = ProbeCounts::default();
        let uid = |pod: usize| PodUid::from(format!("u{pod}").as_str());
        let ended = |pod| {
            let (kind, result) = (ProbeKind::Liveness, ProbeOutcome::Failure);
            counts.ended(&uid(pod), "c", kind, result, Duration::ZERO);
        };
        let has = |pod| counts.0.lock().expect("no panic").keys().any(|(of, ..)| *of == uid(pod));
        (0..=SERIES_MAX).for_each(ended);
        assert!(!has(SERIES_MAX), "there is no room");
        counts.forget(&uid(0));
        ended(SERIES_MAX);
        assert!(has(SERIES_MAX) && !has(0));
    }
}
