//! The API's types as every daemon needs them, without I/O.
//!
//! ```text
//!   duration, url, jitter, rate  texts, waits and rate limits
//!   kind, key, symbol, symbol_map  kinds and names of objects, interned texts
//!   object                       the fields of an object that informers read
//!   request, reference           a request to the API server and its answer, objects of events, as data
//!   fair                         queues with turns per key
//!   migration                    volumes of in-tree plugins, translated to CSI
//!   node_match                   node affinity, taints and tolerations, for one node
//!   ids                          names, instants and versions as types of their own
//!   selector, strategic          labels, and patches as the API server applies them
//!   lease                        durations of a leader's lease
//!   panics                       panics that are caught, and how many there were
//!   rng                          random numbers that a seed repeats, for simulations
//!   quantity                     amounts of resources, exactly
//!   float                        floating-point numbers as Go writes them
//!   yaml                         files, as the daemons of Kubernetes read them
//!   pod                          everything that follows from a pod's spec alone
//! ```
//! Pure functions and plain data. Nothing here reads a clock, a file or the network.

#![forbid(unsafe_code)]

pub mod duration;
pub mod fair;
pub mod float;
pub mod ids;
pub mod jitter;
pub mod json_field;
pub mod key;
pub mod kind;
pub mod lease;
pub mod migration;
pub mod node_match;
pub mod object;
pub mod panics;
pub mod pod;
pub mod quantity;
pub mod rate;
pub mod reference;
pub mod request;
pub mod rng;
pub mod selector;
pub mod strategic;
pub mod symbol;
pub mod symbol_map;
pub mod url;
pub mod yaml;
