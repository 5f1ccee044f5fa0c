//! The order of calls that CSI demands of an orchestrator, checked for each volume on each node.
//!
//! Pure. Input: the volume as it is, and a call. Output: what the call has to do, or a `Violation`,
//! which is logged and answered with FailedPrecondition, so that a test fails even where the caller
//! would go on. An idempotent repetition is no violation.

use tonic::Status;

use crate::state::{OnNode, Publication, VolumeState};

/// A call that the orchestrator must not make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) String);

impl From<Violation> for Status {
    fn from(violation: Violation) -> Self {
        Self::failed_precondition(format!("lifecycle violation: {}", violation.0))
    }
}

/// What is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Todo {
    /// The effect of the call.
    Effect,
    /// Nothing: it is a repetition.
    Nothing,
    /// Nothing, but the repetition differs from the first call.
    Incompatible,
}

/// The calls for one volume on one node.
#[derive(Debug)]
pub(crate) struct Checker<'a> {
    pub(crate) volume: &'a VolumeState,
    pub(crate) node: &'a str,
    pub(crate) stages: bool,
    pub(crate) attaches: bool,
}

impl Checker<'_> {
    fn here(&self) -> OnNode {
        self.volume.nodes.get(self.node).cloned().unwrap_or_default()
    }

    fn check_attached(&self, call: &str) -> Result<(), Violation> {
        match !self.attaches || self.volume.attached.contains_key(self.node) {
            true => Ok(()),
            false => Err(Violation(format!("{call} of a volume that is not attached here"))),
        }
    }

    /// NodeStageVolume.
    pub(crate) fn stage(&self, path: &str, capability: &str) -> Result<Todo, Violation> {
        self.check_attached("stage")?;
        let here = self.here();
        if let Some(staged) = here.staged.get(path) {
            return Ok(if staged == capability { Todo::Nothing } else { Todo::Incompatible });
        }
        match here.staged.keys().next() {
            Some(other) => Err(Violation(format!("stage at {path} of a volume staged at {other}"))),
            None => Ok(Todo::Effect),
        }
    }

    /// NodeUnstageVolume.
    pub(crate) fn unstage(&self, path: &str) -> Result<Todo, Violation> {
        let here = self.here();
        if !here.staged.contains_key(path) {
            return Ok(Todo::Nothing);
        }
        match here.published.keys().next() {
            Some(target) => {
                Err(Violation(format!("unstage of a volume that is published at {target}")))
            }
            None => Ok(Todo::Effect),
        }
    }

    /// NodePublishVolume.
    pub(crate) fn publish(
        &self,
        target: &str,
        staging: &str,
        wanted: &Publication,
    ) -> Result<Todo, Violation> {
        let here = self.here();
        if !self.volume.is_ephemeral {
            self.check_attached("publish")?;
            if self.stages && !here.staged.contains_key(staging) {
                return Err(Violation(format!("publish of a volume not staged at {staging:?}")));
            }
        }
        match here.published.get(target) {
            Some(published) if published == wanted => Ok(Todo::Nothing),
            Some(_) => Ok(Todo::Incompatible),
            None => Ok(Todo::Effect),
        }
    }

    /// NodeUnpublishVolume.
    pub(crate) fn unpublish(&self, target: &str) -> Todo {
        match self.here().published.contains_key(target) {
            true => Todo::Effect,
            false => Todo::Nothing,
        }
    }

    /// ControllerUnpublishVolume.
    pub(crate) fn detach(&self) -> Result<Todo, Violation> {
        if self.here() != OnNode::default() {
            return Err(Violation(format!(
                "detach from {}, where the volume is in use",
                self.node
            )));
        }
        Ok(if self.volume.attached.contains_key(self.node) { Todo::Effect } else { Todo::Nothing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Attachment;

    const NODE: &str = "n";

    fn checker(volume: &VolumeState) -> Checker<'_> {
        Checker { volume, node: NODE, stages: true, attaches: true }
    }

    fn attached() -> VolumeState {
        let attachment = Attachment { is_read_only: false, capability: String::new() };
        VolumeState { attached: [(NODE.to_owned(), attachment)].into(), ..Default::default() }
    }

    fn publication(is_read_only: bool) -> Publication {
        Publication { is_read_only, capability: "c".to_owned() }
    }

    #[test]
    fn call_out_of_order_is_a_violation() {
        let mut volume = VolumeState::default();
        assert!(checker(&volume).stage("/s", "c").is_err(), "not attached");
        volume = attached();
        assert_eq!(checker(&volume).stage("/s", "c"), Ok(Todo::Effect));
        assert!(checker(&volume).publish("/t", "/s", &publication(false)).is_err(), "not staged");
        let here = volume.nodes.entry(NODE.to_owned()).or_default();
        here.staged.insert("/s".to_owned(), "c".to_owned());
        assert!(checker(&volume).stage("/other", "c").is_err(), "staged elsewhere");
        assert_eq!(checker(&volume).publish("/t", "/s", &publication(false)), Ok(Todo::Effect));
        assert!(checker(&volume).detach().is_err(), "staged");
        let here = volume.nodes.entry(NODE.to_owned()).or_default();
        here.published.insert("/t".to_owned(), publication(false));
        assert!(checker(&volume).unstage("/s").is_err(), "published");
    }

    #[test]
    fn repetition_is_no_violation_but_may_be_incompatible() {
        let mut volume = attached();
        let here = volume.nodes.entry(NODE.to_owned()).or_default();
        here.staged.insert("/s".to_owned(), "c".to_owned());
        here.published.insert("/t".to_owned(), publication(false));
        let checker = checker(&volume);
        assert_eq!(checker.stage("/s", "c"), Ok(Todo::Nothing));
        assert_eq!(checker.stage("/s", "d"), Ok(Todo::Incompatible));
        assert_eq!(checker.publish("/t", "/s", &publication(false)), Ok(Todo::Nothing));
        assert_eq!(checker.publish("/t", "/s", &publication(true)), Ok(Todo::Incompatible));
        assert_eq!(checker.unpublish("/other"), Todo::Nothing);
        assert_eq!(checker.unstage("/other"), Ok(Todo::Nothing));
    }

    #[test]
    fn driver_that_neither_stages_nor_attaches_demands_neither() {
        let volume = VolumeState::default();
        let checker = Checker { volume: &volume, node: NODE, stages: false, attaches: false };
        assert_eq!(checker.publish("/t", "", &publication(false)), Ok(Todo::Effect));
        assert_eq!(checker.detach(), Ok(Todo::Nothing));
    }
}
