//! One test a rule of the API.

mod create;
mod delete;
mod read;
mod rest;
mod update;

use jiff::{SignedDuration, Timestamp};
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::{Answer, DeleteOptions, PatchForm, Request, Target};
use serde_json::{Value, json};

use crate::{Identity, Server};

/// A server with the namespace `a`, and its time.
pub(crate) struct ServerWorld {
    pub(crate) server: Server,
    now: Timestamp,
}

impl ServerWorld {
    pub(crate) fn new() -> Self {
        let mut world = Self { server: Server::new(1), now: Timestamp::UNIX_EPOCH };
        world.create(kind::NAMESPACES, json!({"metadata": {"name": "a"}})).expect("a namespace");
        world
    }

    pub(crate) fn wait(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Answer {
        self.server.handle(&Identity::Admin, request, self.now)
    }

    pub(crate) fn create(&mut self, kind: Kind, body: Value) -> Answer {
        let namespace = if kind.is_namespaced { "a" } else { "" }.to_owned();
        self.ask(&Request::Create { kind, namespace, below: None, body })
    }

    pub(crate) fn made(&mut self, kind: Kind, body: Value) -> Value {
        self.create(kind, body).expect("a valid object")
    }

    pub(crate) fn read(&mut self, kind: Kind, name: &str) -> Answer {
        self.ask(&Request::Read { target: target(kind, name, ""), only_metadata: false })
    }

    pub(crate) fn replace(&mut self, kind: Kind, sub: &'static str, body: &Value) -> Answer {
        let name = body["metadata"]["name"].as_str().expect("a name").to_owned();
        self.ask(&Request::Replace { target: target(kind, &name, sub), body: body.clone() })
    }

    pub(crate) fn patch(&mut self, target: Target, form: PatchForm, body: Value) -> Answer {
        self.ask(&Request::Patch { target, form, body })
    }

    pub(crate) fn delete(&mut self, kind: Kind, name: &str, options: DeleteOptions) -> Answer {
        self.ask(&Request::Delete { target: target(kind, name, ""), options })
    }
}

pub(crate) fn target(kind: Kind, name: &str, sub: &'static str) -> Target {
    let namespace = if kind.is_namespaced { "a" } else { "" };
    Target { kind, key: ObjectKey::new(namespace, name), sub }
}

pub(crate) fn pod(name: &str, node: &str) -> Value {
    let mut pod = json!({"metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    if !node.is_empty() {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

pub(crate) fn workload(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}})
}
