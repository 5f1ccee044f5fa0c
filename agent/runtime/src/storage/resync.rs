//! Reads the claims of running pods again, as often as the kubelet syncs a pod.
//!
//! Input: the pods that have volumes of claims. Output: `Input::Republish` for drivers with
//! `requiresRepublish`, which needs no answer of the API server and comes first; then
//! `Input::Measured`, after which volumes that have grown are expanded; local volumes at last. The
//! node authorizer grants claims by `get` only, so nothing can be watched. Bounds: one read at a
//! time, one for each claim and a second one for a claim that may have grown.
// k8s: pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go checkVolumeFSResize

use pintle_agent_core::storage::csi::Volume;
use pintle_agent_core::storage::{Input, Resync};
use pintle_agent_core::types::PodUid;
use pintle_api_types::jitter;

use super::Volumes;

/// How much longer a wait may be, in parts of itself.
const SPREAD: f64 = 0.5;

/// Runs for ever.
pub(super) async fn run(volumes: &Volumes) {
    loop {
        tokio::time::sleep(jitter::jitter(volumes.0.parts.resync, SPREAD)).await;
        let due = volumes.0.machine.borrow().resyncs();
        for Resync { pod, .. } in &due {
            volumes.give(Input::Republish { pod: pod.clone() });
        }
        for Resync { pod, volumes: known } in due {
            let mut grown = Vec::new();
            for volume in known {
                grown.extend(grow(volumes, &pod, volume).await);
            }
            volumes.give(Input::Measured { pod, volumes: grown });
        }
        volumes.measure_locals().await;
    }
}

/// The volume with its new sizes, if they may differ.
async fn grow(volumes: &Volumes, pod: &PodUid, volume: Volume) -> Option<Volume> {
    let known = volume.size.as_ref()?;
    match volumes.0.parts.objects.sizes(pod, &volume.name, known).await {
        Ok(size) => size.map(|size| Volume { size: Some(size), ..volume }),
        Err(why) => {
            tracing::debug!(%pod, volume = volume.name, %why, "a claim cannot be read again");
            None
        }
    }
}
