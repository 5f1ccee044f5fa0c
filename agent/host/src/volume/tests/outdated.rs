//! Content that changes, is deleted and comes back while the pod runs.

use std::cell::RefCell;
use std::fs;

use serde_json::json;

use super::*;
use crate::volume::VolumeError;
use crate::volume::execute::{make_pod_dirs, mount_all, refresh};

/// One config map, `a`, that may be missing.
struct One(RefCell<Option<&'static str>>);

impl ContentSource for One {
    async fn config_map(&self, _: &str, name: &str) -> Result<KeyValues, ContentError> {
        let missing = || ContentError::NotFound { kind: "configmap", name: name.to_owned() };
        self.0.borrow().map(|value| values(&[("k", value)])).ok_or_else(missing)
    }

    async fn secret(&self, _: &str, name: &str) -> Result<KeyValues, ContentError> {
        Err(ContentError::NotFound { kind: "secret", name: name.to_owned() })
    }

    async fn token(&self, _: &TokenRequest) -> Result<String, ContentError> {
        Err(ContentError::Failed("none".to_owned()))
    }
}

type Done<T> = Result<T, Vec<VolumeError>>;

fn mount_of(pod: &PodVolumes, one: &One) -> Done<Vec<VolumeError>> {
    make_pod_dirs(&pod.dirs).expect("directories");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
    runtime.block_on(mount_all(&"u".into(), pod, UsageMeasure::Walk, one, jiff::Timestamp::now()))
}

fn refresh_of(pod: &PodVolumes, one: &One) -> Done<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
    runtime.block_on(refresh(&"u".into(), pod, one, jiff::Timestamp::now()))
}

fn texts(errors: &[VolumeError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn volume_of_a_deleted_object_keeps_its_files_and_lets_containers_start() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let volumes = json!([{"name": "v", "configMap": {"name": "a"}}]);
        let volumes = plan(root.path(), &pod(json!({"volumes": volumes, "containers": []})));
        let one = One(RefCell::new(None));
        let missing = "MountVolume.SetUp failed for volume \"v\" : configmap \"a\" not found";
        // It never existed: the pod waits.
        let errors = mount_of(&volumes, &one).expect_err("nothing to show");
        assert_eq!(texts(&errors), [missing]);
        *one.0.borrow_mut() = Some("first");
        assert_eq!(mount_of(&volumes, &one), Ok(Vec::new()));
        let file = volumes.dirs.volume("kubernetes.io~configmap", "v").join("k");
        assert_eq!(fs::read_to_string(&file).expect("shown"), "first");
        *one.0.borrow_mut() = Some("second");
        assert_eq!(refresh_of(&volumes, &one), Ok(()));
        assert_eq!(fs::read_to_string(&file).expect("shown"), "second");
        // Deleted: reported, but containers may restart.
        *one.0.borrow_mut() = None;
        let outdated = mount_of(&volumes, &one).expect("set up before");
        assert_eq!(texts(&outdated), [missing]);
        let errors = refresh_of(&volumes, &one).expect_err("it is missing");
        assert_eq!(texts(&errors), [missing]);
        assert_eq!(fs::read_to_string(&file).expect("kept"), "second");
    });
}

#[test]
fn refresh_checks_payload_volumes_only() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let gone = root.path().join("gone");
        let volumes = json!([
            {"name": "h", "hostPath": {"path": gone.to_str(), "type": "Directory"}},
            {"name": "v", "configMap": {"name": "a"}}]);
        let volumes = plan(root.path(), &pod(json!({"volumes": volumes, "containers": []})));
        let one = One(RefCell::new(Some("first")));
        fs::create_dir(&gone).expect("mkdir");
        assert_eq!(mount_of(&volumes, &one), Ok(Vec::new()));
        fs::remove_dir(&gone).expect("rmdir");
        assert_eq!(refresh_of(&volumes, &one), Ok(()));
        assert!(mount_of(&volumes, &one).is_err());
    });
}
