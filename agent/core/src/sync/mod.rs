//! What to do next for a pod that may run, in which order to stop it, how long to wait.

pub mod backoff;
pub mod plan;
pub mod plan_init;
pub mod restart;
pub mod stop_order;
