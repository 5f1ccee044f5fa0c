//! The time of the runtime's last full list of pods, and the NotReady reason when it is too old.
//!
//! A runtime that answers Status while its lists hang cannot run pods. The message is the
//! kubelet's, because repair systems match it to remove the node. Written by the driver, read by
//! the node's reporter, both on the main thread. Times are monotonic.
// k8s: pkg/kubelet/pleg/generic.go Healthy, pkg/kubelet/runtime.go runtimeErrors

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pintle_api_types::duration::GoDuration;

/// The node is not ready when the last list is older than this.
// k8s: pkg/kubelet/kubelet.go genericPlegRelistThreshold
const THRESHOLD: Duration = Duration::from_secs(180);

/// The time of the runtime's last list; clones share it.
#[derive(Clone, Debug)]
pub struct ListsSeen(Rc<Cell<Instant>>);

impl Default for ListsSeen {
    fn default() -> Self {
        Self(Rc::new(Cell::new(Instant::now())))
    }
}

impl ListsSeen {
    /// Records that the runtime has listed its pods now.
    pub fn seen(&self) {
        self.0.set(Instant::now());
    }

    /// The NotReady reason, if the last list is too old.
    pub fn error(&self) -> Option<String> {
        problem(self.0.get().elapsed())
    }
}

fn problem(silence: Duration) -> Option<String> {
    // Whole minutes, because each change of the message is a write of the node's status.
    let silence = Duration::from_secs(silence.as_secs() / 60 * 60);
    (silence >= THRESHOLD).then(|| {
        let (ago, threshold) = (GoDuration::from_std(silence), GoDuration::from_std(THRESHOLD));
        format!(
            "PLEG is not healthy: pleg was last seen active {ago} ago; threshold is {threshold}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pleg_is_unhealthy_after_three_minutes_in_the_message_of_kubelet() {
        assert_eq!(problem(Duration::from_secs(179)), None);
        let text = problem(Duration::from_millis(185_700)).expect("a problem");
        assert_eq!(
            text,
            "PLEG is not healthy: pleg was last seen active 3m0s ago; threshold is 3m0s"
        );
    }
}
