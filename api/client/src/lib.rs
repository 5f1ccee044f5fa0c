//! Connection to the API server, shared by the three daemons.
//!
//! ```text
//!   kubeconfig ─> Access ─┬─> ClientIdentity (files and plugins, read again when they change)
//!                         └─> kube::Client ─> service (limit, headers, retry) ─> pool ─> dial
//! ```
//! Input: a kubeconfig. Output: `kube::Client`s. `kube` makes requests and reads answers; the
//! transport is ours: HTTP/2 connections with pings, or others with the kernel's probes, so that a
//! dead peer is found within [`DEAD_AFTER`] and replaced, certificates and tokens that may change
//! under way, a limit of requests per second, and a separate connection for callers that ask for
//! one. Code that is specific to one daemon (which objects it watches, what it writes) stays with
//! it. For daemons that run in several replicas, `leader` elects one; their caches are `informer`s.

#![forbid(unsafe_code)]

mod access;
mod account;
mod any_server;
mod breakage;
mod dial;
mod error;
pub mod events;
mod exec;
mod files;
mod identity;
pub mod informer;
mod kubeconfig;
pub mod leader;
mod limit;
mod observer;
mod own_root;
mod places;
mod pool;
mod proxy;
mod send;
mod service;
mod tls;
mod turns;
mod user;

pub use access::{Access, Accounts, ClientOptions, Clients};
pub use any_server::AnyServer;
pub use breakage::is_broken;
pub use error::ConnectError;
pub use kubeconfig::{Data, KubeconfigCluster, User};
pub use observer::{Observer, PluginRun, Sent};
pub use pintle_api_types::rate::Rate;
pub use pool::DEAD_AFTER;
pub use send::send;
pub use service::{AnswerWithin, retry_after};
pub use tls::system_tls;
pub use turns::TenantShare;
