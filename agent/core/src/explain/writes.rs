//! Writes that the API server has not accepted, and the reasons that keep the object of an ended
//! pod. Pure.

use super::{ExplainSubject, Explanation, remedies, span, words};
use crate::api_health::Unwritten;
use pintle_api_types::pod;

/// Adds the pending write to an explanation that would satisfy users (healthy, ended) while the API
/// server does not know the status.
pub(super) fn with_unwritten(subject: &ExplainSubject<'_>, found: Explanation) -> Explanation {
    let Some(unwritten) = subject.unwritten else { return found };
    let is_over = matches!(found.reason.as_str(), "Ended" | "DeletionPending");
    if !found.healthy && !is_over {
        return found;
    }
    let so_far = found.sentence.trim_end_matches('.');
    let sentence = format!("{so_far}, but the API server {}", unwritten_text(subject, unwritten));
    Explanation::trouble("NotWritten", sentence)
        .with_remedy(remedies::of_api_server(&unwritten.trouble.words))
}

/// `has not taken its status for 2 min (12 tries): words`.
fn unwritten_text(subject: &ExplainSubject<'_>, unwritten: &Unwritten) -> String {
    let Unwritten { what, trouble } = unwritten;
    let age = span(subject.now.since(trouble.since));
    let tries =
        if trouble.tries == 1 { "1 try".to_owned() } else { format!("{} tries", trouble.tries) };
    format!("has not taken {what} for {age} ({tries}): {}", words::one_line(&trouble.words))
}

/// The line about it among the details.
pub(crate) fn line(subject: &ExplainSubject<'_>) -> Option<String> {
    subject
        .unwritten
        .map(|unwritten| format!("the API server {}", unwritten_text(subject, unwritten)))
}

/// Why the object of a pod still exists although nothing is left on the node.
pub(crate) fn kept(subject: &ExplainSubject<'_>) -> Option<Explanation> {
    let meta = &subject.view.pod.metadata;
    if !pod::is_deleted(&subject.view.pod) {
        return None;
    }
    let finalizers: Vec<&str> = meta.finalizers.iter().flatten().map(String::as_str).collect();
    if finalizers.is_empty() {
        let sentence = "Has ended and nothing of it is left here; the API server is to forget it";
        return Some(Explanation::trouble("DeletionPending", sentence));
    }
    let plural = if finalizers.len() == 1 { "" } else { "s" };
    let names = finalizers.join(", ");
    let sentence = format!(
        "Has ended and nothing of it is left here; its object stays for its finalizer{plural} \
         {names}"
    );
    let remedy = format!(
        "see why the controller behind {names} does not finish; if there is none any more, take \
         the finalizer{plural} out of metadata.finalizers"
    );
    Some(Explanation::trouble("WaitingForFinalizers", sentence).with_remedy(remedy))
}
