//! Messages of CRI v1 (Kubernetes 1.36), generated at build time from our own api.proto.
//!
//! Without the services that carry them, and so without a network library: pure decision code
//! builds requests and reads answers, and must not be able to send them. `pintle_cri::v1` has the
//! same messages beside its clients.

#![forbid(unsafe_code)]
#![allow(missing_docs, unreachable_pub, clippy::all, rustdoc::all)]

mod redact;

include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));
