//! `containerLogs`: a container's log over HTTP, as `kubectl logs` asks for it.
//!
//! `options` and `choose` are pure: parameters, and the chosen container and attempt. `follow`
//! reads and writes, `watch` notifies it when a log changed. Bounds are in `follow`.

mod choose;
mod follow;
mod options;
mod watch;

use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::body::{self, Broken, Reply};
use pintle_daemon::serve::query::Query;

use super::api::{HeldTurn, StreamTurn};
use super::route::PathWords;
use super::select;
use crate::Views;
use options::Options;
pub(super) use watch::Watches;

/// Content type of the answer.
const TEXT: &str = "text/plain; charset=utf-8";

/// Answers a request for a log. `turn` is held for as long as the answer is written.
// k8s: pkg/kubelet/server/server.go getContainerLogs
pub(super) fn container_logs(
    views: &Views,
    watches: &Watches,
    words: &PathWords,
    query: &Query,
    turn: StreamTurn,
) -> Reply {
    let options = match Options::parse(query) {
        Ok(options) => options,
        Err(refusal) => return HttpAnswer::text(refusal.status, refusal.text).into(),
    };
    let snapshot = views.load();
    let Some(view) = select::by_name(&snapshot, &words.namespace, &words.pod) else {
        return HttpAnswer::text(404, format!("pod {:?} does not exist", words.pod)).into();
    };
    if !select::has_container(view, &words.container) {
        let (container, pod) = (&words.container, &words.pod);
        let text = format!("container {container:?} not found in pod {pod:?}");
        return HttpAnswer::text(404, text).into();
    }
    let chosen = match choose::container_id(&view.status, words, options.previous) {
        Ok(id) => id,
        Err(error) => return HttpAnswer::text(400, error.to_string()).into(),
    };
    let Some(path) = choose::log_path(view, &chosen) else {
        // The kubelet has already begun its answer here.
        return HttpAnswer::text(200, format!("unable to retrieve container logs for {chosen}"))
            .into();
    };
    let (sink, text) = body::streamed();
    let follow = follow::Follow {
        uid: select::uid(view).into(),
        path,
        query: options.query(jiff::Timestamp::now()),
        container: options.follow.then(|| choose::bare_id(&chosen).to_owned()),
        views: views.clone(),
        watches: watches.clone(),
    };
    pintle_daemon::tasks::serve("log stream", async move {
        if turn.hold(follow.run(&sink)).await == HeldTurn::Displaced {
            sink.break_off(Broken::Displaced);
        }
    });
    let mut response = Response::new(text);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    response
}
