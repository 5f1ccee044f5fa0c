//! Port 10250 and the cluster's RBAC rules: authorization of each route.

use std::collections::BTreeSet;

use anyhow::ensure;
use hyper::Method;
use pintle_testbed::cluster::TestCluster;
use pintle_testbed::cluster::port::Who;
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

/// Every route: a path of it, its methods, and the subresources of which each alone opens it.
// k8s: pkg/kubelet/server/auth.go GetRequestAttributes
const ROUTES: [(&str, &str, &[&str]); 27] = [
    ("GET", "/healthz", &["healthz", "proxy"]),
    ("GET", "/healthz/syncloop", &["healthz", "proxy"]),
    ("GET", "/pods", &["pods", "proxy"]),
    ("GET", "/runningpods/", &["pods", "proxy"]),
    ("GET", "/configz", &["configz", "proxy"]),
    ("GET", "/stats/summary", &["stats"]),
    ("POST", "/stats/summary", &["stats"]),
    ("GET", "/metrics", &["metrics"]),
    ("GET", "/metrics/cadvisor", &["metrics"]),
    ("GET", "/metrics/resource", &["metrics"]),
    ("GET", "/metrics/probes", &["metrics"]),
    ("GET", "/metrics/slis", &["metrics"]),
    ("GET", "/logs/", &["log"]),
    ("POST", "/checkpoint/default/none/c", &["checkpoint"]),
    ("GET", "/statusz", &["statusz"]),
    ("GET", "/flagz", &["configz"]),
    ("POST", "/run/default/none/c?cmd=true", &["proxy"]),
    ("GET", "/exec/default/none/c?command=true&output=1", &["proxy"]),
    ("POST", "/exec/default/none/c?command=true&output=1", &["proxy"]),
    ("GET", "/attach/default/none/c?output=1", &["proxy"]),
    ("POST", "/attach/default/none/c?output=1", &["proxy"]),
    ("GET", "/portForward/default/none", &["proxy"]),
    ("POST", "/portForward/default/none", &["proxy"]),
    ("GET", "/containerLogs/default/none/c", &["proxy"]),
    ("GET", "/debug/pprof/heap", &["proxy"]),
    ("PUT", "/debug/flags/v", &["proxy"]),
    ("GET", "/unknown", &["proxy"]),
];

/// A service account that may do this with the nodes' subresource; with none, nothing.
fn account(test: &TestCluster, subresource: &str) -> Who {
    let name = format!("asks-{subresource}");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{
            "apiGroups": [""],
            "resources": [format!("nodes/{subresource}")],
            "verbs": ["get", "create", "update"],
        }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name,
        },
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    });
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name},
    });
    let mut items: Vec<Value> = vec![account];
    if subresource != "nothing" {
        items.extend([role, binding]);
    }
    test.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}));
    let token = test.kubectl(&["create", "token", &name]).expect("a token");
    Who::Token(token.trim().to_owned())
}

fn paths() -> Vec<(Method, String)> {
    let method = |text: &str| Method::from_bytes(text.as_bytes()).expect("a method");
    ROUTES.iter().map(|(m, path, _)| (method(m), (*path).to_owned())).collect()
}

#[test]
fn every_route_requires_the_rbac_permission_for_its_subresource() {
    let test = TestCluster::take();
    let ask = |who: &Who| test.ask_port(who, &paths()).expect("answers");
    for who in [Who::Nobody, Who::Token("made-up".to_owned())] {
        for (answer, (method, path, _)) in ask(&who).iter().zip(ROUTES) {
            assert_eq!(answer.status, 401, "{who:?} {method} {path}: {}", answer.body);
        }
    }
    for (answer, (method, path, _)) in ask(&Who::User("admin")).iter().zip(ROUTES) {
        assert!(![401, 403].contains(&answer.status), "{method} {path}: {answer:?}");
    }
    let all: BTreeSet<&str> =
        ROUTES.iter().flat_map(|(_, _, subresources)| *subresources).copied().collect();
    for subresource in all.into_iter().chain(["nothing"]) {
        let who = account(&test, subresource);
        let opened = |(_, _, some): &(&str, &str, &[&str])| some.contains(&subresource);
        // The API server's own view of a new rule may lag, and a "no" is remembered for a while.
        until(LONG, &format!("the rights of nodes/{subresource} are in force"), || {
            for (answer, route) in ask(&who).iter().zip(&ROUTES) {
                let is_undecided = answer.body.starts_with("Authorization error");
                let is_open = ![401, 403].contains(&answer.status) && !is_undecided;
                ensure!(is_open == opened(route), "nodes/{subresource} {route:?}: {answer:?}");
            }
            Ok(())
        });
        for (answer, (method, path, some)) in ask(&who).iter().zip(ROUTES) {
            if !some.contains(&subresource) {
                assert_eq!(answer.status, 403, "{method} {path}: {answer:?}");
                let wanted = format!("subresource(s)=[{}]", some.join(" "));
                assert!(answer.body.contains(&wanted), "{method} {path}: {}", answer.body);
            }
        }
    }
}
