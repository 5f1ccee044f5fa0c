//! Lists of everything: an input that comes while a list is under way is not lost with it.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::types::{Now, PodUid};
use crate::worker::testing::settings;
use crate::worker::{Command, ListedPod, Pods, PodsInput, ReadFailure};

struct Lists {
    pods: Pods,
    now: Now,
}

impl Lists {
    fn new() -> Self {
        Self { pods: Pods::new(settings(Duration::from_secs(60))), now: Now::default() }
    }

    /// The stamp of the list that this input requests.
    fn take(&mut self, input: PodsInput) -> Option<u64> {
        let commands = self.pods.handle(self.now, input);
        let mut stamps = commands.iter().filter_map(|command| match command {
            Command::List { stamp } => Some(*stamp),
            _ => None,
        });
        let stamp = stamps.next();
        assert_eq!(stamps.next(), None, "one list at a time");
        stamp
    }

    fn answer(&mut self, stamp: Option<u64>, good: bool) -> Option<u64> {
        let stamp = stamp.expect("a list is under way");
        let result = good.then(Vec::new).ok_or_else(|| ReadFailure("no answer".to_owned()));
        self.take(PodsInput::Listed { stamp, result })
    }

    fn wait(&mut self, wait: Duration) -> Option<u64> {
        self.now = self.now.plus(wait);
        self.take(PodsInput::Tick)
    }
}

#[test]
fn what_was_lost_while_a_list_was_under_way_is_looked_for_with_the_next_one() {
    for good in [true, false] {
        let mut lists = Lists::new();
        let first = lists.take(PodsInput::Tick);
        assert_eq!(lists.take(PodsInput::Lost), None, "one is under way");
        let second = lists.answer(first, good);
        assert!(second.is_some(), "{good}: the list began before the loss");
        assert_eq!(lists.answer(second, true), None, "{good}: once is enough");
    }
}

#[test]
fn a_list_that_began_before_the_sources_were_ready_does_not_tell_what_is_left_over() {
    let mut lists = Lists::new();
    let first = lists.take(PodsInput::Tick);
    assert_eq!(lists.take(PodsInput::SourcesReady), None);
    let second = lists.answer(first, true);
    assert!(!lists.pods.knows_all());
    lists.answer(second, true);
    assert!(lists.pods.knows_all());
}

#[test]
fn what_runs_of_a_pod_that_cannot_be_read_is_no_orphan_until_the_pod_is_gone() {
    let mut lists = Lists::new();
    let uid = PodUid::from("broken");
    let listed = |stamp: Option<u64>| {
        let (namespace, name) = ("ns".to_owned(), "web".to_owned());
        let digest = vec![("sandbox".to_owned(), 0)];
        let pod = ListedPod { uid: uid.clone(), namespace, name, digest };
        PodsInput::Listed { stamp: stamp.expect("a list is under way"), result: Ok(vec![pod]) }
    };
    let stopped = |lists: &Lists| lists.pods.worker(&uid).is_some();
    let mut stamp = lists.take(PodsInput::Unreadable(BTreeSet::from([uid.clone()])));
    lists.take(PodsInput::SourcesReady);
    while stamp.is_some() {
        stamp = lists.take(listed(stamp));
    }
    assert!(lists.pods.knows_all() && !stopped(&lists));
    let stamp = lists.take(PodsInput::Unreadable(BTreeSet::new()));
    lists.take(listed(stamp));
    assert!(stopped(&lists));
}

#[test]
fn lists_come_more_often_as_soon_as_the_sources_of_hints_see_less() {
    let mut lists = Lists::new();
    let first = lists.take(PodsInput::Tick);
    assert_eq!(lists.answer(first, true), None);
    assert_eq!(lists.take(PodsInput::RelistEvery(Duration::from_secs(1))), None);
    let next = lists.wait(Duration::from_secs(1));
    assert_eq!(lists.answer(next, true), None);
    lists.take(PodsInput::RelistEvery(Duration::from_secs(60)));
    let next = lists.wait(Duration::from_secs(1));
    assert_eq!(lists.answer(next, true), None);
    assert_eq!(lists.wait(Duration::from_secs(59)), None);
}
