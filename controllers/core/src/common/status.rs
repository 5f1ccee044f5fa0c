//! Replaces the status of an object.
//!
//! Input: the object, its new status, and how often a refusal is retried. The request contains the
//! whole object, since the API server takes a status only as part of it. After a refusal the object
//! is read live: what is sent then is its newest state with the new status.

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::{ApiError, Request, Target};
use serde_json::Value;

use crate::frame::{Transcript, TranscriptStop};

/// Which refusals are retried, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusRetry {
    /// Conflicts, so many times.
    Conflicts(u32),
    /// Every refusal, so many times.
    Refusals(u32),
}

impl StatusRetry {
    fn allows(self, retries: u32, error: &ApiError) -> bool {
        match self {
            Self::Conflicts(max) => retries < max && error.is_conflict(),
            Self::Refusals(max) => retries < max && !error.is_unknown(),
        }
    }
}

/// Replaces the status of an object by what `edit` makes of it; returns the object as it is then.
///
/// # Errors
/// When the API server refuses it too often, and when the object was recreated meanwhile.
pub fn replace_status(
    kind: Kind,
    object: Value,
    retry: StatusRetry,
    edit: impl Fn(&mut Value),
    transcript: &mut Transcript,
) -> Result<Value, TranscriptStop> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    let uid = text(&metadata["uid"]);
    let key = ObjectKey::new(&text(&metadata["namespace"]), &text(&metadata["name"]));
    let mut object = object;
    let mut retries = 0;
    loop {
        edit(&mut object["status"]);
        let target = Target::status(kind, key.clone());
        let error = match transcript.send(Request::Replace { target, body: object })? {
            Ok(replaced) => return Ok(replaced),
            Err(error) => error,
        };
        if !retry.allows(retries, &error) {
            return Err(error.into());
        }
        retries += 1;
        let target = Target::object(kind, key.clone());
        object = transcript.send(Request::Read { target, only_metadata: false })??;
        if text(&object["metadata"]["uid"]) != uid {
            return Err(error.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use pintle_api_types::kind::STATEFUL_SETS;
    use pintle_api_types::request::Answer;
    use serde_json::json;

    use super::*;

    fn run(retry: StatusRetry, answer: impl Fn(&Request) -> Answer) -> (Vec<Request>, bool) {
        let object = json!({"metadata": {"name": "a", "namespace": "n", "uid": "u"}});
        let mut transcript = Transcript::new(jiff::Timestamp::UNIX_EPOCH);
        let edit = |status: &mut Value| *status = json!({"replicas": 1});
        loop {
            match replace_status(STATEFUL_SETS, object.clone(), retry, edit, &mut transcript) {
                Err(TranscriptStop::Pending) => {
                    let answers = transcript.wanted().iter().map(&answer).collect();
                    transcript.answer(answers);
                }
                end => {
                    let requests = transcript.steps().iter().flat_map(|step| step.requests.clone());
                    return (requests.collect(), end.is_ok());
                }
            }
        }
    }

    fn refusal(code: u16, reason: &str) -> ApiError {
        ApiError { code, reason: reason.to_owned(), ..ApiError::default() }
    }

    #[test]
    fn conflict_is_retried_on_the_newest_state() {
        let fresh = json!({"metadata": {"name": "a", "namespace": "n", "uid": "u",
            "resourceVersion": "9"}});
        let (requests, is_done) = run(StatusRetry::Conflicts(4), |request| match request {
            Request::Replace { body, .. } if body["metadata"]["resourceVersion"] != "9" => {
                Err(refusal(409, "Conflict"))
            }
            Request::Replace { body, .. } => Ok(body.clone()),
            _ => Ok(fresh.clone()),
        });
        let [_, Request::Read { .. }, Request::Replace { body, target }] = &*requests else {
            panic!("{requests:?}")
        };
        assert_eq!((target.sub, &body["status"]), ("status", &json!({"replicas": 1})));
        assert!(is_done);
    }

    #[test]
    fn other_refusals_are_retried_only_when_asked() {
        let refuse = |request: &Request| match request {
            Request::Replace { .. } => Err(refusal(500, "InternalError")),
            _ => Ok(json!({"metadata": {"uid": "u"}})),
        };
        for (retry, requests) in [(StatusRetry::Conflicts(4), 1), (StatusRetry::Refusals(1), 3)] {
            let (sent, is_done) = run(retry, refuse);
            assert_eq!((sent.len(), is_done), (requests, false), "{retry:?}");
        }
    }
}
