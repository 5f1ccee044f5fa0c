//! An API server in memory: objects, versions, watches and rights as a pure state machine.
//!
//! ```text
//!   identity, rights     the sender of a request, and what upstream's roles allow
//!   server, refusal      requests in, answers out; requests that a test wants refused
//!   create, admission, defaults   new objects
//!   change               updates, patches, statuses, scale
//!   delete, namespace    deletions, graces, finalizers
//!   below, evict         tokens, bindings, reviews, evictions
//!   read                 reads and lists
//!   store                objects, versions and events
//!   rules, canonical, validate, meta, errors   what the above share
//! ```
//! Input: requests as data, the time, a seed. Output: answers, and events for watches. There is no
//! clock, socket or chance in here: a simulator passes the time and decides which answers get lost.
//! Not modelled: most validation, quota and limits, field managers, field selectors, pages.

#![forbid(unsafe_code)]

mod admission;
mod below;
mod canonical;
mod change;
mod create;
mod defaults;
mod delete;
mod errors;
mod evict;
mod identity;
mod meta;
mod namespace;
mod read;
mod refusal;
mod rights;
mod rules;
mod server;
mod store;
mod validate;

pub use identity::Identity;
pub use read::metadata_of;
pub use refusal::{Refusal, Verb};
pub use server::Server;
pub use store::{Change, Event};

#[cfg(test)]
mod tests;
