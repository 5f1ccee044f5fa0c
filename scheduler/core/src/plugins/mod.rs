//! In-tree plugins with state of their own: volumes, and devices (DRA).
//!
//! Input: objects of the plugin's kinds, the pod under decision. Output: statuses and scores of
//! nodes, what to write for the chosen one. Owner: the cache keeps the state, a decision asks it.
//! Plugins without state are `pintle-sched-core`'s.
// k8s: pkg/scheduler/framework/plugins

pub mod dynamicresources;
pub mod volumes;
