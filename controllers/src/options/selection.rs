//! `--controllers`: which controllers run.
//!
//! Input: the flag's list, and which gates are on. Output: canonical names, and for each controller
//! whether it runs. The first entry that names a controller counts; without one, `*` runs all that
//! are on by default. Pure.
// k8s: staging/src/k8s.io/controller-manager/app/helper.go IsControllerEnabled;
// staging/src/k8s.io/controller-manager/options/generic.go Validate, ApplyTo

use pintle_config::error::ConfigError;
use pintle_config::suggest;
use pintle_controllers_core::names::{CONTROLLERS, ControllerNames, StartMode};

/// Which controllers run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The flag's entries with canonical names.
    pub entries: Vec<String>,
}

/// Why a controller does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    /// `--controllers` leaves it out.
    Disabled,
    /// This feature gate is off.
    Gate(&'static str),
    /// It belongs to a cloud provider's manager.
    Cloud,
}

impl Selection {
    /// Reads the flag's entries.
    ///
    /// # Errors
    /// One for each name that no controller has.
    pub fn parse(entries: &[String]) -> Result<Self, Vec<ConfigError>> {
        let (mut canonical, mut errors) = (Vec::new(), Vec::new());
        for entry in entries {
            let name = entry.strip_prefix('-').unwrap_or(entry);
            let sign = if name.len() < entry.len() { "-" } else { "" };
            match ControllerNames::find(name) {
                _ if entry == "*" => canonical.push(entry.clone()),
                Some(controller) => canonical.push(format!("{sign}{}", controller.name)),
                None => errors.push(unknown(entry, name)),
            }
        }
        if errors.is_empty() { Ok(Self { entries: canonical }) } else { Err(errors) }
    }

    /// Why the controller does not run; `None` when it does. `is_on` answers for feature gates.
    pub fn absence(&self, of: &ControllerNames, is_on: impl Fn(&str) -> bool) -> Option<Absence> {
        if of.start != StartMode::First && !self.names(of) {
            return Some(Absence::Disabled);
        }
        if let Some(gate) = of.gates.iter().find(|gate| !is_on(gate)) {
            return Some(Absence::Gate(gate));
        }
        (of.start == StartMode::Cloud).then_some(Absence::Cloud)
    }

    /// The controllers of cloud providers that an entry names.
    pub fn names_cloud(&self) -> impl Iterator<Item = &'static str> {
        let cloud = CONTROLLERS.iter().filter(|one| one.start == StartMode::Cloud);
        cloud.map(|one| one.name).filter(|name| self.entries.iter().any(|entry| entry == name))
    }

    /// True if an entry disables the controller that always starts.
    pub fn leaves_out_first(&self) -> bool {
        let mut first = CONTROLLERS.iter().filter(|one| one.start == StartMode::First);
        first.any(|one| self.entries.iter().any(|entry| entry.strip_prefix('-') == Some(one.name)))
    }

    fn names(&self, controller: &ControllerNames) -> bool {
        for entry in &self.entries {
            if entry == controller.name {
                return true;
            }
            if entry.strip_prefix('-') == Some(controller.name) {
                return false;
            }
        }
        self.entries.iter().any(|entry| entry == "*") && controller.is_on_by_default
    }
}

fn unknown(entry: &str, name: &str) -> ConfigError {
    let names = CONTROLLERS.iter().map(|controller| controller.name);
    let mut all: Vec<&str> = names.clone().collect();
    all.sort_unstable();
    let hint = suggest::did_you_mean(name, names).map(|hint| format!("{hint} "));
    let remedy = format!("{}the controllers are {}", hint.unwrap_or_default(), all.join(", "));
    ConfigError::new("--controllers", format!("{entry:?}"), "no controller has this name", remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(entries: &[&str]) -> Selection {
        let entries: Vec<String> = entries.iter().map(ToString::to_string).collect();
        Selection::parse(&entries).expect("known names")
    }

    fn runs(entries: &[&str], name: &str) -> bool {
        let controller = ControllerNames::find(name).expect("a controller");
        selection(entries).absence(controller, |_| true).is_none()
    }

    #[test]
    fn first_entry_that_names_a_controller_counts() {
        for (entries, name, expected) in [
            (&["*"][..], "job-controller", true),
            (&["*"], "bootstrap-signer-controller", false),
            (&["*", "bootstrapsigner"], "bootstrap-signer-controller", true),
            (&["*", "-job"], "job-controller", false),
            (&["-job", "job", "*"], "job-controller", false),
            (&["job", "-job"], "job-controller", true),
            (&["job"], "cronjob-controller", false),
            (&["-job-controller"], "cronjob-controller", false),
            (&["-serviceaccount-token-controller"], "serviceaccount-token-controller", true),
            (&["*", "service"], "service-lb-controller", false),
        ] {
            assert_eq!(runs(entries, name), expected, "{entries:?} {name}");
        }
    }

    #[test]
    fn gate_that_is_off_is_the_reason() {
        let controller = ControllerNames::find("device-taint-eviction-controller").expect("known");
        let absence = selection(&["*"]).absence(controller, |gate| gate != "DRADeviceTaints");
        assert_eq!(absence, Some(Absence::Gate("DRADeviceTaints")));
    }

    #[test]
    fn unknown_names_are_refused_with_all_that_exist() {
        let entries = ["*".to_owned(), "-jobs".to_owned(), "nope".to_owned()];
        let errors = Selection::parse(&entries).expect_err("two unknown names");
        assert_eq!(errors.len(), 2);
        let text = errors[0].to_string();
        assert!(
            text.starts_with("--controllers is \"-jobs\": no controller has this name"),
            "{text}"
        );
        assert!(text.contains("job-controller, ") && text.contains("ttl-controller"), "{text}");
    }

    #[test]
    fn entries_have_canonical_names() {
        assert_eq!(selection(&["*", "-podgc"]).entries, ["*", "-pod-garbage-collector-controller"]);
    }

    #[test]
    fn entries_that_name_cloud_controllers_are_found() {
        let named: Vec<_> = selection(&["*", "route"]).names_cloud().collect();
        assert_eq!(named, ["node-route-controller"]);
        assert!(selection(&["*", "-serviceaccount-token"]).leaves_out_first());
    }
}
