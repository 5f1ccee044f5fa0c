//! What every daemon needs to know of the API's types, without I/O.
//!
//! ```text
//!   duration, url, jitter, rate  texts, waits and how often something may happen
//!   kind, key, symbol, symbol_map  kinds and names of objects, texts kept once
//!   request                      a request to the API server and its answer, as data
//!   fair                         queues whose keys take turns
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
pub mod fair;
pub mod ids;
pub mod jitter;
pub mod json_field;
pub mod key;
pub mod kind;
pub mod pod;
pub mod quantity;
pub mod rate;
pub mod request;
pub mod rng;
pub mod selector;
pub mod strategic;
pub mod symbol;
pub mod symbol_map;
pub mod url;
pub mod yaml;
