//! Rows for pods that wait for an image: missing, on its way, or behind others.

use super::tests::{check, start, waiting};

#[test]
fn pod_with_a_missing_queued_or_pulling_image_is_explained() {
    let queued =
        || waiting("ContainerCreating", "").doing(start("c")).call("PullTurn", "x:latest", 120);
    let remedy = queued().explain().remedy.expect("a remedy");
    assert!(remedy.contains("serializeImagePulls: false"), "{remedy}");
    check(vec![
        (
            waiting("ImagePullBackOff", "Back-off pulling image \"x\": ErrImagePull: refused")
                .wakes_in(40),
            "ImagePullBackOff",
            "Image x of container c cannot be pulled: Back-off pulling image \"x\": \
             ErrImagePull: refused; tried again in 40 s.",
        ),
        (
            waiting("ErrImageNeverPull", "not present"),
            "ErrImageNeverPull",
            "Image x of container c is not on this node: not present.",
        ),
        (
            waiting("ContainerCreating", "").doing(start("c")).call("PullImage", "x:latest", 75),
            "Pulling",
            "Image x:latest of container c is being pulled, for 1 min 15 s so far.",
        ),
        (
            queued().call("PullImage", "y:1", 190),
            "PullQueued",
            "Image x:latest of container c waits for its turn, for 2 min: image y:1 is being \
             pulled, for 3 min 10 s.",
        ),
        (
            queued().call("PullImage", "y:1", 190).call("PullTurn", "z:1", 3),
            "PullQueued",
            "Image x:latest of container c waits for its turn, for 2 min: image y:1 is being \
             pulled, for 3 min 10 s, and one more waits.",
        ),
        (
            queued()
                .call("PullImage", "v:1", 5)
                .call("PullImage", "y:1", 190)
                .call("PullTurn", "z:1", 3)
                .call("PullTurn", "w:1", 2),
            "PullQueued",
            "Image x:latest of container c waits for its turn, for 2 min: 2 images are being \
             pulled, y:1 for 3 min 10 s, and 2 more wait.",
        ),
        // One pull has ended, the next one is about to begin.
        (queued(), "PullQueued", "Image x:latest of container c waits for its turn, for 2 min."),
        // Another pod has it pulled with other credentials.
        (
            queued().call("PullImage", "x:latest", 4),
            "Pulling",
            "Image x:latest of container c is being pulled, for 4 s so far.",
        ),
        (
            waiting("ContainerCreating", "").doing(start("c")).call("PullTurn", "z:1", 75),
            "Starting",
            "Is starting: container c is being started.",
        ),
        (
            waiting("ContainerCreating", "").doing(start("c")).call("PullImage", "xy", 75),
            "Starting",
            "Is starting: container c is being started.",
        ),
    ]);
}
