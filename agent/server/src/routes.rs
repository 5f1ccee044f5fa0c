//! Routes of the health check and of the read-only port.
//!
//! Input: a path. Output: an `HttpAnswer` made from the latest snapshot. No authentication, as for
//! the kubelet's ports of the same names; nothing here shows more than `/pods` does.
// k8s: pkg/kubelet/server/server.go InstallAuthNotRequiredHandlers, InstallDefaultHandlers

use std::sync::Arc;

use hyper::Method;
use pintle_agent_config::KubeletConfiguration;
use pintle_agent_metrics::Scrape;
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::checks::Checks;
use pintle_daemon::serve::listen::{RouteRequest, Service};
use pintle_daemon::serve::query::{Query, decode_path};

use crate::renderings::{PageKey, Renderings};
use crate::route::{NoRoute, RouteKind};
use crate::stats::NodeStats;
use crate::{HealthState, ServerParts, route};

/// The health check's routes.
pub(super) fn healthz(parts: Arc<ServerParts>) -> Service {
    service(parts, |parts, request| {
        health(&parts.health, request).unwrap_or_else(HttpAnswer::not_found)
    })
}

/// The read-only port's routes: those of the HTTPS port that are there without debugging.
// k8s: pkg/kubelet/server/server.go ListenAndServeKubeletReadOnlyServer
pub(super) fn read_only(parts: Arc<ServerParts>, stats: Option<Arc<NodeStats>>) -> Service {
    let config = KubeletConfiguration {
        enable_debugging_handlers: false,
        ..KubeletConfiguration::default()
    };
    let (config, pages) = (Arc::new(config), Arc::new(Renderings::default()));
    Arc::new(move |request| {
        let (parts, stats, config) = (Arc::clone(&parts), stats.clone(), Arc::clone(&config));
        let pages = Arc::clone(&pages);
        Box::pin(async move {
            let _under_way = parts.metrics.http_request("readonly", "GET", &request.path);
            let Some(path) = decode_path(&request.path) else {
                return HttpAnswer::text(400, "400 Bad Request: the path cannot be decoded\n");
            };
            match route::find(&Method::GET, &path, &config) {
                Ok(found) => open_page(&parts, stats.as_deref(), &pages, found.kind, &request)
                    .await
                    .unwrap_or_else(HttpAnswer::not_found),
                Err(NoRoute::NotFound) => HttpAnswer::not_found(),
                Err(NoRoute::Method) => HttpAnswer::not_allowed(),
                Err(NoRoute::Off(message)) => HttpAnswer::text(405, format!("{message}\n")),
            }
        })
    })
}

/// Pages that need no rights on the read-only port; `None` for other kinds.
// k8s: pkg/kubelet/server/server.go InstallAuthNotRequiredHandlers
pub(super) async fn open_page(
    parts: &ServerParts,
    stats: Option<&NodeStats>,
    pages: &Renderings,
    kind: RouteKind,
    request: &RouteRequest,
) -> Option<HttpAnswer> {
    let is_zipped = matches!(
        kind,
        RouteKind::Metrics
            | RouteKind::MetricsProbes
            | RouteKind::MetricsSlis
            | RouteKind::MetricsResource
            | RouteKind::MetricsCadvisor
    );
    let short = kind == RouteKind::Summary
        && Query::parse(&request.query).first("only_cpu_and_memory") == Some("true");
    let key = PageKey { kind, short, gzip: is_zipped && request.takes_gzip };
    match kind {
        RouteKind::Healthz => health(&parts.health, request),
        RouteKind::Pods => {
            let snapshot = parts.views.load();
            let list = async { Some(HttpAnswer::json_bytes(pages.pods.pods(&snapshot))) };
            pages.page(key, Some(&snapshot), list).await
        }
        _ => pages.page(key, None, rendered(parts, stats, key)).await,
    }
}

async fn rendered(
    parts: &ServerParts,
    stats: Option<&NodeStats>,
    key: PageKey,
) -> Option<HttpAnswer> {
    Some(match key.kind {
        RouteKind::Metrics => {
            let mut text = metrics(parts);
            if let Some(stats) = stats {
                text.push_str(&stats.logs(&parts.views.load()).await);
                text.push_str(&stats.claims(&parts.views.load()).await);
            }
            HttpAnswer::metrics(text)
        }
        RouteKind::MetricsProbes => {
            HttpAnswer::metrics(parts.metrics.render_probes(&parts.views.load()))
        }
        RouteKind::MetricsSlis => HttpAnswer::metrics(
            Checks::slis(&[parts.health.checks()]) + &parts.metrics.render_start(),
        ),
        RouteKind::Summary => stats?.summary(key.short).await,
        RouteKind::MetricsResource => stats?.resource().await,
        RouteKind::MetricsCadvisor => stats?.cadvisor().await,
        _ => return None,
    })
}

fn service(
    parts: Arc<ServerParts>,
    route: fn(&ServerParts, &RouteRequest) -> HttpAnswer,
) -> Service {
    Arc::new(move |request| {
        let answer = route(&parts, &request);
        Box::pin(std::future::ready(answer))
    })
}

fn metrics(parts: &ServerParts) -> String {
    let (events, snapshot) = ((parts.events)(), parts.views.load());
    parts.metrics.render(&Scrape {
        snapshot: &snapshot,
        has_api: parts.api.is_some(),
        event_source: events.mode,
        events_dropped: events.dropped,
        timeline_dropped: parts.recorder.overflowed(),
        calls_in_flight: (parts.calls)().len(),
    })
}

/// Answers a path below `/healthz`.
pub(super) fn health(health: &HealthState, request: &RouteRequest) -> Option<HttpAnswer> {
    health.checks().answer(&request.path, &Query::parse(&request.query))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_paths_are_not_health_checks() {
        let request = RouteRequest { path: "/healthz/other".to_owned(), ..RouteRequest::default() };
        let healthy = HealthState::new(std::time::Duration::from_secs(60));
        assert_eq!(health(&healthy, &request), None);
    }
}
