//! In-place resize: what a pod asks for, what it was given, and what its containers really have.
//!
//! Three states of the same numbers. *Desired* is the spec of the source. *Allocated* is what
//! admission granted; workers and everything below them only see the pod with these numbers. *In
//! force* is what the runtime was last given. A resize is done when all three agree.
//!
//! Pure: `allocation` holds and compares the numbers, `change` says what a container needs, `steps`
//! orders the writes, `condition` and `message` make the text for users. Effects are in
//! `runtime::resize`, decisions about pods in `worker::resizes`, the record on disk in `ledger`.

pub mod allocation;
mod asked;
pub mod change;
pub mod condition;
pub mod message;
pub mod steps;

pub use allocation::PodResources;
pub use asked::{Asked, asked};
pub use change::{Change, ContainerUpdate, Figures};
pub use condition::{ResizeCondition, ResizeConditions};
