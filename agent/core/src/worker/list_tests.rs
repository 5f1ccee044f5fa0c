//! Lists of all pods of the runtime: an input that arrives during a list takes effect.

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

    /// Handles an input; returns the stamp of the list that it requests.
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
fn hints_lost_during_a_list_request_another_list() {
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
fn a_list_begun_before_the_sources_were_ready_does_not_show_all_pods() {
    let mut lists = Lists::new();
    let first = lists.take(PodsInput::Tick);
    assert_eq!(lists.take(PodsInput::SourcesReady), None);
    let second = lists.answer(first, true);
    assert!(!lists.pods.knows_all());
    lists.answer(second, true);
    assert!(lists.pods.knows_all());
}

#[test]
fn containers_of_an_unreadable_pod_are_no_orphans_while_it_has_a_manifest() {
    let mut lists = Lists::new();
    let uid = PodUid::from("broken");
    let listed = |stamp: Option<u64>| {
        let (namespace, name) = ("ns".to_owned(), "web".to_owned());
        let digest = vec![("sandbox".to_owned(), 0)];
        let pod = ListedPod { uid: uid.clone(), namespace, name, digest };
        PodsInput::Listed { stamp: stamp.expect("a list is under way"), result: Ok(vec![pod]) }
    };
    let is_orphan = |lists: &Lists| lists.pods.worker(&uid).is_some();
    let mut stamp = lists.take(PodsInput::Unreadable(BTreeSet::from([uid.clone()])));
    lists.take(PodsInput::SourcesReady);
    while stamp.is_some() {
        stamp = lists.take(listed(stamp));
    }
    assert!(lists.pods.knows_all() && !is_orphan(&lists));
    let stamp = lists.take(PodsInput::Unreadable(BTreeSet::new()));
    lists.take(listed(stamp));
    assert!(is_orphan(&lists));
}

#[test]
fn a_shorter_relist_period_applies_at_once() {
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
