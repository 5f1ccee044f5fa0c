//! Volumes of one pod that are one volume of a driver, under two names on the disk.
//!
//! Input: the pod's volumes. Output: each one that has the driver and the handle of an earlier one,
//! with that one. A driver publishes a volume to a pod once, so only the first can be served; the
//! other's directory would be an empty one of the node. Pure.

use std::collections::BTreeMap;

use super::plan::PodVolumes;

/// A volume that the pod has already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubled {
    /// Its name in the pod.
    pub volume: String,
    /// Its name on the disk.
    pub disk_name: String,
    /// Why it is refused.
    pub why: String,
}

/// The volumes that cannot be served beside the earlier ones.
pub fn find(volumes: &PodVolumes) -> Vec<Doubled> {
    let mut first = BTreeMap::new();
    let mut doubled = Vec::new();
    for volume in &volumes.volumes {
        let Some(of_driver) = volume.kind.staged() else { continue };
        let name = volume.disk_name();
        let earlier = *first.entry(of_driver.id(&volumes.uid)).or_insert(name);
        if earlier != name {
            let (driver, handle) = (&of_driver.driver, &of_driver.handle);
            let why = format!(
                "{earlier} and {name} are one volume of driver {driver}, {handle}: a pod can have \
                 it under one name only"
            );
            let (volume, disk_name) = (volume.name.clone(), name.to_owned());
            doubled.push(Doubled { volume, disk_name, why });
        }
    }
    doubled
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
    use serde_json::json;

    use super::*;
    use crate::types::NodeFacts;
    use crate::volume::{ClaimedVolume, Claims};

    fn claimed(name: &str, handle: &str) -> ClaimedVolume {
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"csi": {"driver": "d", "volumeHandle": handle}},
        }))
        .expect("a volume");
        ClaimedVolume {
            claim: name.to_owned(),
            is_read_only: false,
            is_migrated: false,
            capacity: None,
            volume,
        }
    }

    #[test]
    fn second_name_of_a_volume_is_refused_and_the_same_name_twice_is_not() {
        let volumes = [("a", "pv-a"), ("again", "pv-a"), ("b", "pv-b"), ("other", "pv-c")];
        let source = |(name, claim): (&str, &str)| json!({"name": name, "persistentVolumeClaim": {"claimName": claim}});
        let mount =
            |(name, _): (&str, &str)| json!({"name": name, "mountPath": format!("/{name}")});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {
                "containers": [{"name": "c", "volumeMounts": volumes.map(mount)}],
                "volumes": volumes.map(source)},
        }))
        .expect("a pod");
        let mut claims = Claims::default();
        for (name, volume) in volumes {
            let handle = if volume == "pv-c" { "other" } else { "one" };
            claims.insert(name, claimed(volume, handle));
        }
        let planned = PodVolumes::plan(Path::new("/r"), &NodeFacts::default(), &pod, &claims);
        let refused = Doubled {
            volume: "b".to_owned(),
            disk_name: "pv-b".to_owned(),
            why: "pv-a and pv-b are one volume of driver d, one: a pod can have it under one name \
                  only"
                .to_owned(),
        };
        assert_eq!(find(&planned), [refused]);
    }
}
