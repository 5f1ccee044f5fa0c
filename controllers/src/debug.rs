//! Pages of the deciding thread: what a controller does, and why an object is not where it should
//! be.
//!
//! Input: questions from the HTTPS port, the frame. Output: text, or JSON where the client asks for
//! it. `/debug/controllers/NAME` shows counts, pages below it are the controller's.
//! `/pintle/explain?kind=KIND&namespace=NS&name=NAME`
//! explains an object: this thread says what its keys wait for, and a task of its own reads the
//! rest, so that syncs go on.

use std::collections::BTreeMap;
use std::rc::Rc;

use pintle_controllers_core::frame::{Frame, MANAGER, NamedStats, Now};
use pintle_controllers_core::names::ControllerNames;
use pintle_controllers_loops::explain::{ExplainedKind, related};
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::query::Query;
use serde_json::json;

use crate::discovery::DiscoveryHandle;
use crate::dispatch::ControllerClients;
use crate::explain::{ExplainError, Investigation, investigate};
use crate::process::DecisionQuery;

const CONTROLLERS: &str = "/debug/controllers/";
const EXPLAIN: &str = "/pintle/explain";
const COLLECTOR: &str = "garbage-collector-controller";

/// Dependencies of the reads for explain.
pub(crate) struct Explainer {
    /// For the reads of syncs, by controller.
    pub(crate) identities: BTreeMap<&'static str, Rc<ControllerClients>>,
    /// For all other reads.
    pub(crate) client: kube::Client,
    /// The kinds that a namespace may contain.
    pub(crate) discovery: DiscoveryHandle,
}

/// Answers a question. Must be called on a `LocalSet`.
pub(crate) fn answer(frame: &mut Frame, question: DecisionQuery, explainer: &Explainer, now: Now) {
    if question.path != EXPLAIN {
        let page = page(frame, &question, now);
        // The client may have disconnected.
        let _ = question.answer.send(page);
        return;
    }
    let investigation = match investigation(frame, &Query::parse(&question.query), now) {
        Ok(investigation) => investigation,
        Err(mistake) => {
            let _ = question.answer.send(HttpAnswer::text(400, format!("{mistake}\n")));
            return;
        }
    };
    let (client, discovery) = (explainer.client.clone(), explainer.discovery.current());
    let identities = explainer.identities.clone();
    tokio::task::spawn_local(async move {
        let client_of = |name: &str| {
            let identity = identities.get(name).or_else(|| identities.get(MANAGER));
            identity.map_or_else(|| client.clone(), |identity| identity.client.clone())
        };
        let page = match investigate(investigation, &client, client_of, &discovery).await {
            Ok(found) if question.wants_json => HttpAnswer::json(&found),
            Ok(found) => HttpAnswer::text(200, found.to_string()),
            Err(error @ ExplainError::NotFound { .. }) => {
                HttpAnswer::text(404, format!("{error}\n"))
            }
            Err(error) => HttpAnswer::text(502, format!("{error}\n")),
        };
        let _ = question.answer.send(page);
    });
}

/// Reason why a question names no object.
#[derive(Debug, thiserror::Error)]
enum SubjectError {
    #[error("which object? ask for ?kind=KIND&namespace=NAMESPACE&name=NAME")]
    NoName,
    #[error("{0}")]
    Kind(String),
    #[error("{0} does not run here")]
    NotRunning(&'static str),
}

/// The requested object, and the frame's state of it.
fn investigation(
    frame: &mut Frame,
    query: &Query,
    now: Now,
) -> Result<Investigation, SubjectError> {
    let (Some(kind), Some(name)) = (query.first("kind"), query.first("name")) else {
        return Err(SubjectError::NoName);
    };
    let subject = ExplainedKind::find(kind);
    let subject = subject.map_err(|error| SubjectError::Kind(error.to_string()))?;
    let key = subject.key(query.first("namespace").unwrap_or("default"), name);
    let keys = related(subject, &key, frame.tables());
    let states = keys.iter().filter_map(|(name, key)| frame.key_state(name, key, now));
    let states: Vec<_> = states.collect();
    if states.is_empty() {
        return Err(SubjectError::NotRunning(subject.controller));
    }
    let collector = frame.stats(now).into_iter().find(|one| one.name == COLLECTOR);
    let collector_queue = collector.map(|one| one.stats.queue.depth);
    Ok(Investigation { subject, key, states, lease: None, collector_queue })
}

fn page(frame: &Frame, question: &DecisionQuery, now: Now) -> HttpAnswer {
    let Some(rest) = question.path.strip_prefix(CONTROLLERS) else {
        return HttpAnswer::not_found();
    };
    let query = Query::parse(&question.query);
    let (name, page) = rest.split_once('/').unwrap_or((rest, ""));
    let running =
        ControllerNames::find(name).filter(|one| frame.names().any(|name| name == one.name));
    let Some(controller) = running else {
        let running: Vec<_> = frame.names().collect();
        let text = format!("no controller {name:?} runs here; these do: {}\n", running.join(", "));
        return HttpAnswer::text(404, text);
    };
    if !page.is_empty() {
        let uids: Vec<_> = query.all("uid").collect();
        let found = frame.debug_page(controller.name, page, &uids);
        return found.map_or_else(HttpAnswer::not_found, |text| HttpAnswer::text(200, text));
    }
    counts(frame, controller.name, question.wants_json, now)
}

fn counts(frame: &Frame, name: &str, wants_json: bool, now: Now) -> HttpAnswer {
    let found = frame.stats(now).into_iter().find(|one| one.name == name);
    let Some(NamedStats { stats, .. }) = found else { return HttpAnswer::not_found() };
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

fn shown(wants_json: bool, json: serde_json::Value, text: String) -> HttpAnswer {
    if wants_json { HttpAnswer::json(&json) } else { HttpAnswer::text(200, text) }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use jiff::Timestamp;
    use pintle_controllers_loops::garbage_collector::GarbageCollector;
    use pintle_controllers_loops::ttl_after_finished::TtlAfterFinished;
    use tokio::sync::oneshot;

    use super::*;

    fn frame() -> (Frame, Now) {
        let mut frame = Frame::default();
        frame.add(TtlAfterFinished { workers: 1 });
        (frame, Now { instant: Instant::now(), wall: Timestamp::UNIX_EPOCH })
    }

    fn page_of(path: &str, wants_json: bool) -> (u16, String) {
        let (frame, now) = frame();
        ask(&frame, path, "", wants_json, now)
    }

    fn ask(frame: &Frame, path: &str, query: &str, wants_json: bool, now: Now) -> (u16, String) {
        let (answer, _) = oneshot::channel();
        let (path, query) = (path.to_owned(), query.to_owned());
        let page = page(frame, &DecisionQuery { path, query, wants_json, answer }, now);
        (page.status, String::from_utf8_lossy(&page.body).into_owned())
    }

    fn mistake(query: &str) -> String {
        let (mut frame, now) = frame();
        let investigation = investigation(&mut frame, &Query::parse(query), now);
        investigation.err().expect("it cannot be explained").to_string()
    }

    #[test]
    fn page_of_a_controller_has_its_counts() {
        for name in ["ttl-after-finished-controller", "ttl-after-finished"] {
            let (status, text) = page_of(&format!("/debug/controllers/{name}"), false);
            assert_eq!(status, 200);
            assert!(text.starts_with("ttl-after-finished-controller: 0 keys wait"), "{text}");
        }
        let (_, json) = page_of("/debug/controllers/ttl-after-finished", true);
        assert!(json.contains("\"waitedForOwnWrites\":0"), "{json}");
    }

    #[test]
    fn page_below_a_controller_is_served_by_that_controller() {
        let (mut frame, now) = frame();
        frame.add(GarbageCollector::new(1, Vec::new()));
        let synced = |page: &str| {
            let path = format!("/debug/controllers/garbage-collector-controller/{page}");
            ask(&frame, &path, "uid=a&uid=b", false, now)
        };
        let pages = ["synced", "nodes", "x"].map(synced);
        assert_eq!(pages[0], (200, "false\n".to_owned()));
        assert_eq!(pages[1], (200, "\n".to_owned()), "no node has these UIDs");
        assert_eq!(pages[2].0, 404);
        assert_eq!(page_of("/debug/controllers/ttl-after-finished/graph", false).0, 404);
    }

    #[test]
    fn controller_that_does_not_run_is_named_with_those_that_do() {
        let (status, text) = page_of("/debug/controllers/job-controller", false);
        assert_eq!(status, 404);
        assert!(text.contains("these do: ttl-after-finished-controller"), "{text}");
        assert_eq!(page_of("/pintle/other", false).0, 404);
    }

    #[test]
    fn explain_needs_an_object_whose_controller_runs() {
        let usage = "which object? ask for ?kind=KIND&namespace=NAMESPACE&name=NAME";
        assert_eq!(mistake("kind=deploy"), usage);
        assert!(mistake("kind=pod&name=a").contains("cannot be explained"));
        assert_eq!(mistake("kind=deploy&name=a"), "deployment-controller does not run here");
    }
}
