//! Deletes everything in a namespace: pods first, then all other kinds at once.
//!
//! Other kinds wait for pods, because pods may need their secrets, claims and policies until they
//! end. Input: the namespace and the kinds of the API server. Output: seconds after which the rest
//! may be deleted, 0 when nothing remains. One batch deletes, the next one counts.
// k8s: pkg/controller/namespace/deletion/namespaced_resources_deleter.go deleteAllContent

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{Kind, PODS};
use pintle_api_types::request::{Answer, ApiError, DeleteOptions, Propagation, Request, Target};
use pintle_controllers_core::frame::{Transcript, TranscriptStop};
use pintle_controllers_core::tables::DiscoveredKind;
use serde_json::Value;

use super::conditions::Findings;
use super::{TerminatingNamespace, is_unsupported, target};

/// Seconds that finalizers are expected to take.
// k8s: deletion/namespaced_resources_deleter.go finalizerEstimateSeconds
const FINALIZER_SECONDS: i64 = 15;

/// A kind, and what is known of its deletion.
struct DeletionWork<'a> {
    found: &'a DiscoveredKind,
    /// Seconds that its objects may still take.
    estimate: i64,
    /// Why it failed.
    failure: Option<String>,
}

impl DeletionWork<'_> {
    fn kind(&self) -> Kind {
        self.found.kind
    }

    fn is_open(&self) -> bool {
        self.failure.is_none()
    }
}

/// Deletes the content; returns the estimate and the newest state of the namespace.
pub(super) fn delete_all(
    namespace: Value,
    snapshot: &TerminatingNamespace,
    transcript: &mut Transcript,
) -> Result<(i64, Value), TranscriptStop> {
    let mut findings = Findings::default();
    let mut errors = Vec::new();
    if let Some(failure) = snapshot.discovery.failure() {
        let count = snapshot.discovery.failed_groups.len();
        findings.discovery =
            Some(format!("Discovery failed for some groups, {count} failing: {failure}"));
        transcript.because(failure.clone());
        errors.push(failure);
    }
    let name = snapshot.key.name();
    let is_namespaced = |found: &&DiscoveredKind| found.kind.is_namespaced;
    let kinds = snapshot.discovery.preferred(&["delete"]).filter(is_namespaced);
    let (pods, others): (Vec<_>, Vec<_>) = kinds.partition(|found| found.kind == PODS);

    let mut estimate = 0;
    if let Some(found) = pods.first() {
        estimate = delete_pods(found, &namespace, &mut findings, transcript)?;
        let prefix = format!("failed to delete pods for namespace: {name}, err: ");
        errors.extend(findings.failures.iter().map(|failure| prefix.clone() + failure));
        if !findings.remaining.objects.is_empty() {
            // The remaining objects are counted only after all kinds were listed.
            let remaining = std::mem::take(&mut findings.remaining);
            transcript.because(format!("pods go first: {}", remaining.objects_text()));
            let namespace = update_conditions(namespace, &findings, transcript)?;
            return finish(estimate, namespace, &errors);
        }
    }
    let of_pods = findings.failures.len();
    let works = others.iter().map(|found| DeletionWork { found, estimate: 0, failure: None });
    estimate = estimate.max(delete_kinds(works.collect(), name, &mut findings, transcript)?);
    errors.extend_from_slice(&findings.failures[of_pods..]);
    findings.remaining.explain(transcript);
    let namespace = update_conditions(namespace, &findings, transcript)?;
    finish(estimate, namespace, &errors)
}

/// Deletes the pods; returns their estimate.
fn delete_pods(
    found: &DiscoveredKind,
    namespace: &Value,
    findings: &mut Findings,
    transcript: &mut Transcript,
) -> Result<i64, TranscriptStop> {
    let metadata = &namespace["metadata"];
    let deleted_at = metadata["deletionTimestamp"].as_str().and_then(|at| at.parse().ok());
    let name = metadata["name"].as_str().unwrap_or_default();
    let mut work = DeletionWork { found, estimate: 0, failure: None };
    match estimate_pods(name, deleted_at.unwrap_or(transcript.now()), transcript)? {
        Ok(seconds) => work.estimate = seconds,
        Err(error) => work.failure = Some(error.message),
    }
    delete_kinds(vec![work], name, findings, transcript)
}

fn finish(
    estimate: i64,
    namespace: Value,
    errors: &[String],
) -> Result<(i64, Value), TranscriptStop> {
    match errors {
        [] => Ok((estimate, namespace)),
        [error] => Err(TranscriptStop::failed(error)),
        errors => Err(TranscriptStop::failed(format!("[{}]", errors.join(", ")))),
    }
}

/// Writes the conditions. A failure is not one of the sync: the next one writes them again.
fn update_conditions(
    mut namespace: Value,
    findings: &Findings,
    transcript: &mut Transcript,
) -> Result<Value, TranscriptStop> {
    if !findings.update(&mut namespace["status"], transcript.now()) {
        return Ok(namespace);
    }
    let target = target(&namespace, "status");
    let answer = transcript.send(Request::Replace { target, body: namespace.clone() })?;
    Ok(answer.unwrap_or(namespace))
}

/// The longest grace of the pods that still run; 0 when it is over.
// k8s: deletion/namespaced_resources_deleter.go estimateGracefulTerminationForPods
fn estimate_pods(
    namespace: &str,
    deleted_at: Timestamp,
    transcript: &mut Transcript,
) -> Result<Result<i64, ApiError>, TranscriptStop> {
    let answer = transcript.send(list(PODS, namespace, false))?;
    let pods = match &answer {
        Ok(list) => list["items"].as_array().into_iter().flatten(),
        Err(error) => return Ok(Err(error.clone())),
    };
    let running =
        pods.filter(|pod| !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")));
    let graces = running.filter_map(|pod| pod["spec"]["terminationGracePeriodSeconds"].as_i64());
    let estimate = graces.max().unwrap_or(0).max(0);
    let passed = transcript.now().duration_since(deleted_at).as_secs();
    Ok(Ok(if passed >= estimate { 0 } else { estimate }))
}

/// Deletes all objects of some kinds; returns the longest estimate.
// k8s: deletion/namespaced_resources_deleter.go deleteAllContentForGroupVersionResource
fn delete_kinds(
    mut works: Vec<DeletionWork<'_>>,
    namespace: &str,
    findings: &mut Findings,
    transcript: &mut Transcript,
) -> Result<i64, TranscriptStop> {
    let each = delete_collections(&mut works, namespace, transcript)?;
    delete_each(&mut works, each, namespace, transcript)?;
    let counts = |work: &&DeletionWork<'_>| work.is_open() && work.found.supports(&["list"]);
    let lists: Vec<_> =
        works.iter().filter(counts).map(|work| list(work.kind(), namespace, true)).collect();
    let mut answers = transcript.send_all(lists)?.into_iter();
    let mut longest = 0;
    for work in &mut works {
        if counts(&&*work) {
            let answer = answers.next().expect("an answer for each list");
            count(work, answer, namespace, findings);
        }
        longest = longest.max(work.estimate);
        findings.failures.extend(work.failure.take());
    }
    Ok(longest)
}

/// Deletes the collections; returns the places of kinds without such a deletion.
fn delete_collections(
    works: &mut [DeletionWork<'_>],
    namespace: &str,
    transcript: &mut Transcript,
) -> Result<Vec<usize>, TranscriptStop> {
    let is_collective =
        |work: &DeletionWork<'_>| work.is_open() && work.found.supports(&["deletecollection"]);
    let deletions = works.iter().filter(|work| is_collective(work)).map(|work| {
        let (kind, namespace) = (work.kind(), namespace.to_owned());
        Request::DeleteCollection { kind, namespace, propagation: Some(Propagation::Background) }
    });
    let mut answers = transcript.send_all(deletions.collect())?.into_iter();
    let mut each = Vec::new();
    for (at, work) in works.iter_mut().enumerate() {
        if !work.is_open() {
            continue;
        }
        if !is_collective(work) {
            each.push(at);
            continue;
        }
        match answers.next().expect("an answer for each deletion") {
            Ok(_) => {}
            Err(error) if is_unsupported(&error) => each.push(at),
            Err(error) => work.failure = Some(error.message),
        }
    }
    Ok(each)
}

/// Lists the kinds at these places and deletes each object.
// k8s: deletion/namespaced_resources_deleter.go deleteEachItem
fn delete_each(
    works: &mut [DeletionWork<'_>],
    mut places: Vec<usize>,
    namespace: &str,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    places.retain(|at| works[*at].found.supports(&["list"]));
    let lists = places.iter().map(|at| list(works[*at].kind(), namespace, true)).collect();
    let answers = transcript.send_all(lists)?;
    let mut owners = Vec::new();
    let mut deletions = Vec::new();
    for (at, answer) in places.into_iter().zip(answers) {
        let found = match answer {
            Ok(found) => found,
            Err(error) if is_unsupported(&error) => continue,
            Err(error) => {
                works[at].failure = Some(error.message);
                continue;
            }
        };
        for item in found["items"].as_array().into_iter().flatten() {
            let name = item["metadata"]["name"].as_str().unwrap_or_default();
            let target = Target::object(works[at].kind(), ObjectKey::new(namespace, name));
            owners.push(at);
            deletions.push(delete(target));
        }
    }
    let answers = transcript.send_all(deletions)?;
    for (at, answer) in owners.into_iter().zip(answers) {
        if let Err(error) = answer
            && !is_unsupported(&error)
        {
            works[at].failure.get_or_insert(error.message);
        }
    }
    Ok(())
}

fn delete(target: Target) -> Request {
    let propagation = Some(Propagation::Background);
    let options = DeleteOptions { propagation, ..DeleteOptions::default() };
    Request::Delete { target, options }
}

/// Counts what remains of a kind.
fn count(work: &mut DeletionWork<'_>, answer: Answer, namespace: &str, findings: &mut Findings) {
    let found = match answer {
        Ok(found) => found,
        Err(error) if is_unsupported(&error) => return,
        Err(error) => {
            work.failure = Some(error.message);
            return;
        }
    };
    let items = found["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        work.estimate = 0;
        return;
    }
    let finalizers = items.iter().flat_map(|item| item["metadata"]["finalizers"].as_array());
    let finalizers: Vec<_> = finalizers.flatten().filter_map(Value::as_str).collect();
    findings.remaining.objects.insert(work.kind(), items.len());
    if work.estimate == 0 && finalizers.is_empty() {
        work.failure = Some(unexpected(work.kind(), namespace));
        return;
    }
    if work.estimate == 0 {
        work.estimate = FINALIZER_SECONDS;
    }
    for finalizer in finalizers {
        *findings.remaining.finalizers.entry(finalizer.to_owned()).or_default() += 1;
    }
}

/// The failure of objects that remain without a reason.
fn unexpected(kind: Kind, namespace: &str) -> String {
    let (group, version, plural) = (kind.group, kind.version, kind.plural);
    format!(
        "unexpected items still remain in namespace: {namespace} for gvr: {group}/{version}, \
         Resource={plural}"
    )
}

pub(super) fn list(kind: Kind, namespace: &str, only_metadata: bool) -> Request {
    Request::List { kind, namespace: namespace.to_owned(), labels: String::new(), only_metadata }
}
