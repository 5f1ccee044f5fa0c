//! The table of roles: what each identity may do, by examples.

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind;
use pintle_api_types::request::{DeleteOptions, Target};
use serde_json::json;

use super::*;

const DEPLOYMENT: Identity = Identity::Controller("deployment-controller");
const REPLICA_SET: Identity = Identity::Controller("replicaset-controller");

fn read(kind: Kind, name: &str) -> Request {
    let target = Target::object(kind, ObjectKey::new("a", name));
    Request::Read { target, only_metadata: false }
}

fn check(identity: &Identity, request: &Request) -> Result<(), ApiError> {
    Rights::upstream().check(identity, request)
}

#[test]
fn controller_may_read_kinds_named_in_its_role() {
    assert_eq!(check(&DEPLOYMENT, &read(kind::DEPLOYMENTS, "x")), Ok(()));
    assert_eq!(check(&Identity::Admin, &read(kind::SECRETS, "x")), Ok(()));
}

#[test]
fn request_outside_the_role_is_forbidden_in_the_servers_words() {
    let error = check(&REPLICA_SET, &read(kind::PODS, "x")).expect_err("may only list pods");
    assert_eq!(
        error.message,
        "pods \"x\" is forbidden: User \"system:serviceaccount:kube-system:replicaset-controller\" \
         cannot get resource \"pods\" in API group \"\" in the namespace \"a\""
    );
    assert!(error.is_forbidden());
}

#[test]
fn role_for_a_subresource_does_not_cover_the_object() {
    let key = ObjectKey::new("a", "x");
    let status = Target::status(kind::REPLICA_SETS, key.clone());
    let body = json!({});
    let replace = |target| Request::Replace { target, body: body.clone() };
    assert_eq!(check(&REPLICA_SET, &replace(status.clone())), Ok(()));
    let patch = Request::Patch {
        target: status,
        form: pintle_api_types::request::PatchForm::Merge,
        body: json!({}),
    };
    assert!(check(&REPLICA_SET, &patch).is_err(), "status may be replaced only");
    let namespaces = Target { kind: kind::NAMESPACES, key, sub: "finalize" };
    assert!(check(&REPLICA_SET, &replace(namespaces)).is_err());
}

#[test]
fn root_identity_lists_everything_and_gets_little() {
    let list = Request::List {
        kind: kind::PODS,
        namespace: String::new(),
        labels: String::new(),
        only_metadata: false,
    };
    assert_eq!(check(&Identity::Manager, &list), Ok(()));
    assert_eq!(check(&Identity::Manager, &read(kind::SECRETS, "x")), Ok(()));
    assert!(check(&Identity::Manager, &read(kind::PODS, "x")).is_err());
}

#[test]
fn rules_are_limited_by_their_names_and_namespaces() {
    let lease = |namespace: &str, name: &str| {
        let key = ObjectKey::new(namespace, name);
        Request::Replace { target: Target::object(kind::LEASES, key), body: json!({}) }
    };
    assert_eq!(check(&Identity::Manager, &lease("a", "kube-controller-manager")), Ok(()));
    assert!(check(&Identity::Manager, &lease("a", "other")).is_err());
    assert_eq!(check(&Identity::Manager, &lease("kube-system", "other")), Ok(()));
}

#[test]
fn garbage_collector_deletes_every_kind() {
    let target = Target::object(kind::CONFIG_MAPS, ObjectKey::new("a", "x"));
    let request = Request::Delete { target, options: DeleteOptions::default() };
    assert_eq!(check(&Identity::Controller("generic-garbage-collector"), &request), Ok(()));
    let misspelt = Identity::Controller("garbage-collector");
    assert!(check(&misspelt, &request).is_err() && !Rights::upstream().knows(&misspelt));
}
