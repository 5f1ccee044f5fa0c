//! Attacks on the scheduler: what a user with the rights to write pods, claims and budgets in one
//! namespace, or a client without any rights, may do to it, and the service that it owes all others
//! meanwhile.
//!
//! Each attack is a small function. It writes its worst into a real API server and lets a
//! *bystander* live beside it: a pod of another namespace that must be bound within three times of
//! what that takes on the quiet cluster and two seconds (`ground::limit`). The scheduler must stay
//! one process, below a limit of memory, healthy, and the holder of its lease; the attacker's own
//! pods must be answered, by a node or by a sentence. Run all with `cargo xtask test hostile`, some
//! with `cargo test -p pintle-tests --test hostile_sched NAME`.

#![allow(unreachable_pub, reason = "modules of one test program")]

mod affinity;
mod claims;
mod clients;
mod extenders;
mod ground;
mod groups;
mod nodes;
mod pods;
#[path = "../scheduler/stand.rs"]
#[allow(dead_code, reason = "what tests beside kube-scheduler use")]
mod stand;
mod volumes;

use std::process::ExitCode;

use pintle_tests::attacks;

fn main() -> ExitCode {
    attacks::run(&[
        claims::ATTACKS,
        affinity::ATTACKS,
        volumes::ATTACKS,
        pods::ATTACKS,
        nodes::ATTACKS,
        groups::ATTACKS,
        extenders::ATTACKS,
        clients::ATTACKS,
    ])
}
