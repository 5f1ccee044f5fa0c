//! In-place resize: the desired, the allocated and the actuated resources of a pod.
//!
//! Three states of the same numbers. *Desired* is the spec of the source. *Allocated* is the grant
//! of admission; workers and everything below them only see the pod with these numbers. *In force*
//! are the numbers last given to the runtime. A resize is done when all three agree.
//!
//! Pure: `allocation` holds and compares the numbers, `change` decides the update of a container,
//! `steps` orders the writes, `condition` and `message` make the text for users. Effects are in
//! `runtime::resize`, decisions about pods in `worker::resizes`, the record on disk in `ledger`.

pub mod allocation;
mod asked;
pub mod change;
pub mod condition;
pub mod message;
pub mod steps;

pub use allocation::PodResources;
pub use asked::{ResizeRequest, asked};
pub use change::{ContainerUpdate, Figures, ResizeAction};
pub use condition::{ResizeCondition, ResizeConditions};
