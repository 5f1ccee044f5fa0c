//! Random volumes of the former in-tree plugins, for the worlds of volumes.
//!
//! Input: dice. Output: sources of volumes, and the drivers and zones of nodes. Left out are inputs
//! that end a decision of upstream's with an error: in a pod a volume that its driver cannot
//! support, and such a volume of a claim where VolumeBinding is enabled.

use serde_json::{Value, json};

use crate::generate::ChoiceDice;

/// Plugins, and the drivers that took their places.
const PLUGINS: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
];
/// Labels that drivers give to nodes.
const TOPOLOGIES: [&str; 4] = [
    "topology.ebs.csi.aws.com/zone",
    "topology.gke.io/zone",
    "topology.cinder.csi.openstack.org/zone",
    "topology.csi.vmware.com/zone",
];
const DISKS: [&str; 3] = ["vol-1", "vol-2", "vol-3"];
/// Zone labels of Google's volumes, for which the driver must be installed.
const ZONES_OF_DISK: [&str; 3] = ["e-w-1", "e-s-1", "e-w-1__e-w-2"];

/// A plugin, as a class names it.
pub(crate) fn provisioner(dice: &mut ChoiceDice) -> &'static str {
    PLUGINS[dice.below(PLUGINS.len())].0
}

/// Labels of a node for the drivers.
pub(crate) fn label(dice: &mut ChoiceDice, node: &mut Value, zones: &[&str]) {
    for key in TOPOLOGIES {
        if dice.chance(50) {
            node["metadata"]["labels"][key] = json!(dice.pick(zones));
        }
    }
}

/// Which plugins have moved on a node, and how many volumes their drivers attach there.
pub(crate) fn move_plugins(dice: &mut ChoiceDice, node: &mut Value) {
    if dice.chance(70) {
        let names = PLUGINS.iter().map(|(plugin, _)| *plugin);
        let names: Vec<&str> = names.filter(|_| dice.chance(60)).collect();
        let names = json!(names.join(","));
        node["metadata"]["annotations"] =
            json!({"storage.alpha.kubernetes.io/migrated-plugins": names});
    }
    for (_, driver) in PLUGINS {
        if dice.chance(50) {
            let count = dice.below(4);
            let found = json!({"name": driver, "nodeID": "n", "topologyKeys": null,
                "allocatable": {"count": count}});
            node["spec"]["drivers"].as_array_mut().expect("drivers").push(found);
        }
    }
}

/// A disk of one of the drivers as a CSI volume: it may be the same disk as an in-tree volume.
pub(crate) fn csi(dice: &mut ChoiceDice) -> Value {
    let (_, driver) = PLUGINS[dice.below(PLUGINS.len())];
    let handle = match dice.below(4) {
        0 => "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/vol-1".to_owned(),
        1 => "projects/UNSPECIFIED/regions/e-w/disks/vol-1".to_owned(),
        _ => dice.pick(&DISKS),
    };
    json!({"driver": driver, "volumeHandle": handle})
}

/// A source of a volume, with the name of its field. Whether it is one of a pod; whether its driver
/// has to have it.
pub(crate) fn source(dice: &mut ChoiceDice, of_pod: bool, known: bool) -> (&'static str, Value) {
    let disk = dice.pick(&DISKS);
    let reads = dice.chance(50);
    match dice.below(7) {
        0 => {
            let (good, bad) = (format!("aws://z/{disk}"), format!("aws://z/y/{disk}"));
            let id = match dice.below(4) {
                0 => good,
                1 if !known => bad,
                2 if !known => "aws://vol-1?vol-2".to_owned(),
                _ => disk,
            };
            ("awsElasticBlockStore", json!({"volumeID": id, "readOnly": reads}))
        }
        1 => ("gcePersistentDisk", json!({"pdName": disk, "readOnly": reads})),
        2 => {
            let mut azure = json!({"diskName": "d", "diskURI": disk,
                "kind": dice.pick(&["Managed", "managed"])});
            if !known && dice.chance(30) {
                azure["kind"] = json!(dice.pick(&["Shared", "Dedicated"]));
            }
            ("azureDisk", azure)
        }
        3 => ("cinder", json!({"volumeID": disk})),
        4 => ("portworxVolume", json!({"volumeID": disk})),
        5 => {
            let mut azure = json!({"secretName": "s", "shareName": disk});
            if !of_pod {
                azure["secretNamespace"] = json!("a");
            }
            ("azureFile", azure)
        }
        _ => ("vsphereVolume", json!({"volumePath": disk})),
    }
}

/// Makes zones of a volume of Google's such as its driver can have.
pub(crate) fn put_right(dice: &mut ChoiceDice, volume: &mut Value) {
    if volume["spec"]["gcePersistentDisk"].is_null() {
        return;
    }
    let labels = volume["metadata"]["labels"].as_object_mut().into_iter().flatten();
    for (_, zones) in labels.filter(|(key, _)| key.ends_with("/zone")) {
        *zones = json!(dice.pick(&ZONES_OF_DISK));
    }
}
