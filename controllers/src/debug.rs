//! Pages of the deciding thread: what a controller does, and why an object is not where it should be.
//!
//! Input: questions from the HTTPS port, the frame. Output: text, or JSON where the client asks for
//! it. `/debug/controllers/NAME` shows counts; with `?key=NAMESPACE/NAME` it explains one object, as
//! `/pintle/explain?controller=NAME&key=NAMESPACE/NAME` does.

use pintle_controllers_core::frame::{Frame, NamedStats, Now};
use pintle_controllers_core::names::Controller;
use pintle_daemon::serve::answer::Answer;
use pintle_daemon::serve::query::Query;
use serde_json::json;

use crate::process::Question;

const CONTROLLERS: &str = "/debug/controllers/";
const EXPLAIN: &str = "/pintle/explain";

/// Answers a question.
pub(crate) fn answer(frame: &mut Frame, question: Question, now: Now) {
    let page = page(frame, &question, now);
    // The client may have gone.
    let _ = question.answer.send(page);
}

fn page(frame: &mut Frame, question: &Question, now: Now) -> Answer {
    let query = Query::parse(&question.query);
    let name = match question.path.strip_prefix(CONTROLLERS) {
        Some(rest) => rest.trim_end_matches('/'),
        None if question.path == EXPLAIN => query.first("controller").unwrap_or_default(),
        None => return Answer::not_found(),
    };
    let running = Controller::find(name).filter(|one| frame.names().any(|name| name == one.name));
    let Some(controller) = running else {
        let running: Vec<_> = frame.names().collect();
        let text = format!("no controller {name:?} runs here; these do: {}\n", running.join(", "));
        return Answer::text(404, text);
    };
    match query.first("key") {
        Some(key) => {
            let lines = frame.explain(controller.name, key, now);
            let json = json!({"controller": controller.name, "key": key, "reasons": lines});
            shown(question.wants_json, json, lines.join("\n") + "\n")
        }
        None if question.path == EXPLAIN => {
            Answer::text(400, "which object? ask for &key=NAMESPACE/NAME\n")
        }
        None => counts(frame, controller.name, question.wants_json, now),
    }
}

fn counts(frame: &Frame, name: &str, wants_json: bool, now: Now) -> Answer {
    let found = frame.stats(now).into_iter().find(|one| one.name == name);
    let Some(NamedStats { stats, .. }) = found else { return Answer::not_found() };
    let queue = stats.queue;
    let json = json!({
        "controller": name,
        "waiting": queue.depth,
        "synced": stats.synced,
        "failed": stats.failed,
        "panicked": stats.panicked,
        "waitedForOwnWrites": stats.stale,
        "longestSyncSeconds": queue.longest.as_secs_f64(),
    });
    let text = format!(
        "{name}: {} keys wait; {} syncs succeeded, {} failed, {} panicked; {} waited for their own \
         writes; the longest sync under way has taken {:.1} s\n",
        queue.depth,
        stats.synced,
        stats.failed,
        stats.panicked,
        stats.stale,
        queue.longest.as_secs_f64(),
    );
    shown(wants_json, json, text)
}

fn shown(wants_json: bool, json: serde_json::Value, text: String) -> Answer {
    if wants_json { Answer::json(&json) } else { Answer::text(200, text) }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use jiff::Timestamp;
    use pintle_controllers_loops::ttl_after_finished::TtlAfterFinished;
    use tokio::sync::oneshot;

    use super::*;

    fn asked(path: &str, query: &str, wants_json: bool) -> (u16, String) {
        let mut frame = Frame::default();
        frame.add(TtlAfterFinished { workers: 1 });
        let (answer, mut answered) = oneshot::channel();
        let (path, query) = (path.to_owned(), query.to_owned());
        let now = Now { instant: Instant::now(), wall: Timestamp::UNIX_EPOCH };
        super::answer(&mut frame, Question { path, query, wants_json, answer }, now);
        let page = answered.try_recv().expect("an answer");
        (page.status, String::from_utf8_lossy(&page.body).into_owned())
    }

    #[test]
    fn page_of_a_controller_has_its_counts() {
        for name in ["ttl-after-finished-controller", "ttl-after-finished"] {
            let (status, text) = asked(&format!("/debug/controllers/{name}"), "", false);
            assert_eq!(status, 200);
            assert!(text.starts_with("ttl-after-finished-controller: 0 keys wait"), "{text}");
        }
        let (_, json) = asked("/debug/controllers/ttl-after-finished", "", true);
        assert!(json.contains("\"waitedForOwnWrites\":0"), "{json}");
    }

    #[test]
    fn controller_that_does_not_run_is_named_with_those_that_do() {
        let (status, text) = asked("/debug/controllers/job-controller", "", false);
        assert_eq!(status, 404);
        assert!(text.contains("these do: ttl-after-finished-controller"), "{text}");
    }

    #[test]
    fn explain_needs_a_key() {
        let (status, text) = asked("/pintle/explain", "controller=ttl-after-finished", false);
        assert_eq!((status, text.as_str()), (400, "which object? ask for &key=NAMESPACE/NAME\n"));
        assert_eq!(asked("/pintle/other", "", false).0, 404);
    }
}
