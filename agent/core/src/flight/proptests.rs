//! Properties of every recording: its replay yields the same decisions, it contains no secret, and
//! damage to its bytes loses no more than the damaged part and is reported completely.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{DownwardAPIVolumeSource, EnvVar, Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use super::frame::{AgentStart, Digest, Frame, digest_of, plain};
use super::read::{Loss, ReadError, Segment, read};
use super::record::Flight;
use super::redact::{Redactor, Seal};
use super::replay::{Replay, ReplayOutcome};
use super::segment::{
    BATCH_HEADER_BYTES, Encoder, FORMAT, HEADER_BYTES, Header, MAGIC, SECTOR_BYTES, header_crc,
};
use crate::admit;
use crate::eviction;
use crate::eviction::observed::{Freed, Observation, PodUse, ResourceReading};
use crate::eviction::signal::Signal;
use crate::eviction::threshold::{Threshold, ThresholdLevel};
use crate::ledger::Entries;
use crate::observed::ObservedPod;
use crate::shutdown::{self, Notice, Window};
use crate::types::NodeFacts;
use crate::worker::proptests::{any_step, inputs_of, settings};
use crate::worker::{Hint, Pods, PodsInput, Settings};
use pintle_api_types::ids::{ContainerId, Now, PodUid, UnixNanos};

/// Part of each value that must not be recorded.
const SECRET: &str = "hunter2";

/// Inputs of the kinds that `any_step` does not yield.
fn any_other() -> impl Strategy<Value = PodsInput> {
    let uid = |pod: usize| PodUid::from(["u0", "u1", "u2"][pod]);
    let node = |full: bool| {
        let mut node = admit::AdmissionNode::roomy("node");
        node.allocatable.pods = if full { 0 } else { 10 };
        node.labels.insert("zone".to_owned(), "a".to_owned());
        node.pressures.extend(full.then(|| "MemoryPressure".to_owned()));
        Arc::new(node)
    };
    prop_oneof![
        (0..3_usize, 0..2_u8).prop_map(move |(pod, secret)| {
            let mut built = Pod::default();
            built.metadata.uid = Some(uid(pod).to_string());
            PodsInput::Reconciled { uid: uid(pod), pod: decorated(&built, secret) }
        }),
        (0..3_usize).prop_map(move |pod| PodsInput::Unreadable([uid(pod)].into())),
        (0..9_u8).prop_map(|id| PodsInput::ContainerHint {
            container: ContainerId::from(format!("id{id}")),
            hint: Hint::Changed,
        }),
        any::<bool>().prop_map(move |full| PodsInput::Admission(node(full))),
        (0..3_u64, prop::option::of(any::<bool>())).prop_map(move |(ticket, full)| {
            PodsInput::NodeFetched { ticket, node: full.map(node) }
        }),
        any::<bool>().prop_map(|down| PodsInput::Node(NodeFacts {
            network_error: down.then(|| "no plugin".to_owned()),
            host_ips: vec!["10.0.0.1".parse().expect("an address")],
            ..NodeFacts::default()
        })),
        Just(PodsInput::Lost),
        (0..9_i64, prop::option::of(0..2_i32)).prop_map(|(seconds, at)| {
            let window = |priority, seconds| Window { priority, seconds };
            let until = UnixNanos(1_000_000_000_000 + seconds);
            let group = at.map(|priority| (priority, until));
            let resumed =
                group.is_some().then(|| shutdown::ShutdownRecord { group, ..Default::default() });
            let windows = vec![window(0, seconds), window(1, 2)];
            PodsInput::Shutdown(Notice::Begins { windows, resumed })
        }),
        Just(PodsInput::Shutdown(Notice::Cancelled)),
        (0..4_u64, 0..200_u64, any::<bool>()).prop_map(|(ticket, left, pods)| {
            let observation = Box::new(observed_node(left, pods));
            PodsInput::Pressure { ticket, observation }
        }),
        (0..4_u64).prop_map(|ticket| PodsInput::Reclaiming { ticket }),
        (0..4_u64).prop_map(|ticket| PodsInput::Reclaimed { ticket, freed: Freed::default() }),
        Just(PodsInput::MemoryLow),
        (1..90_u64).prop_map(|seconds| PodsInput::RelistEvery(Duration::from_secs(seconds))),
    ]
}

/// An observation of a node with `left` of 100 bytes available, of memory and of the node's
/// filesystem, and with the usage of one pod if `pods`.
fn observed_node(left: u64, pods: bool) -> Observation {
    let at = UnixNanos(left as i64 + 1);
    let reading = ResourceReading { available: left, capacity: 100, at };
    let used = || (PodUid::from("u0"), PodUse { working_set: Some(left), ..PodUse::default() });
    Observation {
        at,
        readings: [(Signal::MemoryAvailable, reading), (Signal::NodeFsAvailable, reading)].into(),
        pods: pods.then(|| [used()].into()),
        ..Observation::default()
    }
}

/// Settings of a run on a node that may run short of a resource.
fn scarce_settings() -> Settings {
    let of = |signal| Threshold {
        signal,
        level: ThresholdLevel::Part(0.3),
        grace: Duration::ZERO,
        min_reclaim: Some(ThresholdLevel::Part(0.1)),
    };
    let thresholds = vec![of(Signal::NodeFsAvailable), of(Signal::MemoryAvailable)];
    let transition = Duration::from_secs(300);
    let eviction = eviction::Settings { thresholds, transition, ..Default::default() };
    Settings { eviction, ..settings() }
}

/// The pod with one of several secrets in every field that may hold one, and with a downward API
/// volume, so that a changed annotation causes a refresh.
fn decorated(pod: &Pod, secret: u8) -> Arc<Pod> {
    let mut pod = pod.clone();
    let value = format!("{SECRET}-{secret}");
    pod.metadata.annotations.get_or_insert_default().insert("note".to_owned(), value.clone());
    // The API has no fractions of a second.
    let deleted = pod.metadata.deletion_timestamp.is_some();
    pod.metadata.deletion_timestamp = deleted.then(|| Time(UnixNanos(5_000_000_000).to_seconds()));
    let spec = pod.spec.get_or_insert_default();
    let files = DownwardAPIVolumeSource::default();
    let volume = Volume { name: "v".to_owned(), downward_api: Some(files), ..Volume::default() };
    spec.volumes.get_or_insert_default().push(volume);
    for container in &mut spec.containers {
        let (name, value) = ("TOKEN".to_owned(), Some(value.clone()));
        container.env = Some(vec![EnvVar { name, value, value_from: None }]);
        container.args = Some(vec![format!("--password={SECRET}")]);
    }
    Arc::new(pod)
}

fn with_notes(mut pod: ObservedPod, secret: u8) -> ObservedPod {
    let note = || ("note".to_owned(), format!("{SECRET}-{secret}"));
    pod.sandboxes.iter_mut().for_each(|sandbox| sandbox.annotations.extend([note()]));
    pod.containers.iter_mut().for_each(|container| container.annotations.extend([note()]));
    pod
}

/// A run with secrets in it and all kinds of inputs.
fn any_inputs() -> impl Strategy<Value = Vec<(Now, PodsInput)>> {
    let steps = prop::collection::vec(any_step(), 1..60);
    let others = prop::collection::vec((any::<prop::sample::Index>(), any_other()), 0..12);
    let secrets = prop::collection::vec(0..2_u8, 60);
    (steps, others, secrets).prop_map(|(steps, others, secrets)| {
        let mut inputs = inputs_of(&steps);
        for ((_, input), secret) in inputs.iter_mut().zip(secrets) {
            *input = match std::mem::replace(input, PodsInput::Tick) {
                PodsInput::Desired { uid, pod } => {
                    PodsInput::Desired { uid, pod: decorated(&pod, secret) }
                }
                PodsInput::Observed { uid, stamp, result } => {
                    let result = result.map(|pod| with_notes(pod, secret));
                    PodsInput::Observed { uid, stamp, result }
                }
                other => other,
            };
        }
        for (at, other) in others {
            let at = at.index(inputs.len().max(1));
            let now = inputs.get(at).map_or_else(Now::default, |(now, _)| *now);
            inputs.insert(at, (now, other));
        }
        inputs
    })
}

/// The start of an agent without checkpoints.
fn start() -> AgentStart {
    AgentStart {
        version: "1".to_owned(),
        settings: scarce_settings(),
        allocated: Entries::new(),
        actuated: Entries::new(),
    }
}

/// Records a run with these inputs and its decisions; a batch ends after every `batch` inputs.
fn record(inputs: &[(Now, PodsInput)], batch: usize) -> BTreeMap<u64, Vec<u8>> {
    let mut pods = Pods::new(scarce_settings());
    let mut flight = Flight::new(Redactor::new(&[7; 32]), 4, &start(), UnixNanos(1));
    let mut segments = BTreeMap::<u64, Vec<u8>>::new();
    let mut write = |flight: &mut Flight| {
        if let Some(written) = flight.take(UnixNanos(2)) {
            segments.entry(written.segment).or_default().extend(written.bytes);
        }
    };
    for (index, (now, input)) in inputs.iter().enumerate() {
        flight.input(*now, input);
        flight.commands(&pods.handle(*now, input.clone()));
        if index % batch == batch - 1 {
            write(&mut flight);
        }
    }
    write(&mut flight);
    segments
}

fn replayed(segments: &BTreeMap<u64, Vec<u8>>) -> ReplayOutcome {
    let read: Vec<_> = segments.values().map(|bytes| read(bytes).expect("a segment")).collect();
    assert!(read.iter().all(|segment| segment.losses.is_empty()), "{read:?}");
    let (mut runs, passed) = Replay::of(&read).finish();
    assert_eq!((runs.len(), passed), (1, 0));
    runs.remove(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn input_round_trips_through_json(inputs in any_inputs()) {
        for (now, input) in inputs {
            let frame = Frame::Input { now, input: Box::new(input) };
            let json = serde_json::to_vec(&frame).expect("it serialises");
            let read: Frame = serde_json::from_slice(&json).expect("it is read");
            prop_assert_eq!(format!("{read:?}"), format!("{frame:?}"));
        }
    }

    #[test]
    fn replay_yields_the_same_commands_and_the_record_has_no_secret(
        inputs in any_inputs(), batch in 1..20_usize,
    ) {
        let segments = record(&inputs, batch);
        let outcome = replayed(&segments);
        prop_assert!(outcome.difference.is_none(), "{:?}", outcome.difference);
        prop_assert_eq!(outcome.equal, inputs.len() as u64);
        prop_assert!(!outcome.torn && outcome.unanswered.is_none());
        for bytes in segments.values() {
            let found = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
            prop_assert!(!found, "a secret is in the record");
        }
    }

    /// The frames before the first state are skipped, because the agent's start is missing.
    #[test]
    fn replay_continues_from_any_recorded_state(
        inputs in any_inputs(), at in any::<prop::sample::Index>(),
    ) {
        let at = at.index(inputs.len() + 1);
        let (seal, mut pods) = (Redactor::new(&[7; 32]), Pods::new(scarce_settings()));
        let mut replay = Replay::default();
        let frame = |json: serde_json::Value| {
            serde_json::from_slice::<Frame>(&seal.json(&json)).expect("a frame")
        };
        let state = |pods: &Pods| frame(plain(&Frame::State(Box::new(pods.state()))));
        for (index, (now, input)) in inputs.iter().enumerate() {
            if index == at {
                replay.take(&state(&pods));
            }
            let boxed = Box::new(input.clone());
            let taken = frame(plain(&Frame::Input { now: *now, input: boxed }));
            replay.take(&taken);
            let commands = pods.handle(*now, input.clone());
            let digests = commands.iter().map(|command| digest_of(command, &seal)).collect();
            replay.take(&Frame::Commands(digests));
        }
        replay.take(&state(&pods));
        let (runs, passed) = replay.finish();
        prop_assert_eq!(passed, 2 * at as u64);
        let run = &runs[0];
        prop_assert!(run.difference.is_none(), "{:?}", run.difference);
        prop_assert_eq!(&run.state_differs, &None);
        // The last state is compared, unless it is also the first one and thus begins the run.
        prop_assert_eq!(run.states, u64::from(at < inputs.len()));
        prop_assert_eq!(run.equal, (inputs.len() - at) as u64);
    }

    /// A replay ends at a missing batch; the batch is not reported as a difference.
    #[test]
    fn lost_sector_is_not_reported_as_a_difference(
        inputs in any_inputs(), sector in any::<prop::sample::Index>(),
    ) {
        let mut segments = record(&inputs, 3);
        let bytes = segments.values_mut().next().expect("one segment");
        let at = sector.index(bytes.len() / SECTOR_BYTES) * SECTOR_BYTES;
        bytes[at..at + SECTOR_BYTES].fill(0);
        let (runs, _) = Replay::of([&read(bytes).expect("a segment")]).finish();
        for run in runs {
            prop_assert!(run.difference.is_none(), "{:?}", run.difference);
            prop_assert!(run.equal <= inputs.len() as u64);
            prop_assert_eq!(run.torn, at > 0);
        }
    }
}

/// The bytes of a segment, the length of its header, and the ranges of its batches' payloads.
#[derive(Clone, Debug)]
struct Stream {
    bytes: Vec<u8>,
    header: usize,
    first: u64,
    batches: Vec<Range<usize>>,
}

fn stream(number: u64, first: u64, batches: &[Vec<Vec<u64>>]) -> Stream {
    let key_id = "k".to_owned();
    let header = Header { number, first_batch: first, key_id, began_at: UnixNanos(1) };
    let json = serde_json::to_vec(&header).expect("it serialises");
    let (mut encoder, mut bytes) = Encoder::begin(&header);
    let mut places = Vec::new();
    for frames in batches {
        for digests in frames {
            let frame = Frame::Commands(digests.iter().copied().map(Digest).collect());
            let json = serde_json::to_vec(&frame).expect("it serialises");
            encoder.push(&json).expect("it is short");
        }
        let batch = encoder.take().expect("there are frames");
        assert_eq!(batch.len() % SECTOR_BYTES, 0);
        let length = u32::from_le_bytes(batch[24..28].try_into().expect("four bytes"));
        let payload = BATCH_HEADER_BYTES + usize::try_from(length).expect("it is short");
        places.push(bytes.len()..bytes.len() + payload);
        bytes.extend(batch);
    }
    Stream { bytes, header: HEADER_BYTES + json.len(), first, batches: places }
}

fn any_stream(number: u64) -> impl Strategy<Value = Stream> {
    let frame = prop::collection::vec(any::<u64>(), 0..90);
    let batch = prop::collection::vec(frame, 1..4);
    (0..3_u64, prop::collection::vec(batch, 1..6))
        .prop_map(move |(first, batches)| stream(number, first, &batches))
}

fn numbers(segment: &Segment) -> Vec<u64> {
    segment.batches.iter().map(|batch| batch.number).collect()
}

impl Stream {
    /// The end of the batch's sectors.
    fn end(&self, batch: usize) -> usize {
        self.batches[batch].end.next_multiple_of(SECTOR_BYTES)
    }

    fn number(&self, batch: usize) -> u64 {
        self.first + u64::try_from(batch).expect("few")
    }

    fn check_prefix(&self, cut: usize) -> Result<(), TestCaseError> {
        let segment = read(&self.bytes[..cut]).expect("our own format");
        let whole = self.batches.iter().filter(|batch| batch.end <= cut).count();
        let kept: Vec<_> = (0..whole).map(|batch| self.number(batch)).collect();
        prop_assert_eq!(numbers(&segment), kept, "cut at {}", cut);
        prop_assert_eq!(segment.header.is_some(), cut >= self.header);
        let end = whole.checked_sub(1).map_or(SECTOR_BYTES, |last| self.end(last));
        let lost =
            (cut > end).then(|| Loss { bytes: end..cut, batches: (self.number(whole), None) });
        prop_assert_eq!(segment.losses, Vec::from_iter(lost), "cut at {}", cut);
        Ok(())
    }

    /// Checks that a sector with other content costs its own batch, or only the header, and is
    /// reported.
    fn check_torn(&self, at: usize, with: &[u8]) -> Result<(), TestCaseError> {
        let mut torn = self.bytes.clone();
        torn[at..at + SECTOR_BYTES].copy_from_slice(with);
        if torn == self.bytes {
            return Ok(());
        }
        let segment = read(&torn).expect("our own format");
        let hit = (0..self.batches.len())
            .find(|batch| (self.batches[*batch].start..self.end(*batch)).contains(&at));
        let kept: Vec<_> = (0..self.batches.len())
            .filter(|batch| Some(*batch) != hit)
            .map(|batch| self.number(batch))
            .collect();
        prop_assert_eq!(numbers(&segment), kept, "sector at {}", at);
        prop_assert_eq!(segment.header.is_some(), hit.is_some(), "sector at {}", at);
        let lost = hit.map(|batch| {
            let next = (batch + 1 < self.batches.len()).then(|| self.number(batch + 1));
            let bytes = self.batches[batch].start..self.end(batch);
            Loss { bytes, batches: (self.number(batch), next) }
        });
        prop_assert_eq!(segment.losses, Vec::from_iter(lost), "sector at {}", at);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_prefix_yields_all_complete_batches(
        stream in any_stream(9), cuts in prop::collection::vec(any::<prop::sample::Index>(), 20),
    ) {
        let sectors = (0..=stream.bytes.len()).step_by(SECTOR_BYTES);
        let around = sectors.flat_map(|at| [at.saturating_sub(1), at, at + 1]);
        let ends = stream.batches.iter().flat_map(|batch| [batch.end - 1, batch.end]);
        let drawn = cuts.iter().map(|cut| cut.index(stream.bytes.len()));
        for cut in around.chain(ends).chain(drawn) {
            stream.check_prefix(cut.min(stream.bytes.len()))?;
        }
    }

    #[test]
    fn torn_sector_invalidates_only_its_own_batch(
        stream in any_stream(9), old in any_stream(8),
    ) {
        for at in (0..stream.bytes.len()).step_by(SECTOR_BYTES) {
            stream.check_torn(at, &[0; SECTOR_BYTES])?;
            // The content that an older segment had at the same place, and at other places.
            for place in [at, SECTOR_BYTES, 0] {
                if let Some(before) = old.bytes.get(place..place + SECTOR_BYTES) {
                    stream.check_torn(at, before)?;
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..3_000), ours in any::<bool>()) {
        let begin = if ours { &MAGIC[..] } else { &[] };
        if let Ok(segment) = read(&[begin, &bytes].concat()) {
            prop_assert!(segment.batches.is_empty());
        }
    }
}

#[test]
fn a_newer_format_is_refused_in_a_sentence() {
    let mut bytes = stream(1, 0, &[vec![vec![1]]]).bytes;
    bytes[8..12].copy_from_slice(&(FORMAT + 1).to_le_bytes());
    // A header with a wrong checksum is reported as damaged, not as of a newer format.
    assert!(read(&bytes).expect("ours").header.is_none());
    let length = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes"));
    let whole = HEADER_BYTES + usize::try_from(length).expect("it is short");
    let crc = header_crc(&bytes[..whole]);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    let error = read(&bytes).expect_err("it is newer");
    assert_eq!(error, ReadError::Newer { found: FORMAT + 1 });
    assert!(error.to_string().contains("use one that is as new as the agent"), "{error}");
}

#[test]
fn first_difference_is_reported_with_its_input() {
    let now = Now { wall: UnixNanos(9), ..Now::default() };
    let inputs = [(now, PodsInput::Tick), (now, PodsInput::SourcesReady), (now, PodsInput::Lost)];
    let segments = record(&inputs, 1);
    let mut segment = read(segments.values().next().expect("one")).expect("ours");
    let frames = segment.batches.iter_mut().flat_map(|batch| &mut batch.frames);
    let answers = frames.filter_map(|frame| match frame {
        Frame::Commands(digests) => Some(digests),
        _ => None,
    });
    let second = answers.into_iter().nth(1).expect("three answers");
    second.push(Digest(1));
    let (runs, _) = Replay::of([&segment]).finish();
    let difference = runs[0].difference.as_ref().expect("one");
    assert_eq!((difference.index, runs[0].equal), (1, 1));
    assert!(matches!(difference.input, PodsInput::SourcesReady), "{difference:?}");
    assert_eq!(difference.recorded.len(), difference.replayed.len() + 1);
}

#[test]
fn input_without_recorded_commands_is_reported() {
    let mut flight = Flight::new(Redactor::new(&[7; 32]), 1, &start(), UnixNanos(1));
    flight.input(Now::default(), &PodsInput::SourcesReady);
    let written = flight.take(UnixNanos(1)).expect("frames");
    let (runs, _) = Replay::of([&read(&written.bytes).expect("ours")]).finish();
    let last = runs[0].unanswered.as_ref().map(|(_, input)| input);
    assert!(matches!(last, Some(PodsInput::SourcesReady)), "{runs:?}");
}

#[test]
fn a_run_ends_with_the_input_that_panicked() {
    let inputs: Vec<_> = (0..3).map(|_| (Now::default(), PodsInput::Tick)).collect();
    let segment = read(record(&inputs, 1).values().next().expect("one")).expect("ours");
    let (mut replay, mut taken) = (Replay::default(), 0);
    let _ = replay.segment(&segment, &mut |replay, frame| {
        if let Frame::Input { now, input } = frame {
            taken += 1;
            if taken == 2 {
                replay.panicked(*now, (**input).clone(), "no".to_owned());
                return ControlFlow::Continue(());
            }
        }
        replay.take(frame);
        ControlFlow::Continue(())
    });
    let (runs, passed) = replay.finish();
    let run = &runs[0];
    assert_eq!((runs.len(), run.equal, passed), (1, 1, 3));
    assert_eq!(run.panicked.as_ref().map(|found| found.message.as_str()), Some("no"));
    assert!(!run.is_equal() && run.unanswered.is_none() && !run.torn);
}

#[test]
fn replay_after_a_failed_write_resumes_from_a_state() {
    let mut pods = Pods::new(scarce_settings());
    let mut flight = Flight::new(Redactor::new(&[7; 32]), 1, &start(), UnixNanos(1));
    let mut segments = Vec::new();
    for turn in 0..3 {
        flight.input(Now::default(), &PodsInput::Lost);
        flight.commands(&pods.handle(Now::default(), PodsInput::Lost));
        let written = flight.take(UnixNanos(1)).expect("frames");
        if turn == 1 {
            flight.lost(UnixNanos(1));
        } else {
            segments.push(read(&written.bytes).expect("ours"));
        }
        assert_eq!(flight.needs_state(), turn == 1);
        if flight.needs_state() {
            flight.state(pods.state());
        }
    }
    assert_eq!(
        segments.iter().map(|segment| segment.number).collect::<Vec<_>>(),
        [Some(1), Some(2)]
    );
    let (runs, passed) = Replay::of(&segments).finish();
    let came: Vec<_> = runs.iter().map(|run| (run.equal, run.torn)).collect();
    assert_eq!((came, passed), (vec![(1, true), (1, false)], 0));
    assert!(runs.iter().all(|run| run.difference.is_none()), "{runs:?}");
}

#[test]
fn run_continues_across_segments_and_ends_at_a_missing_segment() {
    let inputs: Vec<_> = (0..6).map(|_| (Now::default(), PodsInput::Tick)).collect();
    let whole = read(record(&inputs, 1).values().next().expect("one")).expect("ours");
    let part = |range: Range<usize>| Segment {
        batches: whole.batches[range].to_vec(),
        ..Segment::default()
    };
    let (runs, _) = Replay::of([&part(0..2), &part(2..6)]).finish();
    assert_eq!((runs[0].equal, runs[0].torn), (6, false));
    let (runs, passed) = Replay::of([&part(0..2), &part(4..6)]).finish();
    assert_eq!((runs[0].equal, runs[0].torn, passed), (2, true, 4));
    assert!(runs[0].difference.is_none());
}
