//! HTTP servers of a daemon: listeners, access control, and the pages that all components have.
//!
//! ```text
//!   listen  ports and sockets without credentials ─┐
//!   https   the port with them                     ├─> a daemon's own routes ─> answer, body
//!     connections  admission, displacement         │
//!     turns        rates that peers share fairly   │
//!     secure       TLS, authentication, rights  ───┘
//!   checks  healthz, livez, readyz     zpages  statusz, flagz     notify  the service manager
//! ```
//! No client's requests cost another client its answer: every bound has a share for each peer.

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
