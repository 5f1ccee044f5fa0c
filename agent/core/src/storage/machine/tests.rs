//! The state machine call by call: a bed gives inputs and looks at every command that comes of them.

use std::collections::BTreeMap;

use super::*;
use crate::storage::csi::{AccessMode, Lifecycle, Secrets};

const NOW: Mono = Mono(1_000_000_000);

fn uid(number: u32) -> PodUid {
    PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).expect("a uid")
}

fn wanted(pod: u32) -> Wanted {
    let volume = Volume {
        driver: "d".to_owned(),
        handle: "h".to_owned(),
        name: "pv".to_owned(),
        lifecycle: Lifecycle::Persistent,
        is_block: false,
        is_read_only: false,
        fs_type: String::new(),
        attributes: BTreeMap::new(),
        access_modes: vec![AccessMode::ReadWriteOnce],
        mount_options: Vec::new(),
        secrets: Secrets::default(),
        size: None,
        disk: None,
        is_migrated: false,
        labels: Vec::new(),
    };
    Wanted {
        pod: uid(pod),
        volume,
        is_attached_first: false,
        is_republished: false,
        fs_group: None,
        selinux_label: None,
    }
}

/// A `Storage` of which every answer is looked at.
#[derive(Default)]
struct Bed {
    storage: Storage,
    now: Option<Mono>,
}

impl Bed {
    fn new() -> Self {
        let mut bed = Self::default();
        assert_eq!(bed.give(Input::SourcesReady), []);
        bed
    }

    fn give(&mut self, input: Input) -> Vec<Command> {
        self.storage.handle(self.now.unwrap_or(NOW), input)
    }

    fn want(&mut self, wanted: Wanted) -> Vec<Command> {
        self.give(Input::Wanted { pod: wanted.pod.clone(), volumes: vec![wanted] })
    }

    fn release(&mut self, pod: u32) -> Vec<Command> {
        self.give(Input::Released { pod: uid(pod) })
    }

    /// Answers the only call among the commands.
    fn answer(&mut self, commands: &[Command], outcome: Outcome) -> Vec<Command> {
        let (volume, ticket, _) = call(commands);
        self.give(Input::Done { volume, ticket, outcome })
    }

    fn pass(&mut self, by: Duration) -> Vec<Command> {
        self.now = Some(self.now.unwrap_or(NOW).plus(by));
        self.give(Input::Tick)
    }

    /// Has a pod's volume staged and published.
    fn bring_up(&mut self, wanted: Wanted) {
        let mut commands = self.want(wanted);
        while commands.iter().any(|command| matches!(command, Command::Call { .. })) {
            commands = self.answer(&commands, Ok(()));
        }
        assert!(matches!(commands[..], [Command::Answer { answer: Answer::Ready, .. }]));
    }
}

fn call(commands: &[Command]) -> (VolumeId, u64, Call) {
    let mut calls = commands.iter().filter_map(|command| match command {
        Command::Call { volume, ticket, call } => Some((volume.clone(), *ticket, call.clone())),
        _ => None,
    });
    let first = calls.next().unwrap_or_else(|| panic!("no call in {commands:?}"));
    assert_eq!(calls.next(), None);
    first
}

fn verb(commands: &[Command]) -> &'static str {
    match call(commands).2 {
        Call::Stage { again: false, .. } => "stage",
        Call::Stage { again: true, .. } => "stage again",
        Call::Publish { again: false, .. } => "publish",
        Call::Publish { again: true, .. } => "publish again",
        Call::Expand { .. } => "expand",
        Call::Unpublish { .. } => "unpublish",
        Call::Unstage(_) => "unstage",
    }
}

fn failure(problem: Problem) -> Outcome {
    Err(Failure { problem, is_of_attachment: false, text: "no".to_owned() })
}

fn found(pod: Option<u32>) -> FoundVolume {
    let known = Known {
        driver: "d".to_owned(),
        handle: "h".to_owned(),
        name: "pv".to_owned(),
        lifecycle: Lifecycle::Persistent,
        is_block: false,
        is_migrated: false,
        selinux_label: None,
    };
    FoundVolume { known, pod: pod.map(uid) }
}

#[test]
fn recovered_volume_is_unpublished_on_release_and_a_known_volume_is_unchanged() {
    let mut bed = Bed::new();
    let recovered = |pod| Input::Recovered { pod: uid(pod), volumes: vec![found(None).known] };
    assert_eq!(bed.give(recovered(1)), []);
    let commands = bed.release(1);
    assert_eq!(verb(&commands), "unpublish");
    let commands = bed.answer(&commands, Ok(()));
    assert!(commands.contains(&Command::Answer { pod: uid(1), answer: Answer::Gone }));

    bed.bring_up(wanted(2));
    let before = bed.storage.clone();
    assert_eq!(bed.give(recovered(2)), []);
    assert_eq!((bed.storage.volumes, bed.storage.pods), (before.volumes, before.pods));
}

#[test]
fn volume_of_one_pod_is_staged_published_unpublished_and_unstaged() {
    let mut bed = Bed::new();
    let commands = bed.want(wanted(1));
    assert_eq!(verb(&commands), "stage");
    let commands = bed.answer(&commands, Ok(()));
    assert_eq!(verb(&commands), "publish");
    let commands = bed.answer(&commands, Ok(()));
    assert_eq!(commands, [Command::Answer { pod: uid(1), answer: Answer::Ready }]);
    let commands = bed.release(1);
    assert_eq!(verb(&commands), "unpublish");
    let commands = bed.answer(&commands, Ok(()));
    assert_eq!(verb(&commands), "unstage");
    assert!(commands.contains(&Command::Answer { pod: uid(1), answer: Answer::Gone }));
    assert_eq!(bed.answer(&commands, Ok(())), []);
    assert!(bed.storage.volumes.is_empty() && bed.storage.pods.is_empty());
}

#[test]
fn second_pod_is_published_without_staging_and_the_last_one_unstages() {
    let mut bed = Bed::new();
    bed.bring_up(wanted(1));
    let commands = bed.want(wanted(2));
    assert_eq!(verb(&commands), "publish");
    bed.answer(&commands, Ok(()));
    let commands = bed.release(1);
    assert_eq!(verb(&commands), "unpublish");
    let commands = bed.answer(&commands, Ok(()));
    assert_eq!(commands, [Command::Answer { pod: uid(1), answer: Answer::Gone }]);
    let commands = bed.release(2);
    let commands = bed.answer(&commands, Ok(()));
    assert_eq!(verb(&commands), "unstage");
}

#[test]
fn repeated_request_of_a_ready_pod_is_answered_at_once() {
    let mut bed = Bed::new();
    bed.bring_up(wanted(1));
    let ready = Command::Answer { pod: uid(1), answer: Answer::Ready };
    assert_eq!(bed.want(wanted(1)), [ready]);
}

#[test]
fn attachable_volume_is_staged_after_its_in_use_report_and_its_attachment() {
    let mut bed = Bed::new();
    let name = "kubernetes.io/csi/d^h";
    assert_eq!(bed.give(node(1, &[], &[])), [report(1, &[])]);
    let commands = bed.want(Wanted { is_attached_first: true, ..wanted(1) });
    assert_eq!(commands, [report(2, &[name])]);
    assert_eq!(bed.give(node(2, &[name], &[])), []);
    assert_eq!(bed.storage.waiting(&uid(1))[0].step, Step::Report);
    // It was detached meanwhile, and the watch is behind.
    assert_eq!(bed.give(written(2, 4, &[])), []);
    assert_eq!(bed.give(node(3, &[name], &[])), []);
    assert_eq!(bed.storage.waiting(&uid(1))[0].step, Step::Attach);
    let commands = bed.give(node(5, &[name], &[name]));
    assert_eq!(verb(&commands), "stage");
    let commands = bed.answer(&commands, Ok(()));
    bed.answer(&commands, Ok(()));
    let commands = bed.release(1);
    let commands = bed.answer(&commands, Ok(()));
    assert_eq!(verb(&commands), "unstage");
    assert!(!commands.iter().any(|command| matches!(command, Command::ReportInUse(_))));
    assert_eq!(bed.answer(&commands, Ok(())), [report(3, &[])]);
    // That write may still arrive: the next use needs a report of its own.
    let commands = bed.want(Wanted { is_attached_first: true, ..wanted(2) });
    assert_eq!(commands, [report(4, &[name])]);
    assert_eq!(bed.give(written(3, 6, &[name])), []);
    assert_eq!(verb(&bed.give(written(4, 7, &[name]))), "stage");
}

#[test]
fn volume_is_not_in_use_once_its_driver_needs_no_attachment_unless_it_is_attached() {
    let name = "kubernetes.io/csi/d^h";
    let needs = |pod, is_attached_first| Wanted { is_attached_first, ..wanted(pod) };
    let mut bed = Bed::new();
    bed.give(node(1, &[], &[]));
    assert_eq!(bed.want(needs(1, true)), [report(2, &[name])]);
    assert_eq!(bed.want(needs(2, true)), []);
    let commands = bed.want(needs(1, false));
    assert_eq!(verb(&commands), "stage");
    assert_eq!(commands.last(), Some(&report(3, &[])));
    bed.want(needs(2, false));
    assert_eq!(bed.storage.in_use(), names(&[]));

    let mut bed = Bed::new();
    bed.give(node(1, &[], &[]));
    bed.want(needs(1, true));
    assert_eq!(verb(&bed.give(written(2, 4, &[name]))), "stage");
    bed.want(needs(1, false));
    assert_eq!(bed.storage.in_use(), names(&[name]));
}

fn listed(version: u64, attached: &[&str], in_use: &[&str]) -> Input {
    Input::NodeListed(NodeVolumes { version, attached: names(attached), in_use: names(in_use) })
}

#[test]
fn node_status_of_a_restored_etcd_is_used_after_in_use_is_written_again() {
    let name = "kubernetes.io/csi/d^h";
    let wants_attached = |pod| Wanted { is_attached_first: true, ..wanted(pod) };
    // An older version, and a newer one that lacks what was written.
    for (version, in_use) in [(3, &[name][..]), (20, &[])] {
        let mut bed = Bed::new();
        bed.give(listed(7, &[], &[]));
        bed.want(wants_attached(1));
        bed.give(written(2, 9, &[]));
        assert_eq!(bed.storage.waiting(&uid(1))[0].step, Step::Attach);
        assert_eq!(bed.give(listed(version, &[name], in_use)), [report(3, &[name])], "{version}");
        assert_eq!(bed.storage.waiting(&uid(1))[0].step, Step::Report, "{version}");
        let commands = bed.give(written(3, version + 1, &[name]));
        assert_eq!(verb(&commands), "stage", "{version}");
    }
}

#[test]
fn older_watched_node_is_ignored_and_a_newer_list_needs_no_new_in_use_report() {
    let name = "kubernetes.io/csi/d^h";
    let mut bed = Bed::new();
    bed.give(listed(7, &[], &[]));
    bed.want(Wanted { is_attached_first: true, ..wanted(1) });
    bed.give(written(2, 9, &[]));
    assert_eq!(bed.give(node(3, &[name], &[name])), []);
    assert_eq!(bed.storage.waiting(&uid(1))[0].step, Step::Attach);
    let commands = bed.give(listed(10, &[name], &[name]));
    assert_eq!(verb(&commands), "stage");
    assert!(!commands.iter().any(|command| matches!(command, Command::ReportInUse(_))));
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn node(version: u64, attached: &[&str], in_use: &[&str]) -> Input {
    Input::Node(NodeVolumes { version, attached: names(attached), in_use: names(in_use) })
}

fn written(number: u64, version: u64, attached: &[&str]) -> Input {
    let node = NodeVolumes { version, attached: names(attached), in_use: BTreeSet::new() };
    Input::InUseWritten { number, node }
}

fn report(number: u64, in_use: &[&str]) -> Command {
    Command::ReportInUse(InUse { number, names: names(in_use) })
}

#[test]
fn failed_call_is_reported_and_retried_with_exponential_backoff() {
    let mut bed = Bed::new();
    let mut commands = bed.want(wanted(1));
    for wait in [500, 1000, 2000, 4000] {
        assert_eq!(verb(&commands), "stage");
        let told = bed.answer(&commands, failure(Problem::Final));
        let text = "MountVolume.MountDevice failed for volume \"pv\" : no".to_owned();
        assert_eq!(told, [Command::Failed { pod: uid(1), text }]);
        let due = bed.storage.next_due().expect("a pause");
        assert_eq!(due, bed.now.unwrap_or(NOW).plus(Duration::from_millis(wait)));
        assert_eq!(bed.pass(Duration::from_millis(wait - 1)), []);
        commands = bed.pass(Duration::from_millis(1));
    }
    assert_eq!(bed.storage.next_due(), None);
}

#[test]
fn driver_that_registers_ends_the_wait() {
    let mut bed = Bed::new();
    let commands = bed.want(wanted(1));
    bed.answer(&commands, failure(Problem::NotAsked));
    assert_eq!(bed.give(Input::DriverReady("other".to_owned())), []);
    assert_eq!(verb(&bed.storage.handle(NOW, Input::DriverReady("d".to_owned()))), "stage");
}

#[test]
fn uncertain_staging_of_a_released_pod_is_unstaged() {
    let mut bed = Bed::new();
    let commands = bed.want(wanted(1));
    bed.answer(&commands, failure(Problem::Uncertain));
    let commands = bed.release(1);
    assert!(commands.contains(&Command::Answer { pod: uid(1), answer: Answer::Gone }));
    // The pause of the failed call holds for the volume.
    let commands = bed.pass(Duration::from_secs(1));
    assert_eq!(verb(&commands), "unstage");
}

#[test]
fn refusal_after_an_uncertain_staging_leaves_the_staging_uncertain() {
    let mut bed = Bed::new();
    let commands = bed.want(wanted(1));
    bed.answer(&commands, failure(Problem::Uncertain));
    let commands = bed.pass(Duration::from_secs(1));
    assert_eq!(verb(&commands), "stage again");
    bed.answer(&commands, failure(Problem::Final));
    bed.release(1);
    assert_eq!(verb(&bed.pass(Duration::from_secs(5))), "unstage");
}

#[test]
fn refused_staging_of_a_released_pod_leaves_no_volume() {
    let mut bed = Bed::new();
    let commands = bed.want(wanted(1));
    bed.answer(&commands, failure(Problem::Final));
    let commands = bed.release(1);
    assert_eq!(commands, [Command::Answer { pod: uid(1), answer: Answer::Gone }]);
    assert!(bed.storage.volumes.is_empty());
}

#[test]
fn uncertain_publication_is_unpublished_before_its_volume_is_unstaged() {
    let mut bed = Bed::new();
    let commands = bed.want(wanted(1));
    let commands = bed.answer(&commands, Ok(()));
    bed.answer(&commands, failure(Problem::Uncertain));
    let commands = bed.release(1);
    assert_eq!(verb(&commands), "unpublish");
    let commands = bed.answer(&commands, Ok(()));
    assert_eq!(verb(&commands), "unstage");
}

#[test]
fn volume_of_a_pod_released_during_staging_is_unstaged() {
    let mut bed = Bed::new();
    let staging = bed.want(wanted(1));
    assert_eq!(bed.release(1), []);
    let commands = bed.answer(&staging, Ok(()));
    assert_eq!(verb(&commands), "unstage");
}

#[test]
fn found_volume_is_published_again_and_never_forgotten_by_a_refusal() {
    let mut bed = Bed::default();
    let volumes = vec![found(None), found(Some(1))];
    assert_eq!(bed.give(Input::Found { volumes, is_whole: true }), []);
    let commands = bed.give(node(1, &[], &["kubernetes.io/csi/d^h", "kubernetes.io/csi/d^gone"]));
    assert_eq!(commands, [report(1, &["kubernetes.io/csi/d^h"])]);
    let commands = bed.want(wanted(1));
    assert_eq!(verb(&commands), "stage again");
    let commands = bed.answer(&commands, Ok(()));
    assert_eq!(verb(&commands), "publish again");
    bed.answer(&commands, failure(Problem::Final));
    let commands = bed.release(1);
    assert_eq!(verb(&commands), "unpublish");
}

#[test]
fn volume_reported_in_use_stays_in_use_after_an_incomplete_disk_scan() {
    let mut bed = Bed::default();
    bed.give(Input::Found { volumes: Vec::new(), is_whole: false });
    let lost = "kubernetes.io/csi/d^lost";
    assert_eq!(bed.give(node(1, &[], &[lost])), [report(1, &[lost])]);
    assert_eq!(bed.give(Input::SourcesReady), []);
    let commands = bed.want(Wanted { is_attached_first: true, ..wanted(1) });
    assert_eq!(commands, [report(2, &["kubernetes.io/csi/d^h", lost])]);
}

#[test]
fn staging_without_a_pod_stays_until_every_source_has_reported() {
    let mut bed = Bed::default();
    bed.give(Input::Found { volumes: vec![found(None)], is_whole: true });
    assert_eq!(bed.pass(Duration::from_secs(600)), []);
    assert_eq!(verb(&bed.give(Input::SourcesReady)), "unstage");
}

#[test]
fn volume_of_a_found_pod_stays_until_the_pod_is_released() {
    let mut bed = Bed::default();
    let volumes = vec![found(None), found(Some(7))];
    bed.give(Input::Found { volumes, is_whole: true });
    assert_eq!(bed.give(Input::SourcesReady), []);
    assert_eq!(verb(&bed.release(7)), "unpublish");
}

#[test]
fn read_write_once_pod_volume_is_refused_to_a_second_pod_while_in_use() {
    let only = |pod| {
        let mut wanted = wanted(pod);
        wanted.volume.access_modes = vec![AccessMode::ReadWriteOncePod];
        wanted
    };
    let mut bed = Bed::new();
    bed.bring_up(only(1));
    let commands = bed.want(only(2));
    let text = "MountVolume.SetUp failed for volume \"pv\" : volume uses the ReadWriteOncePod \
                access mode and is already in use by another pod";
    assert_eq!(commands, [Command::Failed { pod: uid(2), text: text.to_owned() }]);
    let commands = bed.release(1);
    assert_eq!(verb(&bed.answer(&commands, Ok(()))), "publish");
}

fn labelled(pod: u32, label: &str) -> Wanted {
    Wanted { selinux_label: Some(label.to_owned()), ..wanted(pod) }
}

#[test]
fn volume_wanted_with_another_selinux_label_is_restaged_after_its_release() {
    let mut bed = Bed::new();
    bed.bring_up(labelled(1, "s0:c1"));
    let commands = bed.want(labelled(2, "s0:c2"));
    let text = "MountVolume.SetUp failed for volume \"pv\" : waiting for unmount of volume \
                \"kubernetes.io/csi/d^h\", because it is already mounted to a different pod with a \
                different SELinux label";
    assert_eq!(commands, [Command::Failed { pod: uid(2), text: text.to_owned() }]);
    let commands = bed.want(labelled(3, "s0:c1"));
    assert_eq!(verb(&commands), "publish", "the same label is shared");
    bed.answer(&commands, Ok(()));
    let commands = bed.release(1);
    bed.answer(&commands, Ok(()));
    let mut commands = bed.release(3);
    for expected in ["unpublish", "unstage", "stage", "publish"] {
        assert_eq!(verb(&commands), expected);
        commands = bed.answer(&commands, Ok(()));
    }
}

#[test]
fn found_staging_is_reused_only_for_the_selinux_label_of_its_record() {
    for (label, expected) in [("s0:c1", "stage again"), ("s0:c2", "unstage")] {
        let mut bed = Bed::default();
        let mut volume = found(None);
        volume.known.selinux_label = Some("s0:c1".to_owned());
        bed.give(Input::Found { volumes: vec![volume], is_whole: true });
        let mut commands = bed.want(labelled(1, label));
        if label == "s0:c2" {
            assert_eq!(commands, [], "every source of pods reports first");
            commands = bed.give(Input::SourcesReady);
        }
        assert_eq!(verb(&commands), expected);
    }
}

#[test]
fn republished_volume_keeps_its_pod_running_when_the_driver_refuses() {
    let again = || Wanted { is_republished: true, ..wanted(1) };
    let mut bed = Bed::new();
    bed.bring_up(again());
    let commands = bed.want(again());
    assert_eq!(verb(&commands), "publish again");
    assert!(commands.contains(&Command::Answer { pod: uid(1), answer: Answer::Ready }));
    bed.answer(&commands, failure(Problem::Final));
    assert_eq!(bed.storage.waiting(&uid(1)), []);
    assert_eq!(verb(&bed.release(1)), "unpublish");
}

#[test]
fn answer_with_another_ticket_is_ignored() {
    let mut bed = Bed::new();
    let commands = bed.want(wanted(1));
    let (volume, ticket, _) = call(&commands);
    let late = Input::Done { volume, ticket: ticket + 7, outcome: Ok(()) };
    assert_eq!(bed.give(late), []);
    assert_eq!(bed.storage.waiting(&uid(1))[0].step, Step::Call("NodeStageVolume"));
}

#[test]
fn state_survives_serialization() {
    let mut bed = Bed::new();
    bed.bring_up(wanted(1));
    let text = serde_json::to_string(&bed.storage).expect("plain data");
    let back: Storage = serde_json::from_str(&text).expect("what was written");
    assert_eq!(back, bed.storage);
}

#[path = "growth_tests.rs"]
mod growth_tests;

/// A disk of a pod, whose source names no port.
fn wanted_disk(pod: u32) -> Wanted {
    let source =
        serde_json::json!({"targetPortal": "10.0.0.1", "iqn": "iqn.2020-01.x:y", "lun": 1});
    let source = serde_json::from_value(source).expect("a source");
    let volume = crate::storage::disk::iscsi_of_pod(&source, "pv", "ns").expect("valid");
    Wanted { volume, is_attached_first: true, ..wanted(pod) }
}

#[test]
fn disk_is_reported_and_attached_by_the_name_of_its_source() {
    let name = "kubernetes.io/iscsi/10.0.0.1:iqn.2020-01.x:y:1".to_owned();
    let names = BTreeSet::from([name.clone()]);
    let mut bed = Bed::new();
    let empty = NodeVolumes { version: 1, ..NodeVolumes::default() };
    bed.give(Input::Node(empty));
    let commands = bed.want(wanted_disk(1));
    let Some(Command::ReportInUse(report)) = commands.last() else { panic!("{commands:?}") };
    assert_eq!(report.names, names);
    let (number, attached) = (report.number, names.clone());
    let node = NodeVolumes { version: 2, attached, in_use: names };
    let commands = bed.give(Input::InUseWritten { number, node });
    assert_eq!(verb(&commands), "stage");
    assert_eq!(
        call(&commands).0.as_str(),
        "kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.2020-01.x:y-lun-1"
    );
}

#[test]
fn found_disk_stays_in_use_under_the_name_in_the_node_status() {
    let disk = wanted_disk(1);
    let known = Known::of(&disk);
    let mut bed = Bed::default();
    let found = |pod| FoundVolume { known: known.clone(), pod };
    let volumes = vec![found(Some(uid(1))), found(None)];
    bed.give(Input::Found { volumes, is_whole: true });
    let name = "kubernetes.io/iscsi/10.0.0.1:iqn.2020-01.x:y:1".to_owned();
    let names = BTreeSet::from([name, "kubernetes.io/csi/other".to_owned()]);
    let node = NodeVolumes { version: 1, attached: names.clone(), in_use: names };
    let commands = bed.give(Input::Node(node));
    let Some(Command::ReportInUse(report)) = commands.last() else { panic!("{commands:?}") };
    let kept: Vec<_> = report.names.iter().map(String::as_str).collect();
    assert_eq!(kept, ["kubernetes.io/iscsi/10.0.0.1:iqn.2020-01.x:y:1"]);
    bed.give(Input::SourcesReady);
    // The pod is still there: nothing is called before it asks or ends.
    let commands = bed.want(disk);
    assert_eq!(verb(&commands), "stage again");
    let commands = bed.answer(&commands, Ok(()));
    assert_eq!(verb(&commands), "publish again");
    bed.answer(&commands, Ok(()));
    let commands = bed.release(1);
    assert_eq!(verb(&commands), "unpublish");
    let commands = bed.answer(&commands, Ok(()));
    assert_eq!(verb(&commands), "unstage");
}
