//! How long volumes of drivers are waited for.

use pintle_agent_core::storage::Wanted;
use serde_json::json;

use super::*;

/// A wait that a test has time for.
const SHORT: Duration = Duration::from_millis(50);

#[tokio::test]
async fn volumes_are_waited_for_as_long_as_by_the_kubelet_and_no_longer() {
    assert_eq!(READY_MAX, Duration::from_secs(123));
    let root = tempfile::tempdir().expect("a folder");
    let parts = StorageParts {
        root: root.path().to_owned(),
        node_name: "n".into(),
        drivers: Drivers::none(),
        objects: Objects::none(),
        recorder: Recorder::default(),
        metrics: Arc::new(Metrics::new("n")),
        node: None,
        events: None,
        attaches_by_controller: false,
        refresher: Refresher::none(),
        labels: LabelSettings::default(),
        resync: Duration::from_secs(60),
    };
    let disk = json!({"metadata": {"name": "pv"}, "spec": {"csi": {
        "driver": "d", "volumeHandle": "h"}}});
    let disk = serde_json::from_value(disk).expect("a volume");
    let wanted = [Volume::of_claim(&disk, false, None).expect("of a driver")];
    let (uid, pod) = (PodUid::from("u"), Arc::new(Pod::default()));
    let waits = async {
        let volumes = Volumes::start(parts);
        assert_eq!(volumes.ready(&uid, &pod, &[]).await, Ok(()), "no volume, no wait");
        volumes.known().await;
        let begun = tokio::time::Instant::now();
        let late = volumes.ready_within(SHORT, &uid, &pod, &wanted).await;
        assert!(begun.elapsed() >= SHORT, "it has waited");
        late.expect_err("without an API server nothing is known of the driver")
    };
    let late = tokio::task::LocalSet::new().run_until(waits).await;
    assert_eq!(late.to_string(), "context deadline exceeded");
}

#[test]
fn operations_of_a_migrated_volume_except_expansion_are_labelled_migrated() {
    let disk = json!({"metadata": {"name": "pv"}, "spec": {"csi": {
        "driver": "d", "volumeHandle": "h"}}});
    let disk = serde_json::from_value(disk).expect("a volume");
    let volume = Volume::of_claim(&disk, false, None).expect("of a driver");
    for is_migrated in [true, false] {
        let wanted = Box::new(Wanted {
            pod: "u".into(),
            volume: Volume { is_migrated, ..volume.clone() },
            is_attached_first: false,
            is_republished: false,
            fs_group: None,
            selinux_label: None,
        });
        let known = Known::of(&wanted);
        let calls = [
            Call::Stage { wanted: wanted.clone(), again: false },
            Call::Publish { wanted: wanted.clone(), again: false },
            Call::Unpublish { pod: "u".into(), known: known.clone() },
            Call::Unstage(known),
            Call::Expand { wanted, had_final_error: false },
        ];
        let found: Vec<_> = calls.iter().map(operation).collect();
        let of = OfDriver { driver: "d", is_migrated };
        let expected = [
            (of, "volume_mount"),
            (of, "volume_mount"),
            (of, "volume_unmount"),
            (of, "unmount_device"),
            (OfDriver::own("d"), "volume_fs_resize"),
        ];
        assert_eq!(found, expected);
    }
}
