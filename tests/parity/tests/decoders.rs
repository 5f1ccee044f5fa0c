//! Every decoder of outside bytes survives a few thousand damaged inputs: the bounded form of the
//! fuzz targets in `tests/fuzz`, on the same entry points and the same seeds, on every host.
//!
//! The damage is drawn from a generator with a fixed seed, so a failure comes back; the input that
//! made a decoder panic is printed by `Dropped`.

#[path = "../../fuzz/targets.rs"]
mod targets;

use std::fs;
use std::path::Path;

/// Path under which the targets find the decoders of servers.
mod server {
    pub(crate) use pintle_agent_server::{fuzz_spdy, fuzz_websocket};
    pub(crate) use pintle_cri::fuzz_exec_answer;
    pub(crate) use pintle_daemon::serve::secure::{fuzz_certificate, fuzz_token};
}

/// Damaged inputs of each seed file.
const DAMAGED: u32 = 1_500;
/// Inputs of only random bytes for each decoder.
const RANDOM: u32 = 1_500;
/// Longest random input in bytes.
const RANDOM_BYTES_MAX: u64 = 300;

/// SplitMix64: enough to pick places and bytes.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % end.max(1)
    }

    fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("it is below a usize")
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).expect("it is below 256")
    }

    fn bytes(&mut self) -> Vec<u8> {
        (0..self.below(RANDOM_BYTES_MAX)).map(|_| self.byte()).collect()
    }

    /// One to four damages: a byte set or taken away, a piece cut, copied or put in.
    fn damage(&mut self, seed: &[u8]) -> Vec<u8> {
        const PIECES: [&[u8]; 12] = [
            b"{",
            b"[",
            b": ",
            b"&a ",
            b"*a",
            b"\n  - ",
            b"!!binary ",
            b"\xff\xfe",
            b"\0",
            b"1e999",
            b"-9223372036854775809",
            b"\"",
        ];
        let mut bytes = seed.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.index(bytes.len() + 1);
            let end = (at + self.index(20)).min(bytes.len());
            match self.below(5) {
                0 if at < bytes.len() => bytes[at] = self.byte(),
                1 => drop(bytes.drain(at..end)),
                2 => {
                    let piece = bytes[at..end].to_vec();
                    let to = self.index(bytes.len() + 1);
                    bytes.splice(to..to, piece);
                }
                3 => bytes.truncate(at),
                _ => {
                    let piece = PIECES[self.index(PIECES.len())];
                    bytes.splice(at..at, piece.iter().copied());
                }
            }
        }
        bytes
    }
}

/// Prints the input on which a decoder panicked.
struct Dropped<'a>(&'a [u8]);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input was \"{}\"", self.0.escape_ascii());
        }
    }
}

fn feed(name: &str, decode: targets::Decoder) {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(name);
    let mut files: Vec<_> = fs::read_dir(&seeds)
        .expect("a folder of seeds")
        .map(|e| e.expect("a seed").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no seeds in {}", seeds.display());
    let mut random = Random(1);
    let run = |bytes: &[u8]| {
        let _shown = Dropped(bytes);
        decode(bytes);
    };
    for file in files {
        let seed = fs::read(&file).expect("a readable seed");
        run(&seed);
        (0..DAMAGED).for_each(|_| run(&random.damage(&seed)));
    }
    (0..RANDOM).for_each(|_| run(&random.bytes()));
}

#[test]
fn damaged_input_is_refused_without_a_panic() {
    std::thread::scope(|scope| {
        for (name, decode) in targets::TARGETS {
            let thread = std::thread::Builder::new().name((*name).to_owned());
            thread.spawn_scoped(scope, move || feed(name, *decode)).expect("a thread");
        }
    });
}

#[test]
fn every_folder_of_seeds_has_its_decoder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    for entry in fs::read_dir(folder).expect("folders of seeds") {
        let name = entry.expect("a folder").file_name();
        assert!(targets::TARGETS.iter().any(|(known, _)| name == *known), "{name:?}");
    }
}

#[test]
fn every_seed_is_a_valid_input() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    let seeds = |name: &str| {
        let files = fs::read_dir(folder.join(name)).expect("a folder of seeds");
        files.map(|e| fs::read(e.expect("a seed").path()).expect("a readable seed"))
    };
    for line in seeds("log_line") {
        pintle_agent_core::logs::line::parse(&line).expect("a log line");
    }
    for event in seeds("kernel_event") {
        pintle_ebpf::decode(&event).expect("a kernel event");
    }
}
