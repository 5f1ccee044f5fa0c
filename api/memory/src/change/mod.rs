//! Changes of objects that exist.
//!
//! ```text
//!   update      PUT, and the one way of all changes: checks, generation, no-ops, last finalizers
//!   patch       the four forms of patches
//!   status      status, finalize and approval: what such an update may change
//!   scale       replicas without the rest of the object
//!   daemon_set  the count of templates that a DaemonSet keeps in an annotation
//! ```

pub(crate) mod daemon_set;
mod patch;
pub(crate) mod scale;
pub(crate) mod status;
pub(crate) mod update;
