//! What a pod's volumes of drivers wait for: the stage, the driver, the call, since when, the remedy.
//!
//! Input: the entry of the timeline that the owner of these volumes keeps up to date. Pure.

use super::{ExplainSubject, Explanation, span, words};
use crate::storage::{Step, Waiting, disk};
use crate::sync::plan::Action;
use pintle_api_types::ids::{PodUid, UnixNanos};

/// The timeline's entry while volumes of drivers are waited for.
pub const WAITING: &str = "WaitingForVolumes";
/// The timeline's entry once they are there.
pub const READY: &str = "VolumesReady";
/// Volumes that are described one by one: a pod may name hundreds.
const SENTENCES_MAX: usize = 4;

/// Remedies by what is in the sentence; the first one that fits.
const REMEDIES: [(&str, &str); 10] = [
    (
        "not found in the list of registered CSI drivers",
        "see whether the driver's pod runs on this node and registers: its socket has to be below \
         plugins_registry of the agent's root directory",
    ),
    (
        "attach-detach controller",
        "see the VolumeAttachment of this volume and node, and the driver's attacher; a volume that \
         is still attached to another node has to be detached there first",
    ),
    ("ReadWriteOncePod", "wait until the other pod has ended, or use another access mode"),
    ("is under way", "wait; a driver that does not answer is given up after 2 min and asked again"),
    (
        "while expanding volume",
        "see the claim's conditions and the driver's log on this node; a claim that asks for less \
         lets the resizer give the expansion up",
    ),
    ("fetching secret", "make the secret that the PersistentVolume names"),
    ("in use before it is attached", "wait: the node's status is written within seconds"),
    (
        "iscsiadm cannot be run",
        "install open-iscsi on this node; iscsid has to run where the agent's programs run",
    ),
    (
        "any path for iscsi disk",
        "see whether the target's portals answer from this node, whether the target lets this \
         initiator in, and whether iscsid runs; it is tried again by itself",
    ),
    (
        "no fc disk found",
        "see whether the array shows the LUN to this node's adapters: ls /dev/disk/by-path",
    ),
];

/// What a volume waits for, in one sentence.
fn sentence(waiting: &Waiting) -> String {
    let Waiting { name, driver, .. } = waiting;
    match &waiting.step {
        Step::Report => format!(
            "volume {name} has to be named by the Node's status as in use before it is attached"
        ),
        Step::Attach if disk::is_plugin(driver) => {
            format!("volume {name} has to be attached to this node by the attach-detach controller")
        }
        Step::Attach => format!(
            "volume {name} has to be attached to this node by the attach-detach controller and the \
             attacher of driver {driver}"
        ),
        Step::Call(call) => format!("{} is under way for volume {name}", whose(call, driver)),
        Step::Other(call) => {
            format!("{} is under way for another pod of volume {name}", whose(call, driver))
        }
        Step::Pause { failure, .. } => failure.clone(),
        Step::Holders(pods) => {
            let pods: Vec<_> = pods.iter().map(PodUid::as_str).collect();
            format!("volume {name}: {} using it", words::list("pod", &pods))
        }
    }
}

/// A call with what it is made to: a driver, or the agent's own plugin of disks.
// k8s: pkg/volume/volume.go DeviceMounter, Mounter, Unmounter, DeviceUnmounter
fn whose(call: &str, driver: &str) -> String {
    if !disk::is_plugin(driver) {
        return format!("{call} of driver {driver}");
    }
    let own = match call {
        "NodeStageVolume" => "MountDevice",
        "NodePublishVolume" => "SetUp",
        "NodeUnpublishVolume" => "TearDown",
        "NodeUnstageVolume" => "UnmountDevice",
        other => other,
    };
    format!("{own} of plugin {driver}")
}

/// What volumes wait for: the first ones by name, and how many more.
pub fn sentences(waiting: &[Waiting]) -> String {
    let mut parts: Vec<String> = waiting.iter().take(SENTENCES_MAX).map(sentence).collect();
    let more = waiting.len().saturating_sub(SENTENCES_MAX);
    if more > 0 {
        parts.push(format!("and {more} more volumes"));
    }
    parts.join("; ")
}

/// The pod's volumes are not there yet.
pub(super) fn waiting(subject: &ExplainSubject<'_>) -> Option<Explanation> {
    let is_preparing = subject.view.doing.contains(&Action::Prepare);
    let mut told = subject.timeline.iter().rev();
    let last = told.find(|entry| entry.what == WAITING || entry.what == READY)?;
    if !is_preparing || last.what != WAITING {
        return None;
    }
    let age = subject.now.since(UnixNanos(last.at));
    let since = if age.as_secs() > 0 { format!(", for {}", span(age)) } else { String::new() };
    let text = words::one_line(&last.text);
    let remedy = REMEDIES.iter().find(|(part, _)| text.contains(part)).map(|(_, remedy)| *remedy);
    let remedy = remedy.unwrap_or("see the driver's log on this node; it is tried again by itself");
    let sentence = format!("Waits for its volumes{since}: {text}");
    Some(Explanation::trouble(WAITING, sentence).with_remedy(remedy))
}
