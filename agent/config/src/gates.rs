//! Feature gates: which are on, after the file and the flags have had their say.
//!
//! Input: `name=bool` pairs merged key by key, flags over file. Output: [`FeatureGates`], or one
//! error for each name that 1.36 does not know and each locked gate that was to be switched.
//! `AllAlpha` and `AllBeta` switch their stage as a whole, before single gates do.
//!
//! // k8s: staging/src/k8s.io/component-base/featuregate/feature_gate.go SetFromMap

use std::collections::BTreeMap;

use super::ConfigError;
use super::gate_table::{GATES, Gate, Stage};
use super::suggest;

/// Gates that switch a whole stage.
const GROUPS: [(&str, Stage); 2] = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];

/// The state of every gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    /// Only gates that differ from their default.
    changed: BTreeMap<&'static str, bool>,
}

impl FeatureGates {
    /// Checks and applies what was asked for.
    pub fn new(asked: &BTreeMap<String, bool>) -> Result<Self, Vec<ConfigError>> {
        let mut gates = Self::default();
        let mut errors = Vec::new();
        for (group, stage) in GROUPS {
            if let Some(on) = asked.get(group) {
                gates.switch_stage(stage, *on);
            }
        }
        for (name, on) in asked {
            if GROUPS.iter().any(|(group, _)| group == name) {
                continue;
            }
            match GATES.iter().find(|gate| gate.name == name) {
                None => errors.push(unknown(name, *on)),
                Some(gate) if gate.locked && gate.default != *on => errors.push(locked(gate, *on)),
                Some(gate) => gates.switch(gate, *on),
            }
        }
        if errors.is_empty() { Ok(gates) } else { Err(errors) }
    }

    /// Whether the feature is on; false for a name that no gate has.
    pub fn enabled(&self, name: &str) -> bool {
        self.changed.get(name).copied().unwrap_or_else(|| {
            GATES.iter().find(|gate| gate.name == name).is_some_and(|gate| gate.default)
        })
    }

    fn switch_stage(&mut self, stage: Stage, on: bool) {
        for gate in GATES.iter().filter(|gate| gate.stage == stage && !gate.locked) {
            self.switch(gate, on);
        }
    }

    fn switch(&mut self, gate: &'static Gate, on: bool) {
        if gate.default == on {
            self.changed.remove(gate.name);
        } else {
            self.changed.insert(gate.name, on);
        }
    }
}

fn unknown(name: &str, on: bool) -> ConfigError {
    let names = GATES.iter().map(|gate| gate.name);
    ConfigError::new(
        "featureGates",
        format!("{name}={on}"),
        format!("no feature gate of Kubernetes 1.36 is named {name}"),
        suggest::did_you_mean(name, names).unwrap_or_else(|| "remove it".to_owned()),
    )
}

fn locked(gate: &Gate, on: bool) -> ConfigError {
    ConfigError::new(
        "featureGates",
        format!("{}={on}", gate.name),
        format!("{} is locked to {} in Kubernetes 1.36", gate.name, gate.default),
        "remove it".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(asked: &[(&str, bool)]) -> Result<FeatureGates, Vec<ConfigError>> {
        FeatureGates::new(&asked.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect())
    }

    #[test]
    fn defaults_hold_until_a_gate_is_switched() {
        let gates = gates(&[("EventedPLEG", true), ("EnvFiles", false)]).expect("valid");
        assert!(gates.enabled("EventedPLEG"));
        assert!(!gates.enabled("EnvFiles"));
        assert!(gates.enabled("SidecarContainers"));
        assert!(!gates.enabled("NoSuchGate"));
    }

    #[test]
    fn a_whole_stage_is_switched_before_single_gates() {
        let gates = gates(&[("AllAlpha", true), ("EventedPLEG", false)]).expect("valid");
        assert!(gates.enabled("MemoryQoS"));
        assert!(!gates.enabled("EventedPLEG"));
    }

    #[test]
    fn unknown_and_locked_gates_are_reported_together() {
        let asked = [("SideCarContainers", true), ("NodeSwap", false), ("KubeletPSI", true)];
        let errors = gates(&asked).expect_err("two are wrong");
        let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(text.len(), 2, "{text:?}");
        assert!(text[0].contains("NodeSwap is locked to true"), "{text:?}");
        assert!(text[1].contains("did you mean SidecarContainers"), "{text:?}");
    }

    #[test]
    fn names_are_unique_and_only_finished_gates_are_locked() {
        for (index, gate) in GATES.iter().enumerate() {
            assert!(GATES[..index].iter().all(|other| other.name != gate.name), "{}", gate.name);
            if gate.locked {
                assert!(matches!(gate.stage, Stage::Ga | Stage::Deprecated), "{}", gate.name);
            }
        }
    }
}
