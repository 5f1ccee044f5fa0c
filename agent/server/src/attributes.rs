//! The permission that a request to the node needs, in the terms of an access review. Pure.
//!
//! Input: method and path. Output: the verb and the subresources of `nodes/NAME`, most specific
//! first; one of them is enough.
// k8s: pkg/kubelet/server/auth.go GetRequestAttributes

/// Most subresources that one path has.
pub(crate) const SUBRESOURCES_MAX: usize = 2;

/// The needed permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NeededRights {
    /// `get`, `create`, …; empty for methods without a verb, which no rule allows.
    pub(crate) verb: &'static str,
    /// Subresources of the node; one that is allowed is enough.
    pub(crate) subresources: Vec<&'static str>,
}

/// Paths of more than one subresource: the fine-grained one, then the older one.
const FINE: [(&str, &str); 4] =
    [("/pods", "pods"), ("/healthz", "healthz"), ("/configz", "configz"), ("/runningpods", "pods")];
/// Paths of one subresource; every other path is `proxy`.
const COARSE: [(&str, &str); 6] = [
    ("/stats", "stats"),
    ("/metrics", "metrics"),
    ("/logs", "log"),
    ("/checkpoint", "checkpoint"),
    ("/statusz", "statusz"),
    ("/flagz", "configz"),
];

/// The attributes of a request.
pub(crate) fn attributes(method: &str, path: &str) -> NeededRights {
    let verb = match method {
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    };
    let of = |table: &[(&str, &'static str)]| {
        table.iter().find(|(root, _)| is_below(path, root)).map(|(_, subresource)| *subresource)
    };
    let mut subresources = Vec::with_capacity(SUBRESOURCES_MAX);
    subresources.extend(of(&FINE));
    subresources.push(of(&COARSE).unwrap_or("proxy"));
    NeededRights { verb, subresources }
}

/// The path itself, or a path below it.
fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_the_kubelets_subresources() {
        let table: &[(&str, &[&str])] = &[
            ("/pods", &["pods", "proxy"]),
            ("/pods/", &["pods", "proxy"]),
            ("/podsx", &["proxy"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/runningpods", &["pods", "proxy"]),
            ("/healthz", &["healthz", "proxy"]),
            ("/healthz/syncloop", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/stats/summary", &["stats"]),
            ("/metrics", &["metrics"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("/metricsz", &["proxy"]),
            ("/logs/", &["log"]),
            ("/logs/messages", &["log"]),
            ("/checkpoint/ns/pod/c", &["checkpoint"]),
            ("/statusz", &["statusz"]),
            ("/flagz", &["configz"]),
            ("/exec/ns/pod/c", &["proxy"]),
            ("/attach/ns/pod/c", &["proxy"]),
            ("/portForward/ns/pod", &["proxy"]),
            ("/run/ns/pod/c", &["proxy"]),
            ("/containerLogs/ns/pod/c", &["proxy"]),
            ("/debug/pprof/", &["proxy"]),
            ("/", &["proxy"]),
            ("", &["proxy"]),
            ("/unknown", &["proxy"]),
        ];
        for (path, subresources) in table {
            assert_eq!(attributes("GET", path).subresources, *subresources, "{path}");
        }
    }

    #[test]
    fn http_methods_map_to_verbs_and_unmapped_methods_to_an_empty_verb() {
        let table = [
            ("GET", "get"),
            ("POST", "create"),
            ("PUT", "update"),
            ("PATCH", "patch"),
            ("DELETE", "delete"),
            ("HEAD", ""),
            ("OPTIONS", ""),
            ("get", ""),
        ];
        for (method, verb) in table {
            assert_eq!(attributes(method, "/pods").verb, verb, "{method}");
        }
    }
}
