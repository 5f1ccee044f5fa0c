//! Volumes with much content.

use std::path::PathBuf;

use serde_json::json;

use super::{plan, pod, with_private_mounts};
use crate::volume::content::ContentSource;
use crate::volume::execute::{make_pod_dirs, mount_all};
use crate::volume::payload::{ContentError, KeyValues, TokenRequest};
use crate::volume::plan::PodVolumes;
use crate::volume::project::UsageMeasure;

/// Config maps named by numbers: of each, the one before it is written before it is asked for.
struct InOrder(PathBuf);

impl ContentSource for InOrder {
    async fn config_map(&self, _: &str, name: &str) -> Result<KeyValues, ContentError> {
        let number: u32 = name.parse().expect("a number");
        if let Some(before) = number.checked_sub(1) {
            assert!(self.0.join(format!("v{before}")).join("k").exists(), "{name}");
        }
        Ok(KeyValues::from([("k".to_owned(), vec![b'x'; 4 << 20].into())]))
    }

    async fn secret(&self, _: &str, _: &str) -> Result<KeyValues, ContentError> {
        Ok(KeyValues::from([("k".to_owned(), vec![b'x'; 1 << 20].into())]))
    }

    async fn token(&self, _: &TokenRequest) -> Result<String, ContentError> {
        unreachable!("no token is wanted")
    }
}

fn mount(pod: &PodVolumes) -> Result<(), Vec<String>> {
    make_pod_dirs(&pod.dirs).expect("directories");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
    let content = InOrder(pod.dirs.volumes().join("kubernetes.io~configmap"));
    let uid = "u".into();
    let done = mount_all(&uid, pod, UsageMeasure::Walk, &content, jiff::Timestamp::now());
    let done = runtime.block_on(done).map(|outdated| assert_eq!(outdated, []));
    done.map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

#[test]
fn large_volumes_are_written_before_the_next_is_fetched() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let volume =
            |n: u32| json!({"name": format!("v{n}"), "configMap": {"name": n.to_string()}});
        let volumes: Vec<_> = (0..4).map(volume).collect();
        let pod = plan(root.path(), &pod(json!({"volumes": volumes, "containers": []})));
        assert_eq!(mount(&pod), Ok(()));
        let last = pod.dirs.volumes().join("kubernetes.io~configmap/v3/k");
        assert!(last.exists());
    });
}

#[test]
fn volume_above_the_size_limit_of_a_pod_fails_and_the_remaining_volumes_are_set_up() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let items =
            |n| -> Vec<_> { (0..n).map(|n| json!({"key": "k", "path": n.to_string()})).collect() };
        let volumes = json!([
            {"name": "large", "secret": {"secretName": "s", "items": items(257)}},
            {"name": "small", "secret": {"secretName": "s", "items": items(1)}},
        ]);
        let pod = plan(root.path(), &pod(json!({"volumes": volumes, "containers": []})));
        let text = "MountVolume.SetUp failed for volume \"large\" : the files of a pod's volumes may \
                    have 268435456 bytes together";
        assert_eq!(mount(&pod), Err(vec![text.to_owned()]));
        let dir = pod.dirs.volumes().join("kubernetes.io~secret");
        assert!(dir.join("small/0").exists() && !dir.join("large").exists());
        crate::volume::execute::unmount_all(&pod.dirs).expect("taken away");
    });
}
