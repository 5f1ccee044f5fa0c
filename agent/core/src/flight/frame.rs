//! Recorded frames, and the digest of a command.
//!
//! A frame is JSON. An input and its resulting commands are two frames, the input first: it is on
//! its way to the disk before the decision is made, so an input that makes the agent panic is the
//! last frame of the record.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fnv::Fnv;
use crate::ledger::Entries;
use crate::worker::{Command, PodsInput, Settings, State, Worker};
use pintle_api_types::ids::{Now, PodUid};

use super::pack::Packed;
use super::redact::Seal;

/// An agent begins: all that `Pods` is given before its first input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentStart {
    /// The agent's version. Another one may decide differently, and a replay reports that.
    pub version: String,
    /// Of `Pods::new`.
    pub settings: Settings,
    /// Of `Pods::restore`.
    pub allocated: Entries,
    /// Of `Pods::restore`.
    pub actuated: Entries,
}

/// One frame.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Frame {
    /// An agent begins.
    Start(Box<AgentStart>),
    /// `Pods::handle` was given this.
    Input {
        /// When.
        now: Now,
        /// The input.
        input: Box<PodsInput>,
    },
    /// The result of the input before: a digest of each command, in order.
    Commands(Vec<Digest>),
    /// A pod of the `State` that follows.
    Worker(PodUid, Box<Worker>),
    /// The state of the decisions after all frames before, at the beginning of a segment; its pods
    /// come before it, each in a frame of its own.
    State(Box<State>),
    /// A compressed frame. Readers get the frame within.
    Packed(Packed),
    /// A frame that is whole and that this program does not know: another version wrote it. Only ever
    /// read.
    #[serde(skip)]
    Unknown {
        /// How long it is.
        bytes: u64,
    },
    /// Frames are missing: nothing after it can be replayed until there is a state.
    Omitted {
        /// How long the frame was that was too long; 0 for frames that there was no room for.
        bytes: u64,
    },
}

/// A digest of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest(pub u64);

/// FNV-1a over the command's JSON without secrets, which is nowhere as a whole.
pub fn digest_of(command: &Command, seal: &impl Seal) -> Digest {
    let mut hash = Hash(Fnv::default());
    seal.write(command, &mut hash);
    Digest(hash.0.number())
}

/// Hashes the written bytes.
struct Hash(Fnv);

impl io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.bytes(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Its JSON. Ids, texts and numbers with text as keys always have one.
pub(super) fn plain(of: &impl Serialize) -> Value {
    serde_json::to_value(of).expect("plain data with texts as keys serialises")
}
