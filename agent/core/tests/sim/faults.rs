//! The faults of a world, as a set: presets for faults to test alone, and sets that a seed draws,
//! because a fault that is absent in one world makes room for others.

use crate::rng::Rng;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Calls of the runtime fail, before they had an effect or after.
    Calls,
    /// Hints are lost.
    Hints,
    /// The agent dies after some step and starts again.
    Crashes,
    /// Sandboxes die with all that is in them.
    Sandboxes,
    /// Pods come from an API server that lags, refuses, forgets and becomes unreachable.
    Api,
    /// The first lists after a start fail.
    Lists,
    /// Images cannot be pulled, for a while or ever.
    Images,
    /// Containers get sick, become ready late, or take time to start.
    Probes,
    /// Volumes cannot be made ready for a while, or taken away.
    Volumes,
    /// Hooks after the start fail.
    Hooks,
    /// The wall clock is set.
    Clock,
    /// Records cannot be written.
    Disk,
    /// Streams of hints break and are opened again.
    Streams,
    /// The watch of the node is late, and it is labelled late.
    Node,
    /// Specs change: images, resources, containers to debug with.
    Edits,
    /// Pods may run for a limited time.
    Deadlines,
    /// The store of the API server is restored from an older copy.
    Restored,
    /// The machine shuts down, or is about to and stays up. Never drawn: such a world ends early.
    Shutdown,
    /// Pods take more memory than there is.
    Memory,
    /// A user ends the waits of pods.
    Retries,
}

const ALL: [Fault; 18] = [
    Fault::Calls,
    Fault::Hints,
    Fault::Crashes,
    Fault::Sandboxes,
    Fault::Api,
    Fault::Lists,
    Fault::Images,
    Fault::Probes,
    Fault::Volumes,
    Fault::Hooks,
    Fault::Clock,
    Fault::Disk,
    Fault::Streams,
    Fault::Node,
    Fault::Edits,
    Fault::Deadlines,
    Fault::Restored,
    Fault::Retries,
];

/// A set of faults.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Faults(u32);

impl Faults {
    pub const CALM: Self = Self(0);
    pub const CALLS: Self = Self::CALM.and(Fault::Calls).and(Fault::Hints);
    pub const CRASHES: Self = Self::CALM.and(Fault::Crashes).and(Fault::Hints);
    pub const ALL: Self = Self::CALLS.and(Fault::Crashes).and(Fault::Sandboxes);
    pub const API: Self = Self::CALM.and(Fault::Api);
    pub const API_CRASHES: Self = Self::CRASHES.and(Fault::Api);
    pub const SHUTDOWN: Self = Self::CALM.and(Fault::Hints).and(Fault::Shutdown);
    pub const SHUTDOWN_CRASHES: Self = Self::SHUTDOWN.and(Fault::Crashes);

    /// Every kind with a chance of its own.
    pub fn drawn(seed: u64) -> Self {
        // Apart from the numbers of the world itself.
        let mut rng = Rng::new(!seed);
        let chance = *rng.pick(&[15, 35, 60]);
        let drawn = |set: Self, fault: &Fault| match rng.chance(chance) {
            true => set.and(*fault),
            false => set,
        };
        let set = ALL.iter().fold(Self::CALM, drawn);
        if rng.chance(50) { set.and(Fault::Api) } else { set }
    }

    pub const fn and(self, fault: Fault) -> Self {
        Self(self.0 | 1 << fault as u32)
    }

    pub const fn has(self, fault: Fault) -> bool {
        self.0 & 1 << fault as u32 != 0
    }
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(ALL.iter().filter(|fault| self.has(**fault))).finish()
    }
}
