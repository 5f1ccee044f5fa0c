//! Claims of an API server in memory: unbound, refused, silent, taken by another pod.

use serde_json::{Value, json};

use super::follow::{Scene, pod, watched};
use crate::objects::ResolvedClaims;

const CLAIM: &str = "/api/v1/namespaces/ns/persistentvolumeclaims/c";
const VOLUME: &str = "/api/v1/persistentvolumes/pv";

fn claiming(uid: &str) -> (pintle_agent_core::types::PodUid, k8s_openapi::api::core::v1::Pod) {
    let mounts = json!([{"name": "data", "mountPath": "/d"}]);
    pod(
        uid,
        json!({"containers": [{"name": "c", "volumeMounts": mounts}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]}),
    )
}

fn put_claim(scene: &Scene, phase: &str) {
    let claim = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "claim-uid"},
        "spec": {"volumeName": "pv"}, "status": {"phase": phase}});
    scene.server.put(CLAIM, claim);
}

fn put_volume(scene: &Scene, modes: Value) {
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"accessModes": modes,
        "claimRef": {"uid": "claim-uid"}, "hostPath": {"path": "/x"}}});
    scene.server.put(VOLUME, volume);
}

async fn resolved(scene: &Scene, uid: &str) -> ResolvedClaims {
    let (uid, pod) = claiming(uid);
    scene.objects.resolve_claims(&uid, &pod).await
}

fn unusable(found: &ResolvedClaims) -> Vec<&str> {
    found.unusable.iter().map(|claim| &*claim.why).collect()
}

#[test]
fn pod_is_notified_when_its_claim_is_bound_later() {
    watched(async |mut scene| {
        let found = resolved(&scene, "p").await;
        let want = "error processing PVC ns/c: failed to fetch PVC from API server: \
                    persistentvolumeclaims \"c\" not found";
        assert_eq!(unusable(&found), [want]);
        put_claim(&scene, "Pending");
        assert_eq!(scene.told().await, ("p".to_owned(), false), "a changed reason wakes the pod");
        let found = resolved(&scene, "p").await;
        assert_eq!(unusable(&found), ["error processing PVC ns/c: PVC is not bound"]);
        put_volume(&scene, json!(["ReadWriteOnce"]));
        put_claim(&scene, "Bound");
        assert_eq!(scene.told().await, ("p".to_owned(), false));
        let found = resolved(&scene, "p").await;
        assert_eq!(unusable(&found), [""; 0]);
        let (uid, _) = claiming("p");
        let claims = scene.objects.claims(&uid);
        assert_eq!(claims.get("data").map(|c| c.volume_name().to_owned()).as_deref(), Some("pv"));
    });
}

#[test]
fn a_claim_that_was_resolved_stays_so_while_the_api_server_does_not_answer() {
    watched(async |scene| {
        put_claim(&scene, "Bound");
        put_volume(&scene, json!(["ReadWriteOnce"]));
        assert_eq!(unusable(&resolved(&scene, "p").await), [""; 0]);
        scene.refuse("persistentvolume", 500);
        assert_eq!(unusable(&resolved(&scene, "p").await), [""; 0]);
        assert_eq!(resolved(&scene, "q").await.unusable.len(), 1, "of another pod none is known");
        // An answer counts, also when it is bad news.
        scene.server.refuse_nothing();
        scene.refuse("persistentvolume", 404);
        assert_eq!(resolved(&scene, "p").await.unusable.len(), 1);
    });
}

#[test]
fn forbidden_claim_read_is_retried_before_it_is_an_error() {
    watched(async |scene| {
        put_claim(&scene, "Bound");
        put_volume(&scene, json!(["ReadWriteOnce"]));
        scene.refuse("persistentvolumeclaims", 403);
        let allow = async {
            scene.until("a second read", |server| server.requests().len() >= 2).await;
            scene.server.refuse_nothing();
        };
        let (found, ()) = tokio::join!(resolved(&scene, "p"), allow);
        assert_eq!(unusable(&found), [""; 0]);
    });
}

#[test]
fn read_write_once_pod_volume_is_refused_to_a_second_pod_until_the_first_is_deleted() {
    watched(async |mut scene| {
        put_claim(&scene, "Bound");
        put_volume(&scene, json!(["ReadWriteOncePod"]));
        for _ in 0..2 {
            assert_eq!(resolved(&scene, "p").await.refused, []);
        }
        let refused = resolved(&scene, "q").await.refused;
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].step, "MountVolume.SetUp");
        assert!(refused[0].why.contains("ReadWriteOncePod"), "{refused:?}");
        scene.objects.forget(&claiming("p").0);
        assert_eq!(scene.told().await, ("q".to_owned(), false));
        assert_eq!(resolved(&scene, "q").await.refused, []);
    });
}
