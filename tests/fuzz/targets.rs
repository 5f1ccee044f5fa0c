//! Every decoder of bytes that others wrote, by the name of its folder of seeds. The fuzz targets
//! run these, and so does `tests/parity/tests/decoders.rs` for a moment in each run of the unit tests.

use pintle_agent_core::image::{keyring, pull_credential, pull_record};
use pintle_agent_core::observed::{VerboseStatus, read_back, termination};
use pintle_agent_core::types::UnixNanos;
use pintle_agent_core::{env, flight, ledger, logs, source};
use pintle_cri_v1 as v1;
use prost::Message as _;

// Those of the server and of exec probes: the product's, or their files alone.
use super::server;

/// Takes any bytes; a panic is a find.
pub(crate) type Decoder = fn(&[u8]);

/// All of them.
pub(crate) const TARGETS: &[(&str, Decoder)] = &[
    ("manifest", source::fuzz_manifest),
    ("config", pintle_agent_config::fuzz_load),
    ("yaml", pintle_api_types::yaml::fuzz_yaml),
    ("log_line", log_line),
    ("kernel_event", kernel_event),
    ("flight", a_flight),
    ("checkpoint", checkpoint),
    ("pull_record", a_pull_record),
    ("env_file", env_file),
    ("keyring", a_keyring),
    ("cri_answer", cri_answer),
    ("runtime_spec", runtime_spec),
    ("exec_answer", server::fuzz_exec_answer),
    ("websocket", server::fuzz_websocket),
    ("spdy", server::fuzz_spdy),
    ("certificate", server::fuzz_certificate),
    ("token", server::fuzz_token),
    ("cel", pintle_cel::fuzz_cel),
];

fn log_line(bytes: &[u8]) {
    if let Ok(line) = logs::line::parse(bytes) {
        line.timestamp();
    }
}

fn kernel_event(bytes: &[u8]) {
    if let Ok(event) = pintle_ebpf::decode(bytes) {
        assert_eq!(bytes.len(), pintle_ebpf::EVENT_BYTES);
        assert!(!format!("{event:?}").is_empty());
    }
}

/// Any bytes as a segment of the flight recorder, and as a frame of a valid one. A frame that is
/// read is written, and read again the same. It is not replayed: decisions may panic on an input
/// that was never possible, and a replay catches such panics.
fn a_flight(bytes: &[u8]) {
    use flight::segment::{Encoder, Header};
    let _ = flight::read(bytes); // any answer is fine
    let header =
        Header { number: 1, first_batch: 0, key_id: String::new(), began_at: UnixNanos(1) };
    let (mut encoder, mut whole) = Encoder::begin(&header);
    if encoder.push(bytes).is_err() {
        return;
    }
    whole.extend(encoder.take().into_iter().flatten());
    let segment = flight::read(&whole).expect("our own format");
    assert_eq!(segment.batches.len() + segment.losses.len(), 1, "a frame is read or lost");
    let is_known = |frame: &&flight::Frame| !matches!(frame, flight::Frame::Unknown { .. });
    for frame in segment.batches.iter().flat_map(|batch| &batch.frames).filter(is_known) {
        let json = |frame: &flight::Frame| serde_json::to_string(frame).expect("plain data");
        let written = json(frame);
        let again = serde_json::from_str(&written).expect("our own words are read");
        assert_eq!(json(&again), written);
    }
}

/// Any bytes as the file, and as the file's content under a valid checksum. Everything read is
/// written, and read again the same.
fn checkpoint(bytes: &[u8]) {
    use ledger::{CheckpointError, decode, encode};
    let _ = decode(bytes); // any answer is fine
    let Ok(data) = std::str::from_utf8(bytes) else { return };
    let with = |checksum: u32| serde_json::json!({"data": data, "checksum": checksum}).to_string();
    let Err(CheckpointError::Checksum { expected, .. }) = decode(with(0).as_bytes()) else {
        return;
    };
    if let Ok(entries) = decode(with(expected).as_bytes()) {
        let again = decode(encode(entries.iter()).as_bytes()).expect("our own words are read");
        assert_eq!(again, entries);
    }
}

/// Everything read from a record or an intent is written, and read again.
fn a_pull_record(bytes: &[u8]) {
    use pull_record::{Intent, PulledImage};
    if let Some((record, _)) = PulledImage::read(bytes) {
        assert!(PulledImage::read(&record.text()).is_some_and(|(_, is_current)| is_current));
    }
    if let Some((intent, _)) = Intent::read(bytes) {
        assert!(Intent::read(&intent.text()).is_some());
    }
}

/// The first line is the requested name, the rest is the file.
fn env_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (key, file) = text.split_once('\n').unwrap_or(("", text));
    let lines = file.lines().map(|line| Ok(line.to_owned()));
    let keys = std::collections::BTreeSet::from([key.to_owned()]);
    let (values, error) = env::file::values_of(lines, &keys);
    assert_eq!(values.is_empty(), error.is_some(), "either values or an error");
}

fn a_keyring(bytes: &[u8]) {
    let source = pull_credential::CredentialSource::Node;
    let mut keys = keyring::Keyring::default();
    // Any answer is fine, and so is any credential for an image.
    let _ = (keys.add_config_json(bytes, &source), keys.add_dockercfg(bytes, &source));
    for image in ["pintle.test/box:1", "127.0.0.1:5000/a/b", "busybox", ""] {
        let _ = keys.of(image);
    }
}

/// A status as a runtime answers it, of a container or of a sandbox.
fn cri_answer(bytes: &[u8]) {
    let container = v1::ContainerStatusResponse::decode(bytes).ok().and_then(|a| a.status);
    let container = container.and_then(|status| read_back::container(&status, &"s".into()));
    if let Some((_, container)) = container {
        let mounts = container.mounts.iter();
        let mounts = mounts.map(|m| (m.container_path.as_str(), m.host_path.as_str()));
        let (notes, reason) = (&container.annotations, &container.reason);
        let _ = termination::termination_message(notes, mounts, container.exit_code, reason);
    }
    let sandbox = v1::PodSandboxStatusResponse::decode(bytes).ok().and_then(|a| a.status);
    let _ = sandbox.and_then(|status| read_back::sandbox(&status)); // any answer is fine
}

/// The JSON of a verbose status. Paths from it are always plain.
fn runtime_spec(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let info = [("info".to_owned(), text.to_owned())].into();
    let Some(spec) = VerboseStatus::read(&info).spec else { return };
    let parent = spec.parent_cgroup().map(str::to_owned);
    for path in spec.cgroup.iter().chain(&parent) {
        let below = path.strip_prefix('/').expect("from the top");
        let is_plain = |part: &str| !matches!(part, "" | "." | "..");
        assert!(below.split('/').all(is_plain) || path == "/", "{path:?}");
    }
}
