//! Waits that differ from node to node, so that a thousand nodes do not write at once.
//!
//! Pure but for the random seed of the standard library's hash maps.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// A number from 0 up to, but without, 1.
pub fn random() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 32;
    #[allow(clippy::cast_precision_loss)] // 32 bits fit
    let part = bits as f64;
    part / f64::from(u32::MAX).next_up()
}

/// `period` and up to `part` of it more.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/wait/timer.go Jitter
pub fn jitter(period: Duration, part: f64) -> Duration {
    period.mul_f64(1.0 + part * random())
}

/// From half of `period` less to half of it more.
// k8s: pkg/kubelet/kubelet_node_status.go calculateDelay
pub fn spread(period: Duration) -> Duration {
    period.mul_f64(0.5 + random())
}

/// The next wait of a series that doubles up to `max`.
pub fn doubled(wait: Duration, max: Duration) -> Duration {
    (wait * 2).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_stay_in_their_bounds() {
        let second = Duration::from_secs(1);
        for _ in 0..1000 {
            let jittered = jitter(second, 0.04);
            assert!(jittered >= second && jittered < second.mul_f64(1.0401), "{jittered:?}");
            let spread = spread(second);
            assert!(spread >= second / 2 && spread <= second.mul_f64(1.5), "{spread:?}");
        }
        assert_eq!(doubled(second * 5, second * 7), second * 7);
    }
}
