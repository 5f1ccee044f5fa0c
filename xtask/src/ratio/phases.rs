//! The phases of the comparison to run: all, or those that `PINTLE_BENCH_PHASES` names.

use anyhow::{Result, bail, ensure};

/// A phase after the burst of starts, which all others need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// CPU and memory while nothing happens.
    Idle,
    /// Killed containers.
    Deaths,
    /// All pods deleted at once.
    Deletion,
    /// An exec probe a second in half as many pods.
    Probes,
}

const NAMES: [(&str, Phase); 4] = [
    ("idle", Phase::Idle),
    ("deaths", Phase::Deaths),
    ("deletion", Phase::Deletion),
    ("probes", Phase::Probes),
];

/// The phases of a run.
#[derive(Clone, Copy, Debug)]
pub struct Phases([bool; NAMES.len()]);

impl Phases {
    /// The phases that the environment names.
    pub(super) fn asked() -> Result<Self> {
        match std::env::var("PINTLE_BENCH_PHASES") {
            Ok(text) => Self::named(&text),
            Err(_) => Ok(Self([true; NAMES.len()])),
        }
    }

    /// Those of a list with commas.
    fn named(text: &str) -> Result<Self> {
        let mut phases = Self([false; NAMES.len()]);
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let Some(place) = NAMES.iter().position(|(name, _)| *name == word) else {
                let known = NAMES.map(|(name, _)| name).join(", ");
                bail!("PINTLE_BENCH_PHASES names phases of {known}, not {word:?}");
            };
            phases.0[place] = true;
        }
        ensure!(phases.0.contains(&true), "PINTLE_BENCH_PHASES names no phase");
        Ok(phases)
    }

    /// Returns whether the phase is to run.
    pub(super) fn has(self, phase: Phase) -> bool {
        NAMES.iter().zip(self.0).any(|((_, named), asked)| asked && *named == phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_those_that_are_named() {
        let some = Phases::named("idle, deletion").expect("two phases");
        let has = NAMES.map(|(_, phase)| some.has(phase));
        assert_eq!(has, [true, false, true, false]);
        for (text, told) in [("idle,sleep", "\"sleep\""), (" ,", "no phase")] {
            let refused = Phases::named(text).expect_err(text).to_string();
            assert!(refused.contains(told), "{refused}");
        }
    }
}
