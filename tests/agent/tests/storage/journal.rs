//! What a driver's log says about the agents that called it. Pure.
//!
//! Input: the lines of the log. Output: a sentence for each call that no agent may make: one out of
//! order, one with other arguments than the call that it repeats, and one that stages a volume again
//! although the same agent knows that it is staged and has not begun to unstage it. A later agent
//! may repeat the call: it cannot know how far the one before it came.

use std::collections::BTreeSet;

use pintle_csi_driver::log::{Line, Phase};

const STAGE: &str = "NodeStageVolume";
const UNSTAGE: &str = "NodeUnstageVolume";
/// The driver's answer to a repetition with other arguments.
const DIFFERS: &str = "AlreadyExists";

/// The calls that must not have been.
pub fn faults(lines: &[Line]) -> Vec<String> {
    let mut staged = BTreeSet::new();
    let mut faults = Vec::new();
    for line in lines {
        let of_agent = (line.caller, line.volume.clone());
        match (line.phase, line.method.as_str()) {
            (Phase::Violation, _) => faults.push(said(line)),
            (Phase::End, _) if line.text == DIFFERS => faults.push(said(line)),
            (Phase::End, STAGE) if line.is_success() => drop(staged.insert(of_agent)),
            (Phase::Begin, UNSTAGE) => drop(staged.remove(&of_agent)),
            (Phase::Begin, STAGE) if staged.contains(&of_agent) => {
                faults.push(format!("staged again: {}", said(line)));
            }
            _ => {}
        }
    }
    faults
}

/// Volumes that were staged once at least.
pub fn staged_volumes(lines: &[Line]) -> BTreeSet<&str> {
    let staged = lines.iter().filter(|line| line.method == STAGE && line.is_success());
    staged.map(|line| line.volume.as_str()).collect()
}

fn said(line: &Line) -> String {
    format!("{} of {} by {}: {}", line.method, line.volume, line.caller, line.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(phase: Phase, method: &str, caller: i32, text: &str) -> Line {
        let (node, path) = ("n".to_owned(), String::new());
        let (volume, method, text) = ("v".to_owned(), method.to_owned(), text.to_owned());
        Line { phase, node, process: 1, caller, call: 1, method, volume, path, text }
    }

    fn call(method: &str, caller: i32, code: &str) -> [Line; 2] {
        [line(Phase::Begin, method, caller, "{}"), line(Phase::End, method, caller, code)]
    }

    #[test]
    fn staging_a_volume_twice_is_a_fault_only_within_the_same_agent() {
        let two = |by: i32| [call(STAGE, 1, "Ok"), call(STAGE, by, "Ok")].concat();
        assert_eq!(faults(&two(1)).len(), 1);
        assert!(faults(&two(2)).is_empty());
        let lost = [call(STAGE, 1, "Aborted"), call(STAGE, 1, "Ok")].concat();
        assert!(faults(&lost).is_empty(), "the first call may have had no effect");
        let again = [call(STAGE, 1, "Ok"), call(UNSTAGE, 1, "Ok"), call(STAGE, 1, "Ok")].concat();
        assert!(faults(&again).is_empty());
        assert_eq!(staged_volumes(&again), BTreeSet::from(["v"]));
    }

    #[test]
    fn call_out_of_order_or_with_other_arguments_is_a_fault() {
        assert_eq!(faults(&call(STAGE, 1, DIFFERS)).len(), 1);
        assert_eq!(faults(&[line(Phase::Violation, UNSTAGE, 1, "published")]).len(), 1);
    }
}
