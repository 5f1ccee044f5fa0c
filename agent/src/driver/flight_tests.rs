//! The recorder's output on the disk, read again.

use std::fs;

use pintle_agent_core::flight::{Replay, ReplayOutcome, Segment, read};
use pintle_agent_core::types::{NodeFacts, PodUid};
use pintle_agent_core::worker::Settings;
use pintle_agent_core::{admit, sync};
use pintle_agent_metrics::Metrics;
use serde_json::json;
use tokio::task::LocalSet;
use xtask::disk::{DiskFault, DiskOperation, Faulty, with_private_mounts};

use super::*;
use crate::driver::tests::exposition;

fn settings() -> Settings {
    Settings {
        sync_period: Duration::from_secs(60),
        relist_period: Duration::from_secs(60),
        crash_loop: sync::backoff::Curve::default(),
        node: NodeFacts::default(),
        admission: Arc::new(admit::AdmissionNode::roomy("n")),
        has_node_object: false,
        eviction: Default::default(),
        garbage: Default::default(),
    }
}

/// The inputs that want, change and remove this pod.
fn inputs(number: usize) -> Vec<PodsInput> {
    let uid = PodUid::from(format!("u{number}").as_str());
    let pod = json!({"metadata": {"uid": uid.as_str(), "name": uid.as_str(), "namespace": "ns"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let mut pod = serde_json::from_value(pod).expect("a pod");
    pintle_api_types::pod::defaults::apply(&mut pod);
    let desired = PodsInput::Desired { uid: uid.clone(), pod: Arc::new(pod) };
    vec![desired, PodsInput::Tick, PodsInput::Removed { uid }]
}

/// A driver with only its decisions and its recorder.
struct Recorded {
    pods: Pods,
    tape: Tape,
    metrics: Metrics,
}

impl Recorded {
    /// Waits until the gap is over and a state is written, then records to the end.
    async fn goes_on(&mut self) {
        self.until(|shared| !shared.gap.load(Ordering::Relaxed)).await;
        self.until(|shared| !shared.needs_state.load(Ordering::Relaxed)).await;
        inputs(3).into_iter().for_each(|input| self.decide(input));
        self.tape.end().await;
    }

    async fn below(root: &Path) -> Self {
        let start = AgentStart {
            version: String::new(),
            settings: settings(),
            allocated: Default::default(),
            actuated: Default::default(),
        };
        let metrics = Metrics::new("n");
        let tape = super::start(root, 8, start, metrics.flight().clone()).await;
        Self { pods: Pods::new(settings()), tape, metrics }
    }

    fn decide(&mut self, input: PodsInput) {
        let now = clock::clocks();
        self.tape.input(now, &input);
        let commands = self.pods.handle(now, input);
        self.tape.commands(&commands);
        self.tape.between(&self.pods);
    }

    fn shared(&self) -> &FlightState {
        self.tape.0.as_deref().expect("it records")
    }

    /// Decides upon ticks until this is so.
    async fn until(&mut self, is_so: impl Fn(&FlightState) -> bool) {
        let ticks = async {
            while !is_so(self.shared()) {
                self.decide(PodsInput::Tick);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ticks).await.expect("it becomes so");
    }
}

fn segments(root: &Path) -> Vec<Segment> {
    let entries = fs::read_dir(root.join(FOLDER)).expect("a folder");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|suffix| suffix == "segment"));
    paths.sort();
    let bytes = paths.iter().map(|path| fs::read(path).expect("a file"));
    bytes.map(|bytes| read(&bytes).expect("of this format")).collect()
}

fn replayed(root: &Path) -> Vec<ReplayOutcome> {
    let (outcomes, _) = Replay::of(&segments(root)).finish();
    let differences: Vec<_> = outcomes.iter().filter_map(|o| o.difference.as_ref()).collect();
    assert!(differences.is_empty(), "{differences:?}");
    outcomes
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), work)
}

/// Replays the recording before the gap and after it.
fn check_replay_around_a_gap(root: &Path) {
    let outcomes = replayed(root);
    let [before, after] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    assert!(before.equal >= 3 && before.torn, "{before:?}");
    assert!(after.equal >= 3 && !after.torn, "{after:?}");
}

#[test]
fn every_decision_until_the_end_is_on_the_disk_and_is_made_again() {
    let root = tempfile::tempdir().expect("a folder");
    run(async {
        let mut agent = Recorded::below(root.path()).await;
        for number in 0..500 {
            inputs(number).into_iter().for_each(|input| agent.decide(input));
            agent.until(|shared| lock(&shared.notes).bytes < NOTES_BYTES_MANY).await;
        }
        agent.tape.end().await;
    });
    let outcomes = replayed(root.path());
    let [only] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    assert!(only.equal >= 1500 && !only.torn, "{only:?}");
    let first = only.equal;
    run(async {
        let mut agent = Recorded::below(root.path()).await;
        inputs(7).into_iter().for_each(|input| agent.decide(input));
        agent.tape.end().await;
    });
    let equal: Vec<_> = replayed(root.path()).iter().map(|o| o.equal).collect();
    assert_eq!(equal, [first, 3], "a second agent's run follows");
}

#[test]
fn the_input_of_which_the_decisions_panicked_is_the_last_of_the_record() {
    let root = tempfile::tempdir().expect("a folder");
    run(async {
        let mut agent = Recorded::below(root.path()).await;
        inputs(1).into_iter().for_each(|input| agent.decide(input));
        let died = tasks::caught(async move {
            agent.tape.input(clock::clocks(), &PodsInput::SourcesReady);
            panic!("of the decisions");
        });
        died.await.expect_err("it panicked");
    });
    let outcomes = replayed(root.path());
    let last = outcomes.last().and_then(|outcome| outcome.unanswered.as_ref());
    assert!(matches!(last, Some((_, PodsInput::SourcesReady))), "{last:?}");
    assert_eq!(outcomes.last().map(|outcome| outcome.equal), Some(3));
}

#[test]
fn full_disk_loses_a_part_of_the_recording_which_resumes_after_space_is_freed() {
    with_private_mounts(|| {
        works_by_ring();
        let root = tempfile::tempdir().expect("a folder");
        xtask::disk::small(root.path(), 256 << 10);
        let full = root.path().join("full");
        run(async {
            let mut agent = Recorded::below(root.path()).await;
            inputs(1).into_iter().for_each(|input| agent.decide(input));
            agent.until(|shared| shared.is_idle()).await;
            fs::write(&full, vec![0; 512 << 10]).expect_err("the disk is full");
            agent.until(|shared| shared.paused.load(Ordering::Relaxed)).await;
            inputs(2).into_iter().for_each(|input| agent.decide(input));
            fs::remove_file(&full).expect("room again");
            agent.until(|shared| !shared.paused.load(Ordering::Relaxed)).await;
            agent.goes_on().await;
            let text = exposition(&agent.metrics);
            assert!(text.contains("pintle_flight_recorder_failures_total 1\n"), "{text}");
        });
        check_replay_around_a_gap(root.path());
    });
}

#[test]
fn inputs_above_the_buffer_limit_make_the_recording_incomplete_in_a_replay() {
    let root = tempfile::tempdir().expect("a folder");
    run(async {
        let mut agent = Recorded::below(root.path()).await;
        // No task runs in between.
        (0..2000).flat_map(inputs).for_each(|input| agent.decide(input));
        agent.tape.end().await;
    });
    let outcomes = replayed(root.path());
    let [only] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    assert!(only.equal < 6000 && only.torn, "{only:?}");
}

#[test]
fn a_disk_that_does_not_keep_up_costs_a_part_of_the_record() {
    let root = tempfile::tempdir().expect("a folder");
    run(async {
        let mut agent = Recorded::below(root.path()).await;
        inputs(1).into_iter().for_each(|input| agent.decide(input));
        agent.until(|shared| shared.is_idle()).await;
        // As much as may wait, without a notice to the writer.
        let waiting = SegmentBytes { segment: 0, bytes: vec![0; BATCHES_BYTES_MAX] };
        lock(&agent.shared().batches).push_back(waiting);
        inputs(2).into_iter().for_each(|input| agent.decide(input));
        agent.until(|shared| shared.gap.load(Ordering::Relaxed)).await;
        agent.goes_on().await;
        let text = exposition(&agent.metrics);
        assert!(!text.contains("pintle_flight_recorder_lost_total 0\n"), "{text}");
    });
    check_replay_around_a_gap(root.path());
}

#[test]
fn agent_runs_without_a_recording_folder_and_records_once_the_folder_exists() {
    let root = tempfile::tempdir().expect("a folder");
    fs::write(root.path().join(FOLDER), "a file is in the way").expect("written");
    run(async {
        let mut agent = Recorded::below(root.path()).await;
        inputs(1).into_iter().for_each(|input| agent.decide(input));
        agent.until(|shared| shared.paused.load(Ordering::Relaxed)).await;
        agent.tape.end().await;
        fs::remove_file(root.path().join(FOLDER)).expect("removed");
        goes_on_with(&mut agent).await;
    });
    check_recorded_after_a_gap(root.path());
}

/// Waits until it records again, and then for another pod's records.
async fn goes_on_with(agent: &mut Recorded) {
    agent.until(|shared| !shared.paused.load(Ordering::Relaxed)).await;
    agent.goes_on().await;
}

fn check_recorded_after_a_gap(root: &Path) {
    let outcomes = replayed(root);
    let last = outcomes.last().expect("something is recorded");
    assert!(last.equal >= 3 && !last.torn, "{outcomes:?}");
    let versions: Vec<_> = outcomes.iter().filter_map(|o| o.version.as_deref()).collect();
    assert!(versions.iter().all(|version| *version == build::version()), "{versions:?}");
}

#[test]
fn hung_recording_disk_delays_neither_start_nor_shutdown_and_is_reported() {
    with_private_mounts(|| {
        works_by_ring();
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join(FOLDER)).expect("made");
        let hung = xtask::disk::Hung::mount(&root.path().join(FOLDER));
        run(async {
            let mut agent = Recorded::below(root.path()).await;
            inputs(1).into_iter().for_each(|input| agent.decide(input));
            // The folder does not open; the end of the agent then does not wait for it.
            assert!(lock(&agent.shared().flight).is_none());
            agent.tape.end().await;
            agent.until(|shared| shared.paused.load(Ordering::Relaxed)).await;
            let text = exposition(&agent.metrics);
            assert!(text.contains("pintle_flight_recorder_failures_total 1\n"), "{text}");
            agent.decide(PodsInput::Tick);
            let text = exposition(&agent.metrics);
            assert!(!text.contains("pintle_flight_recorder_lost_total 0\n"), "{text}");
            agent.tape.end().await;
            drop(hung);
            goes_on_with(&mut agent).await;
        });
        check_recorded_after_a_gap(root.path());
    });
}

/// The recorder's work is done as in an agent: none of it on this thread.
fn works_by_ring() {
    blocking::Pool::own();
    pintle_ring::RingFiles::ring(false)
        .unwrap_or_else(|_| pintle_ring::RingFiles::direct())
        .for_thread();
}

/// A disk hangs in this operation, under a segment that is written, and is well later.
fn hangs_under_a_segment(operation: DiskOperation) {
    with_private_mounts(move || {
        works_by_ring();
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join(FOLDER)).expect("made");
        let disk = Faulty::mount(&root.path().join(FOLDER));
        run(async {
            let mut agent = Recorded::below(root.path()).await;
            inputs(1).into_iter().for_each(|input| agent.decide(input));
            agent.until(|shared| shared.is_idle()).await;
            disk.set(operation, DiskFault::Hangs);
            inputs(2).into_iter().for_each(|input| agent.decide(input));
            agent.until(|_| disk.hung() > 0).await;
            // Decisions continue until the write is given up, and after that.
            agent.until(|shared| shared.paused.load(Ordering::Relaxed)).await;
            let text = exposition(&agent.metrics);
            assert!(text.contains("pintle_flight_recorder_failures_total 1\n"), "{text}");
            disk.lift();
            goes_on_with(&mut agent).await;
        });
        check_replay_around_a_gap(root.path());
    });
}

#[test]
fn a_write_that_hangs_costs_a_part_of_the_record_and_no_decision() {
    hangs_under_a_segment(DiskOperation::Write);
}

#[test]
fn a_sync_that_hangs_costs_a_part_of_the_record_and_no_decision() {
    hangs_under_a_segment(DiskOperation::Sync);
}
