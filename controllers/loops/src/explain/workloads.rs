//! Describes the state of an object, by its kind.
//!
//! Input: the object and its dependents. Output: sentences, and whether the object is healthy.
//! Pure. It reads the status that controllers wrote; what they would do is the controllers' word.

use pintle_api_types::kind::{
    CRON_JOBS, DAEMON_SETS, DEPLOYMENTS, JOBS, NAMESPACES, RESOURCE_QUOTAS, SERVICE_ACCOUNTS,
    STATEFUL_SETS,
};
use pintle_api_types::quantity::Quantity;
use serde_json::Value;

use super::evidence::{condition, number, text, true_condition};
use super::subject::ExplainedKind;
use super::{Evidence, ObjectExplanation, names, namespace, pods};

/// Finalizers that the garbage collector removes.
const COLLECTED: [&str; 2] = ["foregroundDeletion", "orphan"];

/// Adds what is the case.
pub(super) fn describe(
    subject: &ExplainedKind,
    evidence: &Evidence,
    explanation: &mut ObjectExplanation,
) {
    let Some(object) = &evidence.object else { return };
    let facts = WorkloadFacts { object, evidence, kind: subject.kind.kind };
    facts.common(explanation);
    match subject.kind {
        kind if kind == DEPLOYMENTS => facts.deployment(explanation),
        kind if kind == STATEFUL_SETS => facts.stateful_set(explanation),
        kind if kind == DAEMON_SETS => facts.daemon_set(explanation),
        kind if kind == JOBS => facts.job(explanation),
        kind if kind == CRON_JOBS => facts.cron_job(explanation),
        kind if kind == NAMESPACES => namespace::describe(object, evidence, explanation),
        kind if kind == RESOURCE_QUOTAS => facts.quota(explanation),
        kind if kind == SERVICE_ACCOUNTS => {}
        _ => facts.replica_set(explanation),
    }
}

/// The part of the garbage collector in a deletion.
fn collection(queue: usize) -> String {
    let queue = match queue {
        0 => "its queue is empty".to_owned(),
        1 => "one object is in its queue".to_owned(),
        queue => format!("{queue} objects are in its queue, which --kube-api-qps slows down"),
    };
    format!("The garbage collector has to end the deletion; {queue}.")
}

struct WorkloadFacts<'a> {
    object: &'a Value,
    evidence: &'a Evidence,
    kind: &'static str,
}

impl WorkloadFacts<'_> {
    fn name(&self) -> String {
        let metadata = &self.object["metadata"];
        match text(&metadata["namespace"]) {
            "" => text(&metadata["name"]).to_owned(),
            namespace => format!("{namespace}/{}", text(&metadata["name"])),
        }
    }

    fn common(&self, explanation: &mut ObjectExplanation) {
        let (kind, name) = (self.kind, self.name());
        let metadata = &self.object["metadata"];
        if metadata["deletionTimestamp"].is_string() && kind != "Namespace" {
            let finalizers = metadata["finalizers"].as_array().into_iter().flatten();
            let finalizers: Vec<_> = finalizers.map(text).collect();
            explanation.is_settled = false;
            explanation.state.push(match finalizers.is_empty() {
                true => format!("{kind} {name} is being deleted."),
                false => format!(
                    "{kind} {name} is being deleted and is held by the finalizers {}.",
                    names(&finalizers)
                ),
            });
            let is_collected = finalizers.iter().any(|name| COLLECTED.contains(name));
            if let Some(queue) = self.evidence.collector_queue.filter(|_| is_collected) {
                explanation.waits_for.push(collection(queue));
            }
        }
        let (new, seen) = (&metadata["generation"], &self.object["status"]["observedGeneration"]);
        if let (Some(new), true) = (new.as_i64(), seen.is_i64())
            && number(seen) < new
        {
            explanation.is_settled = false;
            explanation.state.push(format!(
                "The controller has not acted on the newest spec yet: generation {new}, observed {}.",
                number(seen)
            ));
        }
    }

    fn wanted(&self) -> i64 {
        self.object["spec"]["replicas"].as_i64().unwrap_or(1)
    }

    fn status(&self, field: &str) -> i64 {
        number(&self.object["status"][field])
    }

    /// How many pods there are of those that should be; whether all are there.
    fn count(&self, what: &str, is: i64, wanted: i64, explanation: &mut ObjectExplanation) -> bool {
        let (kind, name) = (self.kind, self.name());
        let verb = if is == 1 { "is" } else { "are" };
        explanation.state.push(format!("{kind} {name}: {is} of {wanted} pods {verb} {what}."));
        let is_complete = is == wanted;
        explanation.is_settled &= is_complete;
        is_complete
    }

    fn pods(&self, explanation: &mut ObjectExplanation) {
        explanation.state.extend(pods::troubles(&self.evidence.pods));
    }

    fn deployment(&self, explanation: &mut ObjectExplanation) {
        let wanted = self.wanted();
        if self.object["spec"]["paused"] == true {
            explanation.state.push(format!("Deployment {} is paused.", self.name()));
        }
        let is_available =
            self.count("available", self.status("availableReplicas"), wanted, explanation);
        let (updated, all) = (self.status("updatedReplicas"), self.status("replicas"));
        if updated < wanted || all > updated {
            explanation.is_settled = false;
            let old = match all - updated {
                0 => String::new(),
                1 => ", one pod has an older one".to_owned(),
                old => format!(", {old} pods have an older one"),
            };
            explanation.state.push(format!(
                "{updated} of {wanted} pods {} the current template{old}.",
                if updated == 1 { "has" } else { "have" }
            ));
        }
        for set in &self.evidence.children {
            replica_failure("ReplicaSet", set, explanation);
        }
        if let Some(found) = condition(self.object, "Progressing")
            && found["reason"] == "ProgressDeadlineExceeded"
            && !is_available
        {
            let seconds = self.object["spec"]["progressDeadlineSeconds"].as_i64().unwrap_or(600);
            explanation.state.push(format!(
                "The rollout made no progress for {seconds} s and is marked as failed; it goes on when \
                 pods become available."
            ));
        }
        self.pods(explanation);
    }

    fn replica_set(&self, explanation: &mut ObjectExplanation) {
        self.count("available", self.status("availableReplicas"), self.wanted(), explanation);
        replica_failure(self.kind, self.object, explanation);
        self.pods(explanation);
    }

    fn stateful_set(&self, explanation: &mut ObjectExplanation) {
        let wanted = self.wanted();
        self.count("ready", self.status("readyReplicas"), wanted, explanation);
        let update = text(&self.object["status"]["updateRevision"]);
        if text(&self.object["status"]["currentRevision"]) != update && wanted > 0 {
            let updated = self.status("updatedReplicas");
            explanation.is_settled &= updated >= wanted;
            explanation.state.push(format!("{updated} of {wanted} pods have revision {update}."));
        }
        self.pods(explanation);
        let is_ordered = self.object["spec"]["podManagementPolicy"] != "Parallel";
        let stuck = self.evidence.pods.iter().filter(|pod| is_ordered && is_stuck(pod, update));
        if let Some(pod) = stuck.min_by_key(|pod| text(&pod["metadata"]["name"])) {
            let name = text(&pod["metadata"]["name"]);
            let namespace = text(&self.object["metadata"]["namespace"]);
            explanation.is_settled = false;
            explanation.state.push(format!(
                "Pod {name} has an older revision and does not become ready, and a StatefulSet never \
                 replaces such a pod by itself."
            ));
            explanation.remedy = Some(format!("kubectl delete pod {name} -n {namespace}"));
        }
    }

    fn daemon_set(&self, explanation: &mut ObjectExplanation) {
        let wanted = self.status("desiredNumberScheduled");
        self.count("available", self.status("numberAvailable"), wanted, explanation);
        let updated = self.status("updatedNumberScheduled");
        if updated < wanted {
            explanation.is_settled = false;
            explanation
                .state
                .push(format!("{updated} of {wanted} pods have the current template."));
        }
        let surplus = self.status("numberMisscheduled");
        if surplus > 0 {
            explanation.state.push(format!("{surplus} nodes run a pod that they should not run."));
        }
        self.pods(explanation);
    }

    fn job(&self, explanation: &mut ObjectExplanation) {
        let name = self.name();
        for (kind, words) in [("Complete", "has completed"), ("Failed", "has failed")] {
            if let Some(found) = true_condition(self.object, kind) {
                explanation.is_settled = true;
                let message = text(&found["message"]);
                let reason = text(&found["reason"]);
                explanation.state.push(match message {
                    "" => format!("Job {name} {words}."),
                    message => format!("Job {name} {words}: {reason}: {message}."),
                });
                return;
            }
        }
        explanation.is_settled = false;
        if self.object["spec"]["suspend"] == true {
            explanation
                .state
                .push(format!("Job {name} is suspended: set spec.suspend to false to start it."));
        }
        let (active, failed) = (self.status("active"), self.status("failed"));
        let succeeded = self.status("succeeded");
        let of = self.object["spec"]["completions"].as_i64();
        let of = of.map(|of| format!(" of {of}")).unwrap_or_default();
        explanation.state.push(format!(
            "Job {name}: pods succeeded: {succeeded}{of}, active: {active}, failed: {failed}."
        ));
        if let Some(limit) = self.object["spec"]["backoffLimit"].as_i64().filter(|_| failed > 0) {
            explanation.state.push(format!("It fails after {} failed pods.", limit + 1));
        }
        let active = self
            .evidence
            .pods
            .iter()
            .filter(|pod| !matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed"));
        let active: Vec<_> = active.cloned().collect();
        explanation.state.extend(pods::troubles(&active));
    }

    fn cron_job(&self, explanation: &mut ObjectExplanation) {
        let name = self.name();
        let (schedule, spec) = (text(&self.object["spec"]["schedule"]), &self.object["spec"]);
        let last = text(&self.object["status"]["lastScheduleTime"]);
        let started = match last {
            "" => "it has not started a Job yet".to_owned(),
            last => format!("its last Job was due at {last}"),
        };
        explanation.state.push(format!("CronJob {name} has the schedule {schedule}; {started}."));
        if spec["suspend"] == true {
            explanation.is_settled = false;
            explanation
                .state
                .push("It is suspended: set spec.suspend to false to start Jobs.".to_owned());
        }
        let is_active = |job: &&Value| {
            let ended =
                ["Complete", "Failed"].iter().any(|kind| true_condition(job, kind).is_some());
            !ended
        };
        let active = self.evidence.children.iter().filter(is_active);
        let active: Vec<_> = active.map(|job| text(&job["metadata"]["name"])).collect();
        if !active.is_empty() {
            let policy = match text(&spec["concurrencyPolicy"]) {
                "Forbid" => ": the next Job starts only when none is active",
                "Replace" => ": the next start replaces them",
                _ => "",
            };
            explanation.state.push(format!("Active Jobs: {}{policy}.", names(&active)));
        }
    }

    fn quota(&self, explanation: &mut ObjectExplanation) {
        let (hard, used) = (&self.object["spec"]["hard"], &self.object["status"]["used"]);
        let name = self.name();
        let mut full = Vec::new();
        for (resource, limit) in hard.as_object().into_iter().flatten() {
            match (text(limit).parse::<Quantity>(), text(&used[resource]).parse::<Quantity>()) {
                (Ok(limit), Ok(count)) if count.amount() >= limit.amount() => {
                    full.push(format!(
                        "{resource} ({} of {})",
                        text(&used[resource]),
                        text(&hard[resource])
                    ));
                }
                (_, Err(_)) => {
                    explanation.is_settled = false;
                    explanation
                        .state
                        .push(format!("ResourceQuota {name}: {resource} is not counted yet."));
                }
                _ => {}
            }
        }
        if !full.is_empty() {
            explanation.state.push(format!(
                "ResourceQuota {name} is used up: {}; creations beyond it are refused.",
                full.join(", ")
            ));
        }
    }
}

/// Explains why a set creates or deletes no pods.
fn replica_failure(kind: &str, set: &Value, explanation: &mut ObjectExplanation) {
    if let Some(found) = true_condition(set, "ReplicaFailure") {
        explanation.is_settled = false;
        let verb = if found["reason"] == "FailedDelete" { "delete" } else { "create" };
        explanation.state.push(format!(
            "{kind} {} cannot {verb} pods: {}.",
            text(&set["metadata"]["name"]),
            text(&found["message"]).trim_end_matches('.')
        ));
    }
}

/// The pod is of another revision than the set is updated to, and will not become ready.
fn is_stuck(pod: &Value, update: &str) -> bool {
    let revision = text(&pod["metadata"]["labels"]["controller-revision-hash"]);
    let is_old = !revision.is_empty() && !update.is_empty() && revision != update;
    is_old
        && !pod["metadata"]["deletionTimestamp"].is_string()
        && pods::trouble(pod).is_some_and(|trouble| !trouble.contains("being created"))
}
