//! The scheduler beside a real API server, the real kube-scheduler and its framework. Nodes exist
//! in the API alone. The API server in memory is compared with the real one here, too.
//!
//! Needs root, Go and the network once (see docs/TESTING.md). Run it with `cargo xtask test
//! scheduler` or `cargo test -p pintle-scheduler-tests --test scheduler NAME`.

#![allow(unreachable_pub, reason = "modules of one test program")]

mod allocatable_vectors;
mod binds;
#[path = "../sched/compare.rs"]
mod compare;
mod device_vectors;
mod devices;
mod enrich;
mod extender;
#[path = "../sched/generate.rs"]
#[allow(dead_code, reason = "what tests of columns use besides")]
mod generate;
#[path = "../golang/mod.rs"]
mod golang;
mod in_tree_worlds;
#[path = "../memory/mod.rs"]
mod memory;
mod metrics;
mod plugins;
mod preemption_vectors;
mod profiles;
#[path = "../reading/mod.rs"]
mod reading;
#[path = "../sched/recorded.rs"]
#[allow(dead_code, reason = "what tests of recordings use besides")]
mod recorded;
#[path = "../sched/reference.rs"]
#[allow(dead_code, reason = "what tests of columns use besides")]
mod reference;
mod selector_vectors;
mod shadow;
#[allow(dead_code, reason = "what attacks on the scheduler use besides")]
mod stand;
mod vectors;
mod volume_vectors;
mod volume_worlds;
mod volumes;
mod world;
