//! The next actions of a pod that may run, the order of its stop, the length of waits.

pub mod backoff;
pub mod plan;
pub mod plan_init;
pub mod restart;
pub mod stop_order;
