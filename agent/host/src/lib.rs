//! Effects of the agent on its machine: files of pods, mounts, cgroups, records, facts.
//!
//! ```text
//!   volume     directories, mounts and contents of volumes
//!   cgroup     limits and removal of pods' cgroups, their statistics
//!   csi        the files beside volumes of CSI drivers
//!   disk       how full a file system is
//!   flight     the folder of the flight recorder
//!   ledger     what must outlast the agent: restarts, resources given, probe results
//!   node       facts of the machine
//!   shutdown   waits for shutdowns of the machine, and has it wait for the pods
//!   pressure   what the node still has of memory, disk and process numbers
//! ```
//! Each executes plans that the core made. Every path that a pod can change is opened beneath its
//! root, and no operation that a pod can make slow runs on the thread that decides.

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod csi;
pub mod disk;
pub mod flight;
pub mod ledger;
pub mod node;
pub mod pressure;
pub mod shutdown;
pub mod volume;
