//! Expansion call by call: which pod waits for it, which goes on, and when it is tried again.

use super::*;
use crate::storage::csi::ClaimSize;

fn size(volume: u64, claimed_bytes: u64) -> Option<ClaimSize> {
    let (namespace, name) = ("ns".to_owned(), "claim".to_owned());
    Some(ClaimSize { namespace, name, volume: volume.to_string(), claimed_bytes })
}

fn sized(pod: u32, volume: u64, claimed: u64) -> Wanted {
    let mut wanted = wanted(pod);
    wanted.volume.size = size(volume, claimed);
    wanted
}

fn measured(wanted: Wanted) -> Input {
    Input::Measured { pod: wanted.pod, volumes: vec![wanted.volume] }
}

/// Stages and publishes; returns what comes of it.
fn publish(bed: &mut Bed, wanted: Wanted) -> Vec<Command> {
    let commands = bed.want(wanted);
    let commands = bed.answer(&commands, Ok(()));
    bed.answer(&commands, Ok(()))
}

fn ready(pod: u32) -> Command {
    Command::Answer { pod: uid(pod), answer: Answer::Ready }
}

#[test]
fn claim_that_is_smaller_than_its_volume_is_expanded_before_the_pod_starts() {
    let mut bed = Bed::new();
    let commands = publish(&mut bed, sized(1, 8, 4));
    assert_eq!(verb(&commands), "expand");
    assert_eq!(commands.len(), 1, "the pod waits: {commands:?}");
    let commands = bed.answer(&commands, Ok(()));
    assert_eq!(commands, [ready(1)]);
    assert_eq!(bed.want(sized(1, 8, 4)), [ready(1)], "the claim is behind: no second call");
    let commands = bed.want(sized(2, 8, 8));
    assert_eq!(verb(&commands), "publish");
    assert_eq!(bed.answer(&commands, Ok(())), [ready(2)], "it is expanded once for the node");
}

#[test]
fn claim_without_a_capacity_or_as_large_as_its_volume_is_not_expanded() {
    for (volume, claimed) in [(8, 0), (8, 8), (4, 8)] {
        let mut bed = Bed::new();
        assert_eq!(publish(&mut bed, sized(1, volume, claimed)), [ready(1)], "{volume} {claimed}");
    }
}

#[test]
fn volume_that_grows_under_a_running_pod_is_expanded_and_the_pod_stays_ready() {
    let mut bed = Bed::new();
    bed.bring_up(sized(1, 4, 4));
    assert_eq!(bed.give(measured(sized(1, 4, 4))), []);
    let commands = bed.give(measured(sized(1, 8, 4)));
    assert_eq!(verb(&commands), "expand");
    assert_eq!(bed.give(measured(sized(1, 8, 4))), [], "one expansion at a time");
    assert_eq!(bed.storage.waiting(&uid(1)), []);
    let commands = bed.answer(&commands, failure(Problem::Final));
    let text = "NodeExpandVolume.NodeExpandVolume failed for volume \"pv\" : no";
    assert_eq!(commands, [Command::Failed { pod: uid(1), text: text.to_owned() }]);
    assert_eq!(bed.storage.waiting(&uid(1)), [], "the pod runs");
    assert_eq!(bed.pass(Duration::from_millis(400)), []);
    let commands = bed.pass(Duration::from_millis(200));
    let had_final = matches!(call(&commands).2, Call::Expand { had_final_error: true, .. });
    assert!(had_final, "{commands:?}");
    assert_eq!(bed.answer(&commands, Ok(())), []);
    assert_eq!(bed.give(measured(sized(1, 8, 8))), []);
    let commands = bed.give(measured(sized(1, 16, 8)));
    assert!(matches!(call(&commands).2, Call::Expand { had_final_error: false, .. }));
}

#[test]
fn failed_expansion_delays_a_starting_pod_and_is_reported() {
    let mut bed = Bed::new();
    let commands = publish(&mut bed, sized(1, 8, 4));
    let commands = bed.answer(&commands, failure(Problem::Uncertain));
    let text = "MountVolume.Setup failed while expanding volume for volume \"pv\" : no".to_owned();
    assert_eq!(commands, [Command::Failed { pod: uid(1), text: text.clone() }]);
    let step = bed.storage.waiting(&uid(1)).remove(0).step;
    assert!(matches!(step, Step::Pause { failure, .. } if failure == text));
    let commands = bed.pass(Duration::from_millis(500));
    assert!(matches!(call(&commands).2, Call::Expand { had_final_error: false, .. }));
    assert_eq!(bed.answer(&commands, Ok(())), [ready(1)]);
}

#[test]
fn expansion_not_allowed_yet_does_not_delay_the_pod_and_is_retried_at_a_resync() {
    let mut bed = Bed::new();
    let commands = publish(&mut bed, sized(1, 8, 4));
    assert_eq!(bed.answer(&commands, failure(Problem::Later)), [ready(1)]);
    assert_eq!(bed.pass(Duration::from_secs(600)), []);
    let commands = bed.give(measured(sized(1, 8, 4)));
    assert_eq!(verb(&commands), "expand");
    assert_eq!(bed.answer(&commands, Ok(())), []);
}

#[test]
fn driver_that_does_not_expand_volumes_in_use_is_asked_once() {
    let mut bed = Bed::new();
    let commands = publish(&mut bed, sized(1, 8, 4));
    assert_eq!(bed.answer(&commands, failure(Problem::InUse)), [ready(1)]);
    assert_eq!(bed.give(measured(sized(1, 16, 4))), []);
    let commands = bed.release(1);
    let commands = bed.answer(&commands, Ok(()));
    bed.answer(&commands, Ok(()));
    let commands = publish(&mut bed, sized(2, 16, 4));
    assert_eq!(verb(&commands), "expand", "it was unstaged in between");
}

#[test]
fn volume_that_is_read_only_is_not_expanded_for_its_pod() {
    let read_only = |mut wanted: Wanted| {
        wanted.volume.is_read_only = true;
        wanted
    };
    let mut bed = Bed::new();
    let commands = publish(&mut bed, read_only(sized(1, 8, 4)));
    let text =
        "MountVolume.NodeExpandVolume failed for volume \"pv\" requested read-only file system";
    let notice = Command::Failed { pod: uid(1), text: text.to_owned() };
    assert_eq!(commands, [notice, ready(1)]);
    assert_eq!(bed.storage.resyncs(), []);
    let commands = bed.want(sized(2, 8, 4));
    let commands = bed.answer(&commands, Ok(()));
    assert!(matches!(call(&commands).2, Call::Expand { wanted, .. } if wanted.pod == uid(2)));
}

#[test]
fn resync_republishes_if_the_driver_requires_it_and_skips_released_pods() {
    let mut bed = Bed::new();
    bed.bring_up(Wanted { is_republished: true, ..sized(1, 4, 4) });
    assert_eq!(bed.storage.resyncs().len(), 1);
    let commands = bed.give(Input::Republish { pod: uid(1) });
    assert_eq!(verb(&commands), "publish again");
    assert_eq!(bed.answer(&commands, Ok(())), []);
    let commands = bed.release(1);
    assert_eq!(bed.storage.resyncs(), []);
    assert_eq!(bed.give(measured(sized(1, 8, 4))), []);
    assert_eq!(verb(&commands), "unpublish");
}
