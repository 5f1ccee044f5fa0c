//! Volumes on a real disk with real mounts, each test in a mount namespace of its own, so that the
//! host sees none of it.

mod crash;
mod effects;
mod hung;
mod large;
pub(crate) mod local;
mod outdated;
mod recorded;

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::types::NodeFacts;

use super::claim::Claims;
use super::content::ContentSource;
use super::payload::{ContentError, KeyValues, TokenRequest};
use super::plan::PodVolumes;
use super::project::UsageMeasure;

/// Runs `test` in a private mount namespace, with the threads of the pool and of a ring in it.
pub(crate) fn with_private_mounts(test: impl FnOnce() + Send + 'static) {
    xtask::disk::with_private_mounts(|| {
        pintle_daemon::blocking::Pool::own();
        pintle_ring::RingFiles::ring(false)
            .unwrap_or_else(|_| pintle_ring::RingFiles::direct())
            .for_thread();
        test();
    });
}

/// The objects that existed when the recordings were made.
pub(crate) struct RecordedObjects;

impl ContentSource for RecordedObjects {
    async fn config_map(&self, _: &str, name: &str) -> Result<KeyValues, ContentError> {
        match name {
            "cm1" => Ok(values(&[("k1", "v1"), ("k2", "v2")])),
            "kube-root-ca.crt" => Ok(values(&[("ca.crt", "CERTIFICATE")])),
            _ => Err(ContentError::NotFound { kind: "configmap", name: name.to_owned() }),
        }
    }

    async fn secret(&self, _: &str, name: &str) -> Result<KeyValues, ContentError> {
        match name {
            "sec1" => Ok(values(&[("user", "bob"), ("pass", "s3cret")])),
            _ => Err(ContentError::NotFound { kind: "secret", name: name.to_owned() }),
        }
    }

    async fn token(&self, request: &TokenRequest) -> Result<String, ContentError> {
        Ok(format!("token for {:?}", request.audience))
    }
}

fn values(pairs: &[(&str, &str)]) -> KeyValues {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), v.as_bytes().into())).collect()
}

/// A pod from its spec in JSON.
pub(crate) fn pod(spec: serde_json::Value) -> Pod {
    let meta = serde_json::json!({"name": "p", "namespace": "default", "uid": "uid-1"});
    serde_json::from_value(serde_json::json!({"metadata": meta, "spec": spec})).expect("a pod")
}

pub(crate) fn plan(root: &Path, pod: &Pod) -> PodVolumes {
    let node = NodeFacts { memory_allocatable_bytes: 1 << 30, ..NodeFacts::default() };
    PodVolumes::plan(root, &node, pod, &Claims::default())
}

/// Sets a pod's volumes up, with the objects above.
fn mount(pod: &PodVolumes) -> Result<(), Vec<String>> {
    super::execute::make_pod_dirs(&pod.dirs).expect("directories");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
    let uid = "u".into();
    let done = super::execute::mount_all(
        &uid,
        pod,
        UsageMeasure::Walk,
        &RecordedObjects,
        jiff::Timestamp::now(),
    );
    let done = runtime.block_on(done);
    let texts = |errors: Vec<_>| errors.iter().map(super::VolumeError::to_string).collect();
    done.map(|outdated| assert_eq!(outdated, [])).map_err(texts)
}

fn no_env() -> BTreeMap<String, String> {
    BTreeMap::new()
}

/// Binds the sub-paths of the container `c`.
fn prepare(mounts: &[super::mounts::PlannedMount]) -> Result<(), super::VolumeError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
    runtime.block_on(super::execute::prepare_container(&"u".into(), "c", mounts))
}
