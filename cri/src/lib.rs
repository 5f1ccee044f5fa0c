//! The container runtime interface (CRI v1 of Kubernetes 1.36), seen from the node agent.
//!
//! In the order in which a call passes through:
//!   v1          services, generated at build time from our own api.proto, and their messages
//!   call        one table: method, request, reply, deadline class, subject
//!   deadlines   how long each class of call may take
//!   in_flight   the calls in flight, for `explain` and metrics
//!   transport   unix socket, reconnecting with backoff; `socket` is the socket itself
//!   client      `Client`: typed methods over all of the above
//!   error       `Error`: method, subject, code and origin of a failed call
//!   containerd  containerd's own API: task exits and OOM kills as hints, image import
//!   fake        (feature `fake`) a runtime in memory behind a real socket, for tests
//!   json        (feature `json`) messages as JSON with protobuf field names, for tests
//!
//! Nothing here decides anything about pods. Every call has a deadline, every failure names its
//! method and subject, every message is at most `MESSAGE_BYTES_MAX`. Works with containerd 1.7,
//! which has no runtime configuration, and 2.x: what a runtime does not implement is asked once per
//! connection.
#![forbid(unsafe_code)]

pub mod call;
pub mod client;
pub mod containerd;
pub mod deadlines;
pub mod error;
pub mod exec;
mod exec_answer;
#[cfg(feature = "fake")]
pub mod fake;
pub mod in_flight;
#[cfg(feature = "json")]
pub mod json;
mod socket;
pub mod transport;

pub use call::{CriCall, Method, StreamCall};
pub use client::{Client, Replies};
pub use deadlines::Deadlines;
pub use error::{Code, Error, code_name};
pub use exec_answer::fuzz as fuzz_exec_answer;
pub use in_flight::{InFlight, Observer};

/// CRI v1: generated from `proto/runtime/v1/api.proto`, the messages in a crate of their own.
#[allow(missing_docs, unreachable_pub, clippy::all, rustdoc::all)]
pub mod v1 {
    pub use pintle_cri_v1::*;
    tonic::include_proto!("runtime.v1");
}

/// The encoded `FileDescriptorSet` of `runtime.v1`, without source positions.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));

/// The largest message sent or accepted, in bytes.
// k8s: cri-client/pkg/remote_runtime.go maxMsgSize
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
