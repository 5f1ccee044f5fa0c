//! What every daemon needs to know of the API's types, without I/O.
//!
//! ```text
//!   duration, url, jitter, rate  texts, waits and how often something may happen
//!   ids                          names, instants and versions that are not to be taken for another
//!   selector, strategic          labels, and patches as the API server applies them
//!   rng                          chance that a seed repeats, for simulations
//!   quantity                     amounts of resources, exactly
//!   yaml                         files, as the daemons of Kubernetes read them
//!   pod                          everything that follows from a pod's spec alone
//! ```
//! Pure functions and plain data. Nothing here reads a clock, a file or the network.

#![forbid(unsafe_code)]

pub mod duration;
pub mod ids;
pub mod jitter;
pub mod pod;
pub mod quantity;
pub mod rate;
pub mod rng;
pub mod selector;
pub mod strategic;
pub mod url;
pub mod yaml;
