//! The node's identity in the cluster: its client certificate and its serving certificate.
//!
//! ```text
//!   bootstrap kubeconfig ─> bootstrap ─┐
//!                                      ├─> request (CSR) ─> store (files) ─> connections, server
//!   validity ─> rotate (when, why) ────┘
//! ```
//! Pure: `certificate`, and the decisions of `rotate`. Effects: `store` writes files, `request`
//! asks the API server, `bootstrap` and `rotate` run them.

pub mod bootstrap;
pub mod certificate;
pub mod request;
pub mod rotate;
pub mod store;
