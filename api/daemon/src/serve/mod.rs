//! HTTP servers of a daemon: what is listened on, who may ask, and the pages that all components
//! have.
//!
//! ```text
//!   listen  ports and sockets without credentials ─┐
//!   https   the port with them                     ├─> a daemon's own routes ─> answer, body
//!     connections  who gets room, who makes room   │
//!     turns        rates that peers share fairly   │
//!     secure       TLS, authentication, rights  ───┘
//!   checks  healthz, livez, readyz     zpages  statusz, flagz     notify  the service manager
//! ```
//! Nothing a client does costs another one its answer: every bound has a share for each peer.

pub mod answer;
pub mod body;
mod cbor;
pub mod checks;
pub mod connections;
pub mod https;
pub mod listen;
pub mod notify;
pub mod query;
pub mod secure;
mod turns;
pub mod zpages;

#[cfg(test)]
mod port_tests;
