//! Reports of records: equal replays, differences, and losses.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use pintle_agent_core::flight::Panicked;
use pintle_agent_core::worker::PodsInput;

use serde_json::{Value, json};

use super::past::{self, PastQuery};
use super::pod_inputs::PodInputs;
use super::testing::{Agent, SECRET, at, desired};
use super::{FlightRecordError, FolderReport, replay, replay_folder};

/// An agent that ran the pod, and one after it that died of its fourth input.
fn two_runs(dir: &Path) {
    let mut first = Agent::begins(dir, 3, 0, "v1");
    first.gets_ready();
    first.takes(desired());
    first.reads_nothing();
    first.fails("FailedMount", "no");
    let mut second = Agent::begins(dir, 4, 100, "v1");
    second.gets_ready();
    second.dies_of(&desired());
}

fn report(dir: &Path) -> FolderReport {
    replay_folder(dir).expect("a record")
}

#[test]
fn identical_replays_are_equal_even_if_the_last_run_crashed() {
    let dir = tempfile::tempdir().expect("a folder");
    two_runs(dir.path());
    fs::write(dir.path().join("key"), [7; 32]).expect("the key");
    let report = report(dir.path());
    assert!(report.is_equal() && report.lost.is_empty() && report.passed == 0, "{report:?}");
    assert_eq!(report.segments, [3, 4]);
    let text = report.text("v1");
    let head = format!("{}: segments 3 to 4, 0.0 MiB\n", dir.path().display());
    assert_eq!(
        text.strip_prefix(&head).expect("the folder first"),
        "
Run 1 of the agent (v1): 2026-01-01T00:00:01Z to 2026-01-01T00:00:08Z
  inputs with the same commands: 8
  states that were compared and are the same: 0

Run 2 of the agent (v1): 2026-01-01T00:01:41Z to 2026-01-01T00:01:45Z
  inputs with the same commands: 4
  states that were compared and are the same: 0
  the last input has no answer; the agent ended there: 2026-01-01T00:01:45Z Desired of pod ns/web \
(uid u): web_ns(u), generation 0, version 

The same came of all 12 inputs.
"
    );
    assert!(!report.json().to_string().contains(SECRET));
    assert_eq!(report.json()["equal"], true);
}

#[test]
fn record_is_found_below_the_agents_root_directory() {
    let root = tempfile::tempdir().expect("a folder");
    let dir = root.path().join("flight");
    fs::create_dir(&dir).expect("a folder");
    two_runs(&dir);
    assert_eq!(report(root.path()).folder, dir);
}

#[test]
fn replay_difference_is_reported_with_its_input_and_pod_and_fails() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut agent = Agent::begins(dir.path(), 1, 0, "v0");
    agent.gets_ready();
    // Another program would have decided upon a pod of this name as this one does upon another.
    agent.takes_other(desired(), PodsInput::Lost);
    agent.takes(PodsInput::Tick);
    let report = report(dir.path());
    assert!(!report.is_equal());
    let text = report.text("v1");
    for line in [
        "  recorded by v0 and replayed by v1, which may decide differently\n",
        "  inputs with the same commands: 4\n",
        "  DIFFERENT at input 5: 2026-01-01T00:00:05Z Desired of pod ns/web (uid u): ",
        "    1. now another one: ",
        "\nSomething else came of 1 of 1 runs, of other versions or of ones that are not known.\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in:\n{text}");
    }
    let json = &report.json()["runs"][0];
    assert_eq!(json["difference"]["at"]["pod"], "ns/web");
    assert_eq!(json["difference"]["index"], 4);
}

#[test]
fn lost_segments_are_reported_and_are_not_a_replay_difference() {
    let dir = tempfile::tempdir().expect("a folder");
    two_runs(dir.path());
    let path = dir.path().join("0000000003.segment");
    let mut bytes = fs::read(&path).expect("a segment");
    bytes.extend(b"PFRb, and no more");
    fs::write(&path, bytes).expect("the next batch was begun");
    fs::rename(dir.path().join("0000000004.segment"), dir.path().join("0000000006.segment"))
        .expect("it is renamed");
    fs::write(dir.path().join("0000000007.segment"), []).expect("it is begun");
    let report = report(dir.path());
    assert!(report.is_equal());
    assert!(report.runs[0].torn);
    let told: Vec<_> = report.lost.iter().map(ToString::to_string).collect();
    let [torn, missing, misnamed, empty] = told.as_slice() else { panic!("{told:?}") };
    assert!(torn.starts_with("segment 3: what follows batch "), "{torn}");
    assert_eq!(missing, "segments 4 to 5: their files are missing");
    assert_eq!(misnamed, "segment 6: its file holds segment 4, and is passed over");
    assert_eq!(empty, "segment 7: nothing of it was written");
    assert!(report.text("v1").contains(&format!("Lost: {torn}\n")));
}

#[test]
fn an_input_of_which_the_decisions_panic_is_the_finding() {
    let dir = tempfile::tempdir().expect("a folder");
    two_runs(dir.path());
    let mut report = report(dir.path());
    let run = report.runs.last_mut().expect("two runs");
    let (now, input) = run.unanswered.take().expect("it died");
    run.panicked = Some(Box::new(Panicked { now, input, message: "no room".to_owned() }));
    assert!(!report.is_equal());
    let text = report.text("v1");
    let told = "  PANIC at input 5: 2026-01-01T00:01:45Z Desired of pod ns/web (uid u): ";
    assert!(text.contains(told) && text.contains("\n    no room\n"), "{text}");
    assert!(text.ends_with("Something else came of 1 of 2 runs.\n"), "{text}");
    assert_eq!(report.json()["runs"][1]["panic"]["message"], "no room");
}

#[test]
fn replay_stops_at_the_requested_time() {
    let dir = tempfile::tempdir().expect("a folder");
    two_runs(dir.path());
    let report = replay(dir.path(), Some(at(4)), &mut |_, _| {}).expect("a record");
    assert_eq!((report.runs.len(), report.runs[0].equal), (1, 4));
    assert!(report.is_equal() && !report.runs[0].torn && report.runs[0].unanswered.is_none());
    let told = report.text("v1");
    assert!(told.ends_with("of all 4 inputs until 2026-01-01T00:00:04Z.\n"), "{told}");
    let before = replay(dir.path(), Some(at(-1)), &mut |_, _| {}).expect("a record");
    assert_eq!(before.runs.len(), 1, "the agent has begun and was asked nothing");
}

#[test]
fn missing_or_invalid_segments_are_reported_as_one_clear_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path();
    let told = |path: &Path| replay_folder(path).expect_err("no record").to_string();
    assert!(told(path).contains("has no record: neither in it nor in its folder flight"));
    let missing = path.join("missing");
    assert!(told(&missing).contains("missing cannot be read: No such file"), "{}", told(&missing));
    fs::write(path.join("1.segment"), "").expect("another file");
    assert!(told(path).contains("has no record"));
    symlink("/dev/zero", path.join("0000000001.segment")).expect("a link");
    assert!(told(path).contains("0000000001.segment cannot be read"), "{}", told(path));
    fs::remove_file(path.join("0000000001.segment")).expect("it goes");
    fs::create_dir(path.join("0000000001.segment")).expect("a folder");
    assert!(matches!(replay_folder(path), Err(FlightRecordError::NoSegment { .. })));
    fs::remove_dir(path.join("0000000001.segment")).expect("it goes");
    let file = fs::File::create(path.join("0000000001.segment")).expect("a file");
    file.set_len(1 << 30).expect("a long one");
    assert!(told(path).ends_with("is far too long"), "{}", told(path));
}

#[test]
fn invalid_segment_replays_nothing_and_is_reported_as_lost() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("0000000001.segment"), vec![b'x'; 5_000]).expect("a file");
    let report = report(dir.path());
    assert!(!report.is_equal());
    let told = report.text("v1");
    assert!(told.contains("Lost: segment 1: nothing of it was written\n"), "{told}");
    assert!(told.ends_with("Nothing of the record can be replayed.\n"), "{told}");
}

/// An agent that could not start the pod, then removed it; and the next one.
fn a_pod_that_is_gone(dir: &Path) {
    let mut agent = Agent::begins(dir, 1, 0, "v1");
    agent.gets_ready();
    agent.takes(desired());
    agent.reads_nothing();
    agent.fails("FailedMount", "MountVolume.SetUp failed for volume \"data\" : no such disk");
    agent.removes_all();
    let mut next = Agent::begins(dir, 2, 100, "v1");
    next.gets_ready();
}

fn asked(dir: &Path, pod: &str, explain: bool, at: Option<i64>) -> Value {
    let asked = PastQuery { pod, explain, at: at.map(super::testing::at) };
    past::answer(dir, asked).expect("an answer")
}

#[test]
fn deleted_pod_is_explained_as_of_the_requested_time() {
    let dir = tempfile::tempdir().expect("a folder");
    a_pod_that_is_gone(dir.path());
    let then = asked(dir.path(), "web", true, Some(8));
    assert_eq!(then["reason"], "FailedMount");
    let sentence = then["sentence"].as_str().expect("a sentence");
    assert!(sentence.contains("Waits for volume data") && sentence.contains("no such disk"));
    assert_eq!((&then["pod"], &then["uid"]), (&json!("ns/web"), &json!("u")));
    assert_eq!(then["record"]["notes"], json!([]));
    assert_eq!(then["record"]["unixNanos"], super::testing::at(8).0);
    let gone = asked(dir.path(), "ns/web", true, None);
    let notes = gone["record"]["notes"].to_string();
    assert!(notes.contains("nothing was left of the pod by 2026-01-01T00:0"), "{notes}");
    let later = asked(dir.path(), "u", true, Some(1_000));
    let notes = later["record"]["notes"].to_string();
    assert!(notes.contains("the record ends at 2026-01-01T00:01:44Z, before 2026-01-01T00:16:40Z"));
}

#[test]
fn timeline_from_a_record_lists_the_inputs_and_outputs_of_decisions() {
    let dir = tempfile::tempdir().expect("a folder");
    a_pod_that_is_gone(dir.path());
    let whats = |value: &Value| {
        let entries = value["entries"].as_array().expect("entries").iter();
        let entries = entries.map(|entry| entry["what"].as_str().expect("a word").to_owned());
        entries.collect::<Vec<_>>()
    };
    let all = asked(dir.path(), "web", false, None);
    assert_eq!(whats(&all), ["Seen", "Status", "Prepare", "Removed", "Status", "Teardown", "Gone"]);
    assert_eq!(all["entries"][0]["unixNanos"], super::testing::at(5).0);
    assert_eq!(
        all["entries"][2]["text"],
        "FailedMount: MountVolume.SetUp failed for volume \
        \"data\" : no such disk"
    );
    let until = asked(dir.path(), "web", false, Some(7));
    assert_eq!(whats(&until), ["Seen", "Status", "Prepare"]);
}

#[test]
fn pod_from_before_a_restart_is_found_and_a_pod_never_recorded_is_not() {
    let dir = tempfile::tempdir().expect("a folder");
    two_runs(dir.path());
    let restarted = asked(dir.path(), "web", true, Some(104));
    let notes = restarted["record"]["notes"].to_string();
    assert!(notes.contains("the agent began anew after 2026-01-01T00:00:08Z"), "{notes}");
    let miss = |pod: &str, at: Option<i64>| {
        let asked = PastQuery { pod, explain: true, at: at.map(super::testing::at) };
        past::answer(dir.path(), asked).expect_err("no such pod").to_string()
    };
    assert!(
        miss("weg", None).contains("has no pod weg\n  did you mean ns/web?"),
        "{}",
        miss("weg", None)
    );
    let before = miss("web", Some(2));
    assert!(before.ends_with("from 2026-01-01T00:00:01Z to 2026-01-01T00:00:02Z"), "{before}");
}

#[test]
fn inputs_and_commands_of_one_pod_are_shown_in_order_without_its_secrets() {
    let dir = tempfile::tempdir().expect("a folder");
    two_runs(dir.path());
    let shown = |pod: &str, is_json| {
        let mut inputs = PodInputs::new(pod, is_json);
        replay(dir.path(), None, &mut |replay, frame| inputs.see(replay, frame)).expect("a record");
        inputs
    };
    for pod in ["web", "ns/web", "u"] {
        let rows = shown(pod, false).rows;
        let inputs = rows.iter().filter(|row| !row.is_command).map(|row| row.what);
        let expected = ["Desired", "Observed", "Progress", "SyncDone", "Desired"];
        assert_eq!(inputs.collect::<Vec<_>>(), expected, "{pod}");
        let run = rows.iter().find(|row| row.what == "Run").expect("a sync");
        assert!(run.is_command && run.text.contains(": make cgroup, directories"), "{run:?}");
    }
    let json = Value::from(shown("u", true).json);
    let text = json.to_string();
    assert!(!text.contains(SECRET) && text.contains("\"value\":\"redacted:"), "{text}");
    assert!(!shown("other/web", false).found());
}

#[test]
fn frames_of_another_version_are_distinguished_from_corrupt_frames() {
    use pintle_agent_core::flight::segment::{Encoder, Header};
    let root = tempfile::tempdir().expect("a folder");
    let header = Header { number: 3, first_batch: 0, key_id: String::new(), began_at: at(0) };
    let (mut encoder, mut bytes) = Encoder::begin(&header);
    encoder.push(br#"{"Foreseen":{"by": "nobody"}}"#).expect("it is short");
    bytes.extend(encoder.take().expect("a batch"));
    fs::write(root.path().join("0000000003.segment"), bytes).expect("written");
    let report = replay_folder(root.path()).expect("it can be read");
    assert_eq!((report.unknown, report.lost.len(), report.is_equal()), (1, 0, false));
    let text = report.text("9.9");
    assert!(
        text.contains("1 frames were written by another version of the agent, and 9.9"),
        "{text}"
    );
}
