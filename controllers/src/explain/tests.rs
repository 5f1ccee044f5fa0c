//! The command line, and a namespace that is explained without a manager.

use std::time::Instant;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::CONFIG_MAPS;
use pintle_api_types::request::Request;
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::tables::{DiscoveredKind, DiscoveredKinds};
use pintle_memory_http::SharedServer;
use serde_json::json;

use super::arguments::{ArgumentError, parse};
use super::{lists, report};
use crate::options::{self, ManagerAction};

const NAMESPACE: &str = "/api/v1/namespaces/a";

fn parsed(line: &str) -> Result<String, ArgumentError> {
    let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    Ok(match parse(&args)? {
        None => "help".to_owned(),
        Some(options) => format!(
            "{} {} {} {}{}{}",
            options.subject.kind.kind,
            options.name,
            options.namespace.unwrap_or_default(),
            options.server.unwrap_or_default(),
            if options.accepts_any_server { " any" } else { "" },
            if options.is_json { " json" } else { "" },
        ),
    })
}

#[test]
fn object_may_be_given_as_a_single_argument_or_as_two() {
    for (line, expected) in [
        ("deploy/web", Ok("Deployment web  ")),
        ("sts web -n a", Ok("StatefulSet web a ")),
        ("--namespace=a quota/q -o json", Ok("ResourceQuota q a  json")),
        (
            "ns/a --server https://h:10257 --insecure-skip-tls-verify",
            Ok("Namespace a  https://h:10257 any"),
        ),
        ("deploy/web --help", Ok("help")),
    ] {
        assert_eq!(parsed(line), expected.map(str::to_owned), "{line}");
    }
}

#[test]
fn wrong_argument_is_reported_in_one_sentence() {
    for (line, expected) in [
        ("", "explain needs one object, as KIND/NAME; --help shows how"),
        ("web", "explain needs one object, as KIND/NAME; --help shows how"),
        ("deploy/", "explain needs one object, as KIND/NAME; --help shows how"),
        ("deploy/web -n", "-n needs a value"),
        ("deploy/web --all", "explain has no flag --all; --help shows those that it has"),
        ("deploy/web -o yaml", "--output \"yaml\": use text or json"),
        (
            "deploy/web --insecure-skip-tls-verify",
            "--insecure-skip-tls-verify is for --server alone",
        ),
    ] {
        let error = parsed(line).expect_err(line).to_string();
        assert_eq!(error, expected, "{line}");
    }
    assert!(
        parsed("pod/a").expect_err("no controller").to_string().contains("cannot be explained")
    );
}

#[tokio::test]
async fn explain_of_a_terminating_namespace_plans_deletions_from_its_own_discovery() {
    let server = SharedServer::new(1);
    let client = server.client();
    server.put(NAMESPACE, json!({"spec": {"finalizers": ["kubernetes"]}}));
    server.put(&format!("{NAMESPACE}/configmaps/m"), json!({}));
    let verbs = ["delete", "deletecollection", "list", "watch"].map(Symbol::of).to_vec();
    let kinds = vec![DiscoveredKind { kind: CONFIG_MAPS, verbs, is_preferred: true }];
    let discovery =
        DiscoveredKinds { kinds, read_at: Some(Instant::now()), ..DiscoveredKinds::default() };
    server.delete(NAMESPACE);
    let Ok(ManagerAction::Run(defaults)) = options::parse(&[]) else { panic!("no defaults") };
    let controller = "namespace-controller";
    let mut frame = crate::registry::only(&[controller], &defaults).expect("a frame");
    lists::fill(&mut frame, &client, "a", discovery).await.expect("lists");
    let key = ObjectKey::new("", "a");
    let state = frame.key_state(controller, &key, lists::now()).expect("it is there");
    let findings = report(state, &|_: &str| client.clone()).await.findings;
    assert_eq!(findings.failure, None);
    let is_deletion = |write: &Request| matches!(write, Request::DeleteCollection { .. });
    assert!(findings.writes.iter().any(is_deletion), "{:?}", findings.writes);
}
