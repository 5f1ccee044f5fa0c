//! Volumes of plugins that were once part of Kubernetes: they run through the drivers in their place.

use pintle_csi_driver::log::LogFile;
use pintle_testbed::cluster::TestCluster;
use pintle_testbed::manifest::{With, phase};
use serde_json::json;

use crate::drivers::Driver;
use crate::ground::{Bound, claimant, volume, wait_for_event};

/// The driver of Amazon's disks.
const EBS: &str = "ebs.csi.aws.com";
/// The label that it gives to nodes for their zone.
const ZONE: &str = "--topology=topology.ebs.csi.aws.com/zone=zone-1";
const ONCE: [&str; 4] =
    ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];

fn driver<'a>(test: &'a TestCluster, own: &str) -> Driver<'a> {
    let driver = Driver::named(test, EBS, own, &["--without=attach", ZONE]);
    driver.describe(false);
    driver
}

#[test]
fn an_in_tree_volume_of_a_claim_runs_through_its_csi_driver() {
    let test = TestCluster::take();
    let driver = driver(&test, "ebs");
    let handle = driver.create("ebs");
    let mut bound = Bound::new(&test);
    let source = json!({"volumeID": handle, "fsType": "ext4", "partition": 2});
    let mut disk = volume("ebs", json!({"awsElasticBlockStore": source}));
    // The driver's label of the node has to fit.
    disk["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "zone-1"});
    bound.bind(&disk);
    test.apply(&claimant("writer", "ebs", "echo kept > /data/file"));
    test.pod_until("writer", "succeeds", |pod| phase(pod) == "Succeeded");
    test.kubectl(&["delete", "pod", "writer"]).expect("deleted");
    driver.nothing_is_left();
    assert_eq!(driver.calls(&handle), ONCE);
    let lines = LogFile::new(&driver.state).read().expect("a log");
    let stage = lines.iter().find(|line| line.method == "NodeStageVolume").expect("staged");
    assert!(stage.text.contains("partition"), "{}", stage.text);

    let mut elsewhere = volume("ebs-far", json!({"awsElasticBlockStore": {"volumeID": handle}}));
    elsewhere["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "zone-2"});
    bound.bind(&elsewhere);
    test.apply(&claimant("far", "ebs-far", "true"));
    let text = "MountVolume.NodeAffinity check failed for volume \"ebs-far\" : no matching \
                NodeSelectorTerms";
    wait_for_event(&test, "far", "FailedMount", text);
}

#[test]
fn an_in_tree_volume_of_a_pods_spec_runs_through_its_csi_driver() {
    let test = TestCluster::take();
    let driver = driver(&test, "ebs-inline");
    let handle = driver.create("ebs-inline");
    let volumes = |id: &str| json!([{"name": "data", "awsElasticBlockStore": {"volumeID": id}}]);
    let script = "mkdir -p /data/d; echo kept > /data/file";
    test.apply(&claimant("inline", "", script).with_spec("volumes", volumes(&handle)));
    test.pod_until("inline", "succeeds", |pod| phase(pod) == "Succeeded");
    test.kubectl(&["delete", "pod", "inline"]).expect("deleted");
    driver.nothing_is_left();
    assert_eq!(driver.calls(&handle), ONCE);

    let wrong = "aws://zone-1/disk";
    test.apply(&claimant("wrong", "", "true").with_spec("volumes", volumes(wrong)));
    let text = format!(
        "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to \
         process volumes=[data]: failed to translate in-tree pv to CSI: failed to translate \
         Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({wrong})"
    );
    wait_for_event(&test, "wrong", "FailedMount", &text);
}
