//! What goes wrong: rules in the file `faults.json` of the state folder, which tests write.
//!
//! Input: the method and volume of a call. Output: the first rule that matches, if any; one with a
//! number of times is used up in the file before it takes effect, so that a driver that dies of it
//! does not die again. A call that hangs goes on when its rule is gone from the file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

/// How often a hanging call looks whether it may go on.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// When it happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// Before the call has an effect.
    #[default]
    Before,
    /// After the effect: the answer is lost.
    After,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// The call fails with this gRPC code.
    Fail {
        /// Number of the code.
        code: i32,
        /// Words for the caller.
        message: String,
    },
    /// The call hangs until its rule is gone.
    Hang,
    /// The call takes this much longer.
    Delay {
        /// How much.
        milliseconds: u64,
    },
    /// The process ends at once.
    Die,
    /// The call succeeds and its message is sent twice, which is no answer of a unary method.
    Twice,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Method of CSI or of the registration, such as `NodeStageVolume`.
    pub method: String,
    /// Text that the id or the name of the volume contains; empty for all calls of the method.
    #[serde(default)]
    pub volume: String,
    /// How many calls it hits; absent for all.
    #[serde(default)]
    pub times: Option<u32>,
    /// When it happens.
    #[serde(default)]
    pub moment: Moment,
    /// What happens.
    pub fault: Fault,
}

impl Rule {
    /// One for all calls of a method, before their effect.
    pub fn new(method: &str, fault: Fault) -> Self {
        let (volume, times) = (String::new(), None);
        Self { method: method.to_owned(), volume, times, moment: Moment::Before, fault }
    }

    /// Hits only the next calls.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }

    /// Takes place after the effect.
    #[must_use]
    pub fn after(self) -> Self {
        Self { moment: Moment::After, ..self }
    }

    fn hits(&self, method: &str, volume: &str) -> bool {
        self.method == method && volume.contains(&self.volume) && self.times != Some(0)
    }
}

/// The file of rules.
#[derive(Clone, Debug)]
pub struct FaultFile {
    path: PathBuf,
}

impl FaultFile {
    /// The file in a state folder.
    pub fn new(state: &Path) -> Self {
        Self { path: state.join("faults.json") }
    }

    /// Replaces all rules.
    pub fn write(&self, rules: &[Rule]) -> io::Result<()> {
        let new = self.path.with_extension("new");
        fs::write(&new, serde_json::to_vec_pretty(rules)?)?;
        fs::rename(new, &self.path)
    }

    fn read(&self) -> io::Result<Vec<Rule>> {
        match fs::read(&self.path) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the next call of a method is to be answered twice; uses nothing up.
    pub(crate) fn is_doubled(&self, method: &str) -> bool {
        let is_it = |rule: &Rule| rule.fault == Fault::Twice && rule.hits(method, &rule.volume);
        self.read().is_ok_and(|rules| rules.iter().any(is_it))
    }

    /// The rule that a call is subject to, used up once.
    pub(crate) fn take(&self, method: &str, volume: &str) -> io::Result<Option<Rule>> {
        let mut rules = self.read()?;
        let Some(found) = rules.iter_mut().find(|rule| rule.hits(method, volume)) else {
            return Ok(None);
        };
        let rule = found.clone();
        // A rule that hangs stays until a test removes it, since that is what ends the hanging.
        if let Some(times) = found.times.as_mut() {
            *times -= 1;
            self.write(&rules)?;
        }
        Ok(Some(rule))
    }

    /// Carries a rule out, if this is its moment.
    pub(crate) async fn act(&self, rule: Option<&Rule>, moment: Moment) -> Result<(), Status> {
        let Some(rule) = rule.filter(|rule| rule.moment == moment) else { return Ok(()) };
        match &rule.fault {
            Fault::Fail { code, message } => Err(Status::new(Code::from(*code), message)),
            Fault::Delay { milliseconds } => {
                tokio::time::sleep(Duration::from_millis(*milliseconds)).await;
                Ok(())
            }
            Fault::Hang => {
                let is_same =
                    |other: &Rule| other.method == rule.method && other.fault == Fault::Hang;
                while self.read().is_ok_and(|rules| rules.iter().any(is_same)) {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Ok(())
            }
            Fault::Die => std::process::abort(),
            Fault::Twice => Ok(()), // the body of the answer is what is wrong
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_applies_to_its_method_and_volume_for_its_number_of_times() {
        let temp = tempfile::tempdir().expect("a folder");
        let file = FaultFile::new(temp.path());
        assert!(file.take("NodeStageVolume", "vol-1").expect("no file").is_none());
        let mut rule = Rule::new("NodeStageVolume", Fault::Die).times(1);
        rule.volume = "vol-1".to_owned();
        file.write(std::slice::from_ref(&rule)).expect("written");
        assert!(file.take("NodeStageVolume", "vol-2").expect("read").is_none());
        assert!(file.take("NodePublishVolume", "vol-1").expect("read").is_none());
        assert_eq!(file.take("NodeStageVolume", "vol-1").expect("read"), Some(rule));
        assert!(file.take("NodeStageVolume", "vol-1").expect("read").is_none(), "used up");
    }

    #[test]
    fn method_is_doubled_until_its_rule_is_used_up() {
        let temp = tempfile::tempdir().expect("a folder");
        let file = FaultFile::new(temp.path());
        assert!(!file.is_doubled("NodeStageVolume"), "no file");
        file.write(&[Rule::new("NodeStageVolume", Fault::Twice).times(1)]).expect("written");
        assert!(file.is_doubled("NodeStageVolume") && !file.is_doubled("NodePublishVolume"));
        file.take("NodeStageVolume", "vol-1").expect("read");
        assert!(!file.is_doubled("NodeStageVolume"), "used up");
    }

    #[tokio::test]
    async fn fault_acts_at_its_moment_only() {
        let temp = tempfile::tempdir().expect("a folder");
        let file = FaultFile::new(temp.path());
        let fault = Fault::Fail { code: Code::Aborted as i32, message: "pending".to_owned() };
        let rule = Rule::new("NodeStageVolume", fault).after();
        assert!(file.act(Some(&rule), Moment::Before).await.is_ok());
        let status = file.act(Some(&rule), Moment::After).await.expect_err("it fails");
        assert_eq!((status.code(), status.message()), (Code::Aborted, "pending"));
        assert!(file.act(None, Moment::After).await.is_ok());
    }
}
