//! Decides when the figures suffice to rank pods: usage is collected as the node nears a shortage,
//! and not all of it at once.
//!
//! Input: observations, the thresholds to act upon. Output: the first threshold for which the
//! figures are there, or when to look again; whether to count in advance. Pure. Memory waits for no
//! disk. A pod ranked on missing figures may use the least of all, so volumes and logs are waited
//! for `COUNT_MAX`, as are the layers of containers made since the runtime was asked. Writable
//! layers are waited for without a limit until the runtime reports them: upstream evicts no pod
//! meanwhile.
// k8s: pkg/kubelet/eviction/eviction_manager.go synchronize

use std::time::Duration;

use pintle_api_types::ids::Mono;
use serde::{Deserialize, Serialize};

use super::evictor::{PERIOD, SOON};
use super::met;
use super::observed::{DiskLayout, Observation};
use super::rank::{self, Evictable, Uses};
use super::threshold::{Settings, Threshold};

/// Longest wait for figures of pods, where there are none.
const BLIND_MAX: Duration = Duration::from_secs(30);
/// Longest wait for volumes that are being counted, for logs on a disk that does not answer, and
/// for layers of new containers; then pods are ranked by the known figures, as by a kubelet before
/// the end of its first count.
pub const COUNT_MAX: Duration = Duration::from_secs(120);
/// How often disk usage of pods is counted in advance while a disk nears a threshold.
// k8s: pkg/kubelet/apis/config/v1beta1/defaults.go VolumeStatsAggPeriod
pub const COUNT_EVERY: Duration = Duration::from_secs(60);

/// See the module's header.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Sight {
    /// The last look saw a disk with volumes near a threshold.
    nears_disk: bool,
    /// When disks of all pods were last measured in advance of a ranking.
    counted_at: Option<Mono>,
    /// Since when volumes, logs or layers of new containers are waited for.
    uncounted_since: Option<Mono>,
}

/// Usage of the pods, and whether disks were requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsageReport<'a> {
    pub(super) pods: &'a [Evictable<'a>],
    pub(super) uses: &'a Uses,
    pub(super) disks: bool,
    pub(super) layout: DiskLayout,
}

impl Sight {
    /// Takes an observation.
    pub(super) fn see(&mut self, settings: &Settings, observation: &Observation) {
        self.nears_disk = met::nears_disk(settings, observation);
    }

    /// True when the disks of all pods are to be measured ahead of an eviction, because counting
    /// takes time.
    pub(super) fn counts(&mut self, now: Mono) -> bool {
        let is_due = self.counted_at.is_none_or(|at| now.since(at) >= COUNT_EVERY);
        let counts = self.nears_disk && is_due;
        if counts {
            self.counted_at = Some(now);
        }
        counts
    }

    /// Volumes, logs or layers of new containers are still waited for.
    pub(super) fn is_counting(&self, now: Mono) -> bool {
        self.uncounted_since.is_some_and(|since| now.since(since) < COUNT_MAX)
    }

    /// Ends a shortage: the next one starts a new wait.
    pub(super) fn rest(&mut self) {
        self.uncounted_since = None;
    }

    /// The first threshold with complete figures, or when to look again. Pods have been ranked
    /// since `since`.
    pub(super) fn first<'a>(
        &mut self,
        fresh: &'a [Threshold],
        report: UsageReport<'_>,
        since: Mono,
        now: Mono,
    ) -> Result<&'a Threshold, Duration> {
        let unread =
            |of: &Threshold| rank::unread(report.pods, report.uses, of.signal, report.layout);
        let is_uncounted = |of: &Threshold| {
            let unread = unread(of);
            unread.logs || unread.volumes || unread.new_layers
        };
        if report.disks {
            let since = self.uncounted_since.unwrap_or(now);
            self.uncounted_since = fresh.iter().any(is_uncounted).then_some(since);
        }
        let counts = self.is_counting(now);
        let is_late = now.since(since) >= BLIND_MAX;
        let is_known = |of: &&Threshold| match of.signal.is_of_disk() {
            true => report.disks && !unread(of).layers && !(counts && is_uncounted(of)),
            false => report.uses.is_empty() || is_late || rank::has_usage(report.uses, of.signal),
        };
        let again = if counts || !is_late { SOON } else { PERIOD };
        fresh.iter().find(is_known).ok_or(again)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::observed::{PodUse, ResourceReading, Unread};
    use super::super::signal::Signal;
    use super::super::threshold::ThresholdLevel;
    use super::*;
    use pintle_api_types::ids::PodUid;

    const APART: DiskLayout = DiskLayout { images_apart: true, layers_apart: false };

    fn threshold(signal: Signal) -> Threshold {
        let level = ThresholdLevel::parse("10%").expect("a level");
        Threshold { signal, level, grace: Duration::ZERO, min_reclaim: None }
    }

    fn at(seconds: u64) -> Mono {
        Mono::default().plus(Duration::from_secs(seconds))
    }

    #[derive(Clone, Copy)]
    struct Shortage<'a> {
        signals: &'a [Signal],
        layout: DiskLayout,
    }

    /// The threshold that `first` returns for a pod without these figures.
    fn first(
        sight: &mut Sight,
        shortage: Shortage<'_>,
        unread: Unread,
        seconds: u64,
    ) -> Result<Signal, Duration> {
        let pod = json!({"metadata": {"name": "p", "uid": "p"}, "spec": {"containers": []}});
        let (uid, pod) = (PodUid::from("p"), serde_json::from_value(pod).expect("a pod"));
        let used = PodUse { working_set: Some(1), unread, ..PodUse::default() };
        let (uses, pods) = ([(uid.clone(), used)].into(), [Evictable { uid: &uid, pod: &pod }]);
        let Shortage { signals, layout } = shortage;
        let told = UsageReport { pods: &pods, uses: &uses, disks: true, layout };
        let fresh: Vec<_> = signals.iter().map(|signal| threshold(*signal)).collect();
        sight.first(&fresh, told, at(0), at(seconds)).map(|of| of.signal)
    }

    #[test]
    fn missing_layer_usage_delays_only_evictions_for_the_layers_disk() {
        use Signal::{ImageFsAvailable, MemoryAvailable, NodeFsAvailable};
        let unread = Unread { layers: true, ..Unread::default() };
        let mut sight = Sight::default();
        let mut of = |signals: &[Signal], layout, seconds| {
            first(&mut sight, Shortage { signals, layout }, unread, seconds)
        };
        let one = DiskLayout::default();
        assert_eq!(of(&[NodeFsAvailable], one, 1), Err(SOON));
        assert_eq!(of(&[NodeFsAvailable], one, 9_000), Err(PERIOD), "upstream waits for ever");
        assert_eq!(of(&[MemoryAvailable, NodeFsAvailable], one, 1), Ok(MemoryAvailable));
        assert_eq!(of(&[ImageFsAvailable], APART, 1), Err(SOON));
        let both = [ImageFsAvailable, NodeFsAvailable];
        assert_eq!(of(&both, APART, 1), Ok(NodeFsAvailable), "no layer lies there");
    }

    #[test]
    fn layers_of_new_containers_are_waited_for_but_not_for_ever() {
        let imagefs = Shortage { signals: &[Signal::ImageFsAvailable], layout: APART };
        let unread = Unread { new_layers: true, ..Unread::default() };
        let mut sight = Sight::default();
        assert_eq!(first(&mut sight, imagefs, unread, 1), Err(SOON));
        let nodefs = Shortage { signals: &[Signal::NodeFsAvailable], layout: APART };
        assert_eq!(
            first(&mut sight, nodefs, unread, 2),
            Ok(nodefs.signals[0]),
            "no layer lies there"
        );
        assert_eq!(first(&mut sight, imagefs, unread, 3), Err(SOON));
        assert_eq!(first(&mut sight, imagefs, unread, 123), Ok(imagefs.signals[0]), "long enough");
    }

    #[test]
    fn missing_volume_usage_delays_eviction_up_to_a_limit_not_for_each_victim() {
        let signals = &[Signal::NodeFsInodesFree];
        let nodefs = Shortage { signals, layout: DiskLayout::default() };
        let unread = Unread { volumes: true, ..Unread::default() };
        let mut sight = Sight::default();
        assert_eq!(first(&mut sight, nodefs, unread, 1), Err(SOON));
        assert_eq!(
            first(&mut sight, nodefs, Unread::default(), 60),
            Ok(nodefs.signals[0]),
            "counted"
        );
        assert_eq!(first(&mut sight, nodefs, unread, 100), Err(SOON), "the wait begins again");
        assert_eq!(first(&mut sight, nodefs, unread, 219), Err(SOON));
        assert_eq!(first(&mut sight, nodefs, unread, 220), Ok(nodefs.signals[0]), "long enough");
        assert_eq!(
            first(&mut sight, nodefs, unread, 230),
            Ok(nodefs.signals[0]),
            "the next victim"
        );
        sight.rest();
        assert_eq!(first(&mut sight, nodefs, unread, 240), Err(SOON), "another shortage");
        let of_images = Shortage { signals: &[Signal::ImageFsAvailable], layout: APART };
        assert_eq!(
            first(&mut sight, of_images, unread, 241),
            Ok(of_images.signals[0]),
            "none there"
        );
    }

    #[test]
    fn pods_are_counted_in_advance_only_while_a_disk_nears_a_threshold() {
        let counts = |sight: &mut Sight, (signal, layout), percent: u64, seconds| {
            let settings = Settings { thresholds: vec![threshold(signal)], ..Settings::default() };
            let reading =
                ResourceReading { available: percent, capacity: 100, ..ResourceReading::default() };
            let readings = [(signal, reading)].into();
            sight.see(&settings, &Observation { readings, layout, ..Observation::default() });
            sight.counts(at(seconds))
        };
        let apart = (Signal::ImageFsAvailable, APART);
        assert!(!counts(&mut Sight::default(), apart, 11, 10), "no volume lies there");
        assert!(counts(&mut Sight::default(), (Signal::NodeFsAvailable, APART), 11, 10));
        let (one, mut sight) = ((Signal::NodeFsAvailable, DiskLayout::default()), Sight::default());
        let mut counts = |percent, seconds| counts(&mut sight, one, percent, seconds);
        assert!(!counts(13, 0), "there is enough");
        assert!(counts(11, 10) && !counts(11, 60) && counts(9, 70), "once in a while");
        assert!(!counts(50, 200));
    }
}
