//! Volumes of drivers without a readable record, when their pod ends: known again by the pod's spec.
//!
//! Input: the pod's folder, the pod, its claims. Output: what the driver's machine has to know to take
//! the volumes away. A pod that no source has any more has no spec: its volume stays, mounted, with an
//! event, because only the driver can take it away.

use pintle_agent_core::storage::{Known, csi};
use pintle_agent_core::volume::csi_dirs::escaped;
use pintle_agent_core::volume::plan::PodVolume;
use pintle_agent_core::volume::{PodDirs, PodVolumes, VolumeKind};
use pintle_agent_core::worker::Failure;
use pintle_agent_host::csi::scan;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;

use crate::execute::{Executor, SyncOrder};

impl Executor {
    /// Has volumes without a record taken away with the others.
    pub(super) async fn recover_records(
        &self,
        order: &SyncOrder,
        dirs: &PodDirs,
    ) -> Result<(), Failure> {
        let Some(pod) = &order.pod else { return Ok(()) };
        let (dirs, place) = (dirs.clone(), JobPlace::removal(&order.uid));
        let lost = blocking::run(place, move || scan::without_record(&dirs)).await;
        let lost = lost.map_err(|why| Failure::new("FailedUnmount", why.to_string()))?;
        if lost.is_empty() {
            return Ok(());
        }
        // Claims that cannot be read keep the pod; the next try reads them again.
        self.objects.resolve_claims(&order.uid, pod).await;
        let volumes = known_by_spec(&self.volumes(pod), &lost);
        tracing::warn!(pod = %order.uid, ?lost, known = volumes.len(),
            "volumes without a readable record are taken away by the pod's spec");
        self.volumes.recover(&order.uid, volumes);
        Ok(())
    }
}

/// Those of the volumes with these folders.
fn known_by_spec(planned: &PodVolumes, folders: &[String]) -> Vec<Known> {
    let of_driver = |volume: &PodVolume| match &volume.kind {
        VolumeKind::Csi(of_driver) => Some(csi::Volume::clone(of_driver)),
        _ => None,
    };
    let all = planned.volumes.iter().filter_map(of_driver);
    let lost = all.filter(|volume| folders.contains(&escaped(&volume.name)));
    lost.map(|volume| Known::of_volume(&volume)).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use k8s_openapi::api::core::v1::Pod;
    use pintle_agent_core::types::NodeFacts;
    use pintle_agent_core::volume::Claims;
    use serde_json::json;

    use super::*;

    #[test]
    fn volume_with_a_lost_record_is_recovered_from_the_pod_spec() {
        let volumes = json!([
            {"name": "kept", "csi": {"driver": "d"}}, {"name": "lost", "csi": {"driver": "d"}},
            {"name": "own", "emptyDir": {}},
        ]);
        let mounts = ["kept", "lost", "own"].map(|n| json!({"name": n, "mountPath": "/m"}));
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes},
        }))
        .expect("a pod");
        let planned =
            PodVolumes::plan(Path::new("/r"), &NodeFacts::default(), &pod, &Claims::default());
        let known = known_by_spec(&planned, &["lost".to_owned(), "strange".to_owned()]);
        let names: Vec<_> = known.iter().map(|known| (&*known.name, &*known.driver)).collect();
        assert_eq!(names, [("lost", "d")]);
    }
}
