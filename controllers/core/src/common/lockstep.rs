//! Runs the same task for several objects side by side, within one sync.
//!
//! Input: a task that sends requests one after the other, and the number of objects. Output: the
//! outcome of each task. The next requests of all tasks are sent together, so that 500 pods with a
//! claim each take two rounds and not 1,000. A failed task stops only itself. Bounds:
//! `frame::BATCH_MAX` requests at once.

use crate::frame::{SyncError, Transcript, TranscriptStop};

/// Runs a task for each of `count` objects side by side; returns their outcomes, in order.
///
/// # Errors
/// [`TranscriptStop::Pending`] until all of them have ended.
pub fn run_side_by_side<T>(
    count: usize,
    task: impl Fn(usize, &mut Transcript) -> Result<T, TranscriptStop>,
    transcript: &mut Transcript,
) -> Result<Vec<Result<T, SyncError>>, TranscriptStop> {
    let mut lanes: Vec<_> = (0..count).map(|_| Transcript::new(transcript.now())).collect();
    let mut ends: Vec<Option<Result<T, SyncError>>> = (0..count).map(|_| None).collect();
    loop {
        let mut waiting = Vec::new();
        let mut requests = Vec::new();
        for (at, lane) in lanes.iter_mut().enumerate() {
            if ends[at].is_some() {
                continue;
            }
            match task(at, lane) {
                Ok(end) => ends[at] = Some(Ok(end)),
                Err(TranscriptStop::Failed(error)) => ends[at] = Some(Err(error)),
                Err(TranscriptStop::Pending) => {
                    waiting.push(at);
                    requests.extend_from_slice(lane.wanted());
                }
            }
        }
        if waiting.is_empty() {
            break;
        }
        let mut answers = transcript.send_all(requests)?.into_iter();
        for at in waiting {
            let wanted = lanes[at].wanted().len();
            lanes[at].answer(answers.by_ref().take(wanted).collect());
        }
    }
    for lane in &lanes {
        lane.events().iter().for_each(|event| transcript.event(event.clone()));
        lane.reasons().iter().for_each(|reason| transcript.because(reason.clone()));
    }
    Ok(ends.into_iter().map(|end| end.expect("every task has ended")).collect())
}

/// Lets a sync go on after a failure: only a request without an answer stops it.
///
/// # Errors
/// [`TranscriptStop::Pending`].
pub fn attempt<T>(
    result: Result<T, TranscriptStop>,
) -> Result<Result<T, SyncError>, TranscriptStop> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(TranscriptStop::Failed(error)) => Ok(Err(error)),
        Err(TranscriptStop::Pending) => Err(TranscriptStop::Pending),
    }
}

/// One failure for several: the first one, with the sentences of all.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/errors/errors.go NewAggregate
pub fn aggregate(mut errors: Vec<SyncError>) -> Option<SyncError> {
    if errors.len() <= 1 {
        return errors.pop();
    }
    let mut messages = Vec::new();
    for error in &errors {
        if !messages.contains(&&*error.message) {
            messages.push(&*error.message);
        }
    }
    let message = match &*messages {
        [one] => (*one).to_owned(),
        _ => format!("[{}]", messages.join(", ")),
    };
    Some(SyncError { message, retry: errors[0].retry })
}

#[cfg(test)]
mod tests {
    use pintle_api_types::request::Request;
    use serde_json::json;

    use super::*;

    fn get(path: String) -> Request {
        Request::Get { path }
    }

    #[test]
    fn tasks_send_their_next_requests_together() {
        let mut transcript = Transcript::new(jiff::Timestamp::UNIX_EPOCH);
        let task = |at: usize, lane: &mut Transcript| {
            for turn in 0..=at {
                let answer = lane.send(get(format!("{at}/{turn}")))?;
                lane.because(format!("{at}/{turn}"));
                if answer? == json!("fails") {
                    return Err(TranscriptStop::failed("no"));
                }
            }
            Ok(at)
        };
        let mut rounds = Vec::new();
        let ends = loop {
            match run_side_by_side(3, task, &mut transcript) {
                Ok(ends) => break ends,
                Err(TranscriptStop::Failed(error)) => panic!("{error}"),
                Err(TranscriptStop::Pending) => {
                    rounds.push(transcript.wanted().len());
                    let answers = transcript.wanted().iter().map(|request| match request {
                        Request::Get { path } if path == "1/1" => Ok(json!("fails")),
                        _ => Ok(json!(null)),
                    });
                    let answers = answers.collect();
                    transcript.answer(answers);
                }
            }
        };
        assert_eq!(rounds, [3, 2, 1]);
        assert_eq!(transcript.reasons(), ["0/0", "1/0", "1/1", "2/0", "2/1", "2/2"]);
        assert!(matches!(&ends[..], [Ok(0), Err(_), Ok(2)]), "{ends:?}");
    }

    #[test]
    fn aggregate_names_each_failure_once() {
        let error = |message: &str| match TranscriptStop::failed(message) {
            TranscriptStop::Failed(error) => error,
            TranscriptStop::Pending => unreachable!("it failed"),
        };
        let message = |errors: &[&str]| {
            aggregate(errors.iter().map(|one| error(one)).collect()).map(|error| error.message)
        };
        assert_eq!(message(&[]), None);
        assert_eq!(message(&["a"]).as_deref(), Some("a"));
        assert_eq!(message(&["a", "a"]).as_deref(), Some("a"));
        assert_eq!(message(&["a", "b"]).as_deref(), Some("[a, b]"));
    }
}
