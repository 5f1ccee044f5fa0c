//! The sets of tests whose results with the kubelet are recorded. Pure.
//!
//! Ginkgo chooses a set by labels and, for tests that run alone, by their subjects:
//! much of the suite is about devices, NUMA, huge pages or swap, which no test host has.

use std::collections::BTreeSet;

/// Tests that every node ought to pass, without the serial ones.
const USUAL: &str = "NodeConformance && !Serial && !Slow && !Flaky";
/// Tests that run alone.
const SERIAL: &str = "(Serial || Slow) && !Flaky";
/// Subjects that the tests that run alone are limited to.
const AREAS: [&str; 32] = [
    "InodeEviction",
    "ImageGCNoEviction",
    "ImageGCTerminatedPodsContainersCleanup",
    "MemoryAllocatableEviction",
    "LocalStorageEviction",
    "LocalStorageSoftEviction",
    "LocalStorageCapacityIsolation",
    "PriorityMemoryEvictionOrdering",
    "PriorityLocalStorageEvictionOrdering",
    "PriorityPidEvictionOrdering",
    "SystemNodeCriticalPod",
    "ImageGarbageCollect",
    "GarbageCollect",
    "CriticalPod",
    "GracefulNodeShutdown",
    "OOMKiller",
    "ContainerLogRotation",
    "PodPidsLimit",
    "Restart \\[Serial\\]",
    "Unknown Pods",
    "StaticPod",
    "MirrorPod",
    "Node Container Manager",
    "Container Manager Misc",
    "Containers Lifecycle",
    "Pods status phase",
    "Kubelet Endpoints",
    "KubletTLS",
    "ReloadKubeletClientCAFileTest",
    "Kubelet Config",
    "OSArchLabelReconciliation",
    "Feature:EphemeralStorage",
];

/// Tests that are run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Several at once.
    Usual,
    /// One by one, on a node with a disk of its own, which some of them fill.
    Serial,
    /// One by one, in an emulated machine: the tests that the exceptions exclude on the test host.
    Guest,
    /// Those of the usual set in a User-Mode Linux guest, on cgroup v2 with systemd.
    CgroupV2,
}

impl Set {
    /// Those that the test host runs.
    pub(super) const OF_THE_HOST: [Self; 2] = [Self::Usual, Self::Serial];

    /// Results of the tests with the kubelet.
    pub(super) fn list(self) -> &'static str {
        match self {
            Self::Usual | Self::CgroupV2 => "tests/upstream/node.txt",
            Self::Serial => "tests/upstream/node-serial.txt",
            Self::Guest => "tests/upstream/node-guest.txt",
        }
    }

    /// Tests that are known to fail or cannot be tried, each with the reason.
    pub(super) fn exceptions(self) -> &'static str {
        match self {
            Self::Usual | Self::Serial => "tests/upstream/node-exceptions.txt",
            Self::Guest => "tests/upstream/node-guest-exceptions.txt",
            Self::CgroupV2 => "tests/upstream/node-v2-exceptions.txt",
        }
    }

    /// Sets with the same exceptions, which name tests of theirs only.
    pub(super) fn siblings(self) -> &'static [Self] {
        match self {
            Self::Usual | Self::Serial => &Self::OF_THE_HOST,
            Self::Guest => &[Self::Guest],
            Self::CgroupV2 => &[Self::CgroupV2],
        }
    }

    /// Suffix of its report folders, which differ by set.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Usual => "",
            Self::Serial => "-serial",
            Self::Guest => "-guest",
            Self::CgroupV2 => "-v2",
        }
    }

    /// Returns whether its node is a machine of its own with systemd, not a cluster's node.
    pub(super) fn is_of_guest(self) -> bool {
        matches!(self, Self::Guest | Self::CgroupV2)
    }

    /// Ginkgo arguments that choose it.
    pub(super) fn filters(self) -> Vec<String> {
        match self {
            Self::Usual | Self::CgroupV2 => vec![format!("--label-filter={USUAL}")],
            Self::Serial | Self::Guest => {
                let areas = AREAS.join("|");
                vec![format!("--label-filter={SERIAL}"), format!("--focus=({areas})")]
            }
        }
    }
}

/// A pattern that matches these tests and no other. Ginkgo puts one space between the parts of a
/// name, also around an empty part, where names in reports have two.
pub(super) fn pattern(names: &BTreeSet<String>) -> String {
    let words = |name: &String| {
        let words = name.split(' ').filter(|word| !word.is_empty());
        words.map(escaped).collect::<Vec<_>>().join(" +")
    };
    format!("({})$", names.iter().map(words).collect::<Vec<_>>().join("|"))
}

fn escaped(word: &str) -> String {
    let mut text = String::with_capacity(word.len());
    for c in word.chars() {
        if c.is_ascii_punctuation() {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_takes_names_literally_but_for_the_spaces_of_parts_without_a_text() {
        let names = ["[a] b  should (c=1)".to_owned(), "d.e".to_owned()];
        let made = pattern(&names.into());
        assert_eq!(made, r"(\[a\] +b +should +\(c\=1\)|d\.e)$");
    }

    #[test]
    fn sets_have_lists_and_folders_of_their_own() {
        let [usual, serial] = Set::OF_THE_HOST;
        assert_ne!(usual.list(), serial.list());
        assert_ne!(usual.suffix(), serial.suffix());
        assert_ne!(serial.list(), Set::Guest.list());
        assert_ne!(serial.suffix(), Set::Guest.suffix());
        assert_ne!(serial.exceptions(), Set::Guest.exceptions());
        assert_ne!(usual.suffix(), Set::CgroupV2.suffix());
        assert_ne!(usual.exceptions(), Set::CgroupV2.exceptions());
    }
}
