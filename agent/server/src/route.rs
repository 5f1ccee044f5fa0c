//! From method and path to a route. Pure.
//!
//! Every route of the HTTPS server and of the read-only port stands in `TABLE`, so that a test can
//! walk all of them. Debugging routes exist only with `enableDebuggingHandlers`.
// k8s: pkg/kubelet/server/server.go InstallAuthNotRequiredHandlers, InstallAuthRequiredHandlers

use hyper::Method;
use pintle_agent_config::KubeletConfiguration;

/// The route's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RouteKind {
    Healthz,
    Pods,
    RunningPods,
    Summary,
    Metrics,
    MetricsCadvisor,
    MetricsResource,
    MetricsProbes,
    MetricsSlis,
    Configz,
    Statusz,
    Flagz,
    ContainerLogs,
    Exec,
    Attach,
    PortForward,
    Run,
    Checkpoint,
    NodeLogs,
    Pprof,
    DebugFlags,
}

/// A route that was found, with the words of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MatchedRoute {
    pub(super) kind: RouteKind,
    pub(super) words: PathWords,
}

/// The variable parts of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathWords {
    pub(super) namespace: String,
    pub(super) pod: String,
    /// Empty unless the path has one.
    pub(super) uid: String,
    pub(super) container: String,
    /// The path after the fixed part, without the slash in front.
    pub(super) rest: String,
}

/// Reason why there is no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoute {
    /// No such path.
    NotFound,
    /// The path has other methods.
    Method,
    /// The configuration switches it off; with the kubelet's text.
    Off(&'static str),
}

/// The form of the variable part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathShape {
    /// Nothing follows.
    Exact,
    /// Anything may follow.
    Below,
    /// `namespace/pod/container`.
    Container,
    /// `namespace/pod/container` or `namespace/pod/uid/container`.
    ContainerUid,
    /// `namespace/pod` or `namespace/pod/uid`.
    PodUid,
}

/// One row: path, kind, shape, methods, whether it is a debugging route.
pub(super) struct RouteRow {
    pub(super) root: &'static str,
    kind: RouteKind,
    shape: PathShape,
    pub(super) methods: &'static [Method],
    pub(super) debug: bool,
}

const GET: &[Method] = &[Method::GET];
const POST: &[Method] = &[Method::POST];
const BOTH: &[Method] = &[Method::GET, Method::POST];
const PUT: &[Method] = &[Method::PUT];

const fn row(
    root: &'static str,
    kind: RouteKind,
    shape: PathShape,
    methods: &'static [Method],
    debug: bool,
) -> RouteRow {
    RouteRow { root, kind, shape, methods, debug }
}

/// All routes; the longer of two paths stands first.
pub(super) const TABLE: &[RouteRow] = &[
    row("/healthz", RouteKind::Healthz, PathShape::Below, GET, false),
    row("/pods", RouteKind::Pods, PathShape::Exact, GET, false),
    row("/stats/summary", RouteKind::Summary, PathShape::Exact, BOTH, false),
    row("/metrics/cadvisor", RouteKind::MetricsCadvisor, PathShape::Exact, GET, false),
    row("/metrics/resource", RouteKind::MetricsResource, PathShape::Exact, GET, false),
    row("/metrics/probes", RouteKind::MetricsProbes, PathShape::Exact, GET, false),
    row("/metrics/slis", RouteKind::MetricsSlis, PathShape::Exact, GET, false),
    row("/metrics", RouteKind::Metrics, PathShape::Exact, GET, false),
    row("/run", RouteKind::Run, PathShape::ContainerUid, POST, true),
    row("/exec", RouteKind::Exec, PathShape::ContainerUid, BOTH, true),
    row("/attach", RouteKind::Attach, PathShape::ContainerUid, BOTH, true),
    row("/portForward", RouteKind::PortForward, PathShape::PodUid, BOTH, true),
    row("/containerLogs", RouteKind::ContainerLogs, PathShape::Container, GET, true),
    row("/runningpods", RouteKind::RunningPods, PathShape::Exact, GET, true),
    row("/configz", RouteKind::Configz, PathShape::Exact, GET, true),
    row("/checkpoint", RouteKind::Checkpoint, PathShape::Container, POST, true),
    row("/logs", RouteKind::NodeLogs, PathShape::Below, GET, true),
    row("/debug/pprof", RouteKind::Pprof, PathShape::Below, GET, true),
    row("/debug/flags/v", RouteKind::DebugFlags, PathShape::Exact, PUT, true),
    row("/statusz", RouteKind::Statusz, PathShape::Exact, GET, true),
    row("/flagz", RouteKind::Flagz, PathShape::Exact, GET, true),
];
/// Paths with a message of their own when debugging is off; the other debugging routes are unknown
/// then.
// k8s: pkg/kubelet/server/server.go InstallDebuggingDisabledHandlers
const SAID_DISABLED: [&str; 8] = [
    "/run",
    "/exec",
    "/attach",
    "/portForward",
    "/containerLogs",
    "/runningpods",
    "/debug/pprof",
    "/logs",
];
const DISABLED: &str = "Debug endpoints are disabled.";

/// Finds the route. `path` is decoded.
pub(super) fn find(
    method: &Method,
    path: &str,
    config: &KubeletConfiguration,
) -> Result<MatchedRoute, NoRoute> {
    let hit = TABLE.iter().find_map(|row| Some((row, below(path, row.root)?)));
    let (row, rest) = hit.ok_or(NoRoute::NotFound)?;
    if row.debug && !config.enable_debugging_handlers {
        let said = SAID_DISABLED.contains(&row.root);
        return Err(if said { NoRoute::Off(DISABLED) } else { NoRoute::NotFound });
    }
    let off = match row.kind {
        RouteKind::NodeLogs if !config.enable_system_log_handler => {
            Some("logs endpoint is disabled.")
        }
        RouteKind::Pprof if !config.enable_profiling_handler => {
            Some("profiling endpoint is disabled.")
        }
        RouteKind::DebugFlags if !config.enable_debug_flags_handler => {
            Some("flags endpoint is disabled.")
        }
        _ => None,
    };
    if let Some(said) = off {
        return Err(NoRoute::Off(said));
    }
    let words = words(row.shape, rest).ok_or(NoRoute::NotFound)?;
    if !row.methods.contains(method) {
        return Err(NoRoute::Method);
    }
    Ok(MatchedRoute { kind: row.kind, words })
}

/// The part of `path` below `root`, without the slash between them.
fn below<'a>(path: &'a str, root: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(root)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

fn words(shape: PathShape, rest: &str) -> Option<PathWords> {
    if shape == PathShape::Below {
        return Some(PathWords { rest: rest.to_owned(), ..PathWords::default() });
    }
    let parts: Vec<&str> = rest.trim_end_matches('/').split('/').collect();
    let (namespace, pod, uid, container) = match (shape, parts.as_slice()) {
        (PathShape::Exact, [""]) => return Some(PathWords::default()),
        (PathShape::Container | PathShape::ContainerUid, &[namespace, pod, container]) => {
            (namespace, pod, "", container)
        }
        (PathShape::ContainerUid, &[namespace, pod, uid, container]) => {
            (namespace, pod, uid, container)
        }
        (PathShape::PodUid, &[namespace, pod]) => (namespace, pod, "", ""),
        (PathShape::PodUid, &[namespace, pod, uid]) => (namespace, pod, uid, ""),
        _ => return None,
    };
    if parts.contains(&"") {
        return None;
    }
    Some(PathWords {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        uid: uid.to_owned(),
        container: container.to_owned(),
        rest: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(method: &Method, path: &str) -> Result<RouteKind, NoRoute> {
        find(method, path, &KubeletConfiguration::default()).map(|found| found.kind)
    }

    #[test]
    fn every_route_is_found_by_its_path() {
        let (get, post) = (Method::GET, Method::POST);
        for (method, path, expected) in [
            (&get, "/healthz", Ok(RouteKind::Healthz)),
            (&get, "/healthz/syncloop", Ok(RouteKind::Healthz)),
            (&get, "/pods", Ok(RouteKind::Pods)),
            (&get, "/pods/", Ok(RouteKind::Pods)),
            (&get, "/podsx", Err(NoRoute::NotFound)),
            (&post, "/pods", Err(NoRoute::Method)),
            (&get, "/runningpods/", Ok(RouteKind::RunningPods)),
            (&post, "/stats/summary", Ok(RouteKind::Summary)),
            (&get, "/stats/container", Err(NoRoute::NotFound)),
            (&get, "/metrics", Ok(RouteKind::Metrics)),
            (&get, "/metrics/cadvisor", Ok(RouteKind::MetricsCadvisor)),
            (&get, "/metrics/nope", Err(NoRoute::NotFound)),
            (&get, "/containerLogs/ns/p/c", Ok(RouteKind::ContainerLogs)),
            (&get, "/containerLogs/ns/p", Err(NoRoute::NotFound)),
            (&get, "/containerLogs/ns//c", Err(NoRoute::NotFound)),
            (&post, "/exec/ns/p/c", Ok(RouteKind::Exec)),
            (&post, "/run/ns/p/c", Ok(RouteKind::Run)),
            (&get, "/run/ns/p/c", Err(NoRoute::Method)),
            (&post, "/portForward/ns/p", Ok(RouteKind::PortForward)),
            (&get, "/logs/", Ok(RouteKind::NodeLogs)),
            (&get, "/logs/a/b", Ok(RouteKind::NodeLogs)),
            (&get, "/", Err(NoRoute::NotFound)),
            (&get, "/stats/../exec/ns/p/c", Err(NoRoute::NotFound)),
        ] {
            assert_eq!(kind(method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn path_segments_are_parsed_into_uid_container_and_rest() {
        let find = |path| {
            find(&Method::GET, path, &KubeletConfiguration::default()).expect("a route").words
        };
        let short = find("/exec/ns/p/c");
        assert_eq!((short.uid.as_str(), short.container.as_str()), ("", "c"));
        let long = find("/exec/ns/p/u/c");
        assert_eq!((long.uid.as_str(), long.container.as_str()), ("u", "c"));
        assert_eq!(find("/portForward/ns/p/u").uid, "u");
        assert_eq!(find("/logs/a/b").rest, "a/b");
    }

    #[test]
    fn debugging_routes_are_disabled_or_not_found_without_debugging_handlers() {
        let config =
            KubeletConfiguration { enable_debugging_handlers: false, ..Default::default() };
        for row in TABLE {
            let found = find(&row.methods[0], row.root, &config);
            let off = Err(NoRoute::Off(DISABLED));
            match row.root {
                root if SAID_DISABLED.contains(&root) => assert_eq!(found, off, "{root}"),
                root if row.debug => assert_eq!(found, Err(NoRoute::NotFound), "{root}"),
                root => assert!(found.is_ok(), "{root}"),
            }
        }
    }

    #[test]
    fn single_handlers_can_be_switched_off() {
        let config = KubeletConfiguration {
            enable_system_log_handler: false,
            enable_profiling_handler: false,
            enable_debug_flags_handler: false,
            ..Default::default()
        };
        for (method, path, said) in [
            (Method::GET, "/logs/x", "logs endpoint is disabled."),
            (Method::GET, "/debug/pprof/heap", "profiling endpoint is disabled."),
            (Method::PUT, "/debug/flags/v", "flags endpoint is disabled."),
        ] {
            assert_eq!(find(&method, path, &config), Err(NoRoute::Off(said)), "{path}");
        }
    }
}
