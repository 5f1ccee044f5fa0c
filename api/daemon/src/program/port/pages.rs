//! The pages of a component: those that all have, and its own.
//!
//! Input: requests that may be admitted. Output: answers. A component brings its checks, its
//! configuration and [`ComponentPages`]; everything else is the same for all.
// k8s: cmd/kube-scheduler/app/server.go newEndpointsHandler; staging/src/k8s.io/controller-manager/
// app/serve.go NewBaseHandler

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Method, Request};
use jiff::Timestamp;
use pintle_api_types::float::go_float;
use serde_json::Value;

use crate::serve::answer::HttpAnswer;
use crate::serve::body::Reply;
use crate::serve::checks::Checks;
use crate::serve::connections::Busy;
use crate::serve::https::{Handler, Peer};
use crate::serve::query::{Query, decode_path};
use crate::serve::secure::{AccessGate, Denial, RequiredRights, ReviewedObject};
use crate::serve::zpages::{self, Encodings, Flagz, Statusz};

/// Pages of only one component.
pub trait ComponentPages: Send + Sync + 'static {
    /// The exposition of all metrics.
    fn metrics(&self) -> String;

    /// Answers a path that no other component has; `None` for a path that this one has neither.
    fn answer<'a>(&'a self, head: &'a Parts, path: &'a str) -> BoxFuture<'a, Option<Reply>>;
}

/// The pages of a component.
pub struct Pages {
    /// Its name.
    pub component: &'static str,
    /// Paths that `/statusz` names: those of upstream's component, which does not name itself.
    pub paths: &'static [&'static str],
    /// The checks of `/healthz`, `/livez`, `/readyz`.
    pub checks: [Checks; 3],
    /// The name in `/configz`, and the configuration below it.
    pub configuration: (&'static str, Value),
    /// The flags as `/flagz` shows them.
    pub flags: BTreeMap<&'static str, String>,
    /// Encodings of `/statusz` and `/flagz`.
    pub encodings: Encodings,
    /// When the process started.
    pub started: Timestamp,
    /// The component's own pages.
    pub own: Arc<dyn ComponentPages>,
}

/// Pages behind authentication and authorization.
pub(super) struct Guarded {
    gate: AccessGate,
    open_paths: Vec<String>,
    pages: Pages,
}

impl Handler for Guarded {
    fn name(&self, peer: &Peer) -> Option<String> {
        self.gate.name(peer)
    }

    fn reply(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Arc<Peer>,
        busy: Arc<Busy>,
    ) -> BoxFuture<'static, Reply> {
        Box::pin(async move { self.reply_to(request, &peer, &busy).await })
    }

    fn on_limit_reached(&self) {
        tracing::debug!("a connection was refused at the limit");
    }
}

impl Guarded {
    pub(super) fn new(gate: AccessGate, open_paths: Vec<String>, pages: Pages) -> Self {
        Self { gate, open_paths, pages }
    }

    async fn reply_to(&self, request: Request<Incoming>, peer: &Peer, busy: &Busy) -> Reply {
        let (head, _) = request.into_parts();
        let Some(path) = decode_path(head.uri.path()) else {
            return HttpAnswer::text(400, "400 Bad Request: the path cannot be decoded\n").into();
        };
        if self.is_open(&path) {
            busy.open();
            return self.pages.answer(&head, &path).await;
        }
        let verb = match head.method {
            Method::GET => "get",
            Method::HEAD => "head",
            Method::POST => "post",
            Method::PUT => "put",
            Method::DELETE => "delete",
            _ => "",
        };
        let wanted = RequiredRights { verb, objects: vec![ReviewedObject::Path(path.clone())] };
        match self.gate.admit(&head, &path, &wanted, peer).await {
            Err(denial) => denied(denial, &wanted, &path).into(),
            Ok(user) => {
                busy.admit(user.proven_name());
                self.pages.answer(&head, &path).await
            }
        }
    }

    /// True if the path is served without authorization.
    // k8s: staging/src/k8s.io/apiserver/pkg/authorization/path/path.go
    fn is_open(&self, path: &str) -> bool {
        self.open_paths.iter().any(|open| match open.strip_suffix('*') {
            Some(begin) => path.starts_with(begin),
            None => path == open,
        })
    }
}

impl Pages {
    async fn answer(&self, head: &Parts, path: &str) -> Reply {
        if let Some(reply) = self.own.answer(head, path).await {
            return reply;
        }
        self.common(head, path).into()
    }

    fn common(&self, head: &Parts, path: &str) -> HttpAnswer {
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return HttpAnswer::not_allowed();
        }
        let query = Query::parse(head.uri.query().unwrap_or_default());
        if let Some(answer) = self.checks.iter().find_map(|check| check.answer(path, &query)) {
            return answer;
        }
        let accept = head.headers.get(hyper::header::ACCEPT).and_then(|value| value.to_str().ok());
        match path {
            "/metrics" => HttpAnswer::metrics(self.own.metrics()),
            "/metrics/slis" => {
                let all: Vec<&Checks> = self.checks.iter().collect();
                HttpAnswer::metrics(Checks::slis(&all) + &self.start_time())
            }
            "/configz" => {
                let (name, configuration) = &self.configuration;
                HttpAnswer::json(&serde_json::json!({ *name: configuration }))
            }
            "/flagz" => {
                let (component, flags) = (self.component, self.flags.clone());
                Flagz { component, flags }.answer(accept, self.encodings)
            }
            "/statusz" => self.statusz().answer(accept, self.encodings),
            _ => HttpAnswer::not_found(),
        }
    }

    /// The one family that every registry of upstream's has.
    // k8s: staging/src/k8s.io/component-base/metrics/processstarttime.go
    fn start_time(&self) -> String {
        let name = "process_start_time_seconds";
        let began = go_float(self.started.as_millisecond() as f64 / 1e3);
        format!(
            "# HELP {name} [ALPHA] Start time of the process since unix epoch in seconds.\n\
             # TYPE {name} gauge\n{name} {began}\n"
        )
    }

    fn statusz(&self) -> Statusz {
        let started = self.started;
        let uptime = Timestamp::now().as_second().saturating_sub(started.as_second());
        let version = pintle_config::help::KUBERNETES_VERSION.trim_start_matches('v');
        let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
        Statusz {
            component: self.component,
            start_time: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            uptime_seconds: uptime.max(0),
            go_version: "rustc".to_owned(),
            binary_version: version.to_owned(),
            emulation_version: minor.to_owned(),
            paths: zpages::folders(self.paths.iter().copied()),
            started: started.strftime("%a %b %e %H:%M:%S UTC %Y").to_string(),
        }
    }
}

/// A denial as the API server's filters answer it.
// k8s: staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go
pub fn denied(denial: Denial, wanted: &RequiredRights, path: &str) -> HttpAnswer {
    match denial {
        Denial::Unauthenticated => failure(401, "Unauthorized", "Unauthorized", ""),
        Denial::Busy => HttpAnswer::text(429, "too many requests wait for a review, try again\n"),
        Denial::Forbidden { user } => {
            let text = format!("User {user:?} cannot {} path {path:?}", wanted.verb);
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            failure(403, "Forbidden", &format!("forbidden: {text}"), r#""details":{},"#)
        }
        Denial::Undecided { .. } => {
            HttpAnswer::text(500, "Internal Server Error: the API server cannot be asked\n")
        }
    }
}

/// A Status, as Go writes it: with HTML's characters escaped.
fn failure(code: u16, reason: &str, message: &str, details: &str) -> HttpAnswer {
    let message = Value::from(message).to_string().replace('&', "\\u0026");
    let text = format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":{message},"#
    );
    let text = format!("{text}\"reason\":\"{reason}\",{details}\"code\":{code}}}\n");
    HttpAnswer { status: code, ..HttpAnswer::json_bytes(text.into_bytes()) }
}
