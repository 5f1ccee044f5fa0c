//! The HTTPS server's requests: gate, route, answer.
//!
//! Input: a request and its peer. Output: an answer, or a stream that goes on by itself. Owner: the
//! server's thread, with a connection to the runtime of its own, so that nothing here waits for the
//! main thread. Bounds: those of `open` for logs, execs, attaches and port-forwards.
// k8s: pkg/kubelet/server/server.go

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use hyper::Request;
use hyper::body::Incoming;
use pintle_agent_metrics::{Metrics, UnderWay};
use pintle_cri::Client;
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::body::{self, Reply};
use pintle_daemon::serve::connections::Busy;
use pintle_daemon::serve::https::{Handler, Peer};
use pintle_daemon::serve::listen::RouteRequest;
use pintle_daemon::serve::query::{Query, decode_path};
use pintle_daemon::serve::secure::{AccessGate, strip_credentials};

use super::logs::{Watches, container_logs};
use super::open::{self, OpenStream};
use super::renderings::Renderings;
use super::route::{MatchedRoute, NoRoute, RouteKind, find};
use super::stats::NodeStats;
use super::stream::StreamCaller;
use super::{ServerParts, access, node_logs, pages, pod_list, routes, run, stream};
use crate::Views;

/// The server's connection to the runtime, and statistics that are read through it.
pub(super) type Runtime = (Client, Arc<NodeStats>);

impl Handler for Api {
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
        self.metrics().limit_hit("server connections");
    }
}

/// A place among the streams, held as long as one lasts.
#[derive(Debug)]
pub(super) struct StreamTurn {
    place: open::OpenTurn,
    _under_way: UnderWay,
}

/// The end of a stream that held a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldTurn {
    /// It ended by itself.
    ToItsEnd,
    /// It was displaced by another namespace's stream.
    Displaced,
}

impl StreamTurn {
    /// Runs a stream to its end, or until it has to make room; then it is dropped, and with it its
    /// connections are closed.
    pub(super) async fn hold(self, stream: impl Future<Output = ()>) -> HeldTurn {
        tokio::select! {
            () = stream => HeldTurn::ToItsEnd,
            () = self.place.displaced() => {
                tracing::debug!("a stream made room for another namespace's");
                HeldTurn::Displaced
            }
        }
    }
}

/// State from which requests are answered.
pub(super) struct Api {
    parts: Arc<ServerParts>,
    node: Arc<str>,
    gate: AccessGate,
    runtime: Client,
    watches: Watches,
    stats: Arc<NodeStats>,
    pages: Renderings,
}

impl Api {
    /// Needs the server's runtime: it starts the watches of logs.
    pub(super) fn new(
        parts: Arc<ServerParts>,
        gate: AccessGate,
        (runtime, stats): Runtime,
    ) -> Self {
        Self {
            node: parts.config.node_name.as_str().into(),
            parts,
            gate,
            runtime,
            watches: Watches::start(),
            stats,
            pages: Renderings::default(),
        }
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.parts.metrics
    }

    pub(super) fn parts(&self) -> &ServerParts {
        &self.parts
    }

    pub(super) fn views(&self) -> &Views {
        &self.parts.views
    }

    pub(super) fn runtime(&self) -> &Client {
        &self.runtime
    }

    async fn reply_to(&self, request: Request<Incoming>, peer: &Peer, busy: &Busy) -> Reply {
        let (mut head, body) = request.into_parts();
        let Some(path) = decode_path(head.uri.path()) else {
            return HttpAnswer::text(400, "400 Bad Request: the path cannot be decoded\n").into();
        };
        let method = head.method.clone();
        let under_way = self.metrics().http_request("readwrite", method.as_str(), &path);
        let wanted = access::wanted(method.as_str(), &path, &self.node);
        match self.gate.admit(&head, &path, &wanted, peer).await {
            Err(denial) => access::denied(denial, &wanted).into(),
            Ok(user) => {
                tracing::debug!(user = user.name, %method, path, "asked");
                busy.admit(user.proven_name());
                // The user is authenticated; no later code needs the credentials.
                strip_credentials(&mut head.headers);
                let request = Request::from_parts(head, body);
                self.routed(request, &path, peer, under_way).await
            }
        }
    }

    async fn routed(
        &self,
        request: Request<Incoming>,
        path: &str,
        peer: &Peer,
        under_way: UnderWay,
    ) -> Reply {
        let found = match find(request.method(), path, &self.parts.config.kubelet) {
            Ok(found) if !self.has(found.kind) => return HttpAnswer::not_found().into(),
            Ok(found) => found,
            Err(NoRoute::NotFound) => return HttpAnswer::not_found().into(),
            Err(NoRoute::Method) => return HttpAnswer::not_allowed().into(),
            Err(NoRoute::Off(said)) => return HttpAnswer::text(405, format!("{said}\n")).into(),
        };
        let query = request.uri().query().unwrap_or_default().to_owned();
        match found.kind {
            RouteKind::ContainerLogs => self.log(&found, &Query::parse(&query), peer, under_way),
            RouteKind::Exec | RouteKind::Attach | RouteKind::PortForward => {
                match self.turn(&found, peer, under_way) {
                    Ok(turn) => {
                        let caller = StreamCaller { turn, peer: peer.address.ip() };
                        stream::stream(self, &found, &Query::parse(&query), request, caller).await
                    }
                    Err(answer) => answer.into(),
                }
            }
            RouteKind::Run => match self.turn(&found, peer, under_way) {
                // The answer may be large, and its reader may take its time.
                Ok(turn) => {
                    let answer = run::run(self, &found.words, &Query::parse(&query)).await;
                    Reply::from(answer).map(|body| body::holding(body, turn))
                }
                Err(answer) => answer.into(),
            },
            RouteKind::Checkpoint => {
                run::checkpoint(self, &found.words, &Query::parse(&query)).await.into()
            }
            RouteKind::NodeLogs => {
                let config = &self.parts.config.kubelet;
                let (rest, query) = (&found.words.rest, Query::parse(&query));
                let turn = || self.turn(&found, peer, under_way);
                node_logs::answer(config, rest, &query, request.headers(), turn).await
            }
            kind => {
                let asked = RouteRequest { path: path.to_owned(), ..RouteRequest::of(&request) };
                self.page(kind, asked, &request).await.into()
            }
        }
    }

    /// True if a route is served: some are behind a gate.
    // k8s: pkg/kubelet/server/server.go InstallZPages, InstallAuthRequiredHandlers
    fn has(&self, kind: RouteKind) -> bool {
        let gate = match kind {
            RouteKind::Checkpoint => "ContainerCheckpoint",
            RouteKind::Statusz => "ComponentStatusz",
            RouteKind::Flagz => "ComponentFlagz",
            _ => return true,
        };
        self.parts.config.gates.enabled(gate)
    }

    fn log(&self, found: &MatchedRoute, query: &Query, peer: &Peer, under_way: UnderWay) -> Reply {
        match self.turn(found, peer, under_way) {
            Ok(turn) => container_logs(self.views(), &self.watches, &found.words, query, turn),
            Err(answer) => answer.into(),
        }
    }

    /// A place among the streams, or the refusal.
    fn turn(
        &self,
        found: &MatchedRoute,
        peer: &Peer,
        under_way: UnderWay,
    ) -> Result<StreamTurn, HttpAnswer> {
        let what = match found.kind {
            RouteKind::Exec => "ExecStream",
            RouteKind::Attach => "AttachStream",
            RouteKind::PortForward => "PortForwardStream",
            RouteKind::Run => open::RUN,
            _ => "LogStream",
        };
        let words = &found.words;
        let pod = (words.namespace.clone(), words.pod.clone());
        let container = words.container.clone();
        let peer = peer.connection.peer();
        let stream = OpenStream { what, pod, container, peer, since: Instant::now() };
        let limit_hit = || self.metrics().limit_hit("server streams");
        let (place, is_displacing) = self.parts.streams.enter(stream).map_err(|full| {
            limit_hit();
            HttpAnswer::text(429, format!("{full}\n"))
        })?;
        if is_displacing {
            limit_hit();
        }
        Ok(StreamTurn { place, _under_way: under_way })
    }

    /// Answers routes whose answer is complete at once.
    async fn page(
        &self,
        kind: RouteKind,
        asked: RouteRequest,
        request: &Request<Incoming>,
    ) -> HttpAnswer {
        let parts = &*self.parts;
        if let Some(page) =
            routes::open_page(parts, Some(&self.stats), &self.pages, kind, &asked).await
        {
            return page;
        }
        match kind {
            RouteKind::RunningPods => {
                HttpAnswer::json_bytes(pod_list::running_pods(&parts.views.load()))
            }
            RouteKind::Configz => pages::configz(parts),
            RouteKind::Statusz => pages::statusz(parts, request.headers()),
            RouteKind::Flagz => pages::flagz(parts, request.headers()),
            RouteKind::Pprof => HttpAnswer::text(405, pages::NO_PPROF),
            RouteKind::DebugFlags => HttpAnswer::text(405, pages::NO_DEBUG_FLAGS),
            // The kinds that `routed` answers.
            _ => HttpAnswer::not_found(),
        }
    }
}
