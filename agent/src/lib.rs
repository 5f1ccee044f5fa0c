//! pintle-agent: a Kubernetes node agent. Here its stages are put together.
//!
//! ```text
//!   files, URL ─> source ─> intake ─┐                   ┌─> runtime ─> CRI
//!   cluster::pods ──────────────────┼─> driver (core) ──┼─> host: volumes, cgroups, ledger
//!   runtime::event, probe, observed ┘                   └─> cluster: status, events; server: views
//! ```
//! `app` starts everything, `driver` feeds the core and carries out its commands. Decisions are in
//! `pintle-agent-core`.

#![forbid(unsafe_code)]

pub mod app;
mod driver;
mod intake;
mod pressure;
mod source;
