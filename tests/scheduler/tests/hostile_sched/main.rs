//! Attacks on the scheduler by a user with the rights to write pods, claims and budgets in one
//! namespace, or by a client without any rights.
//!
//! Each attack is a small function. It writes hostile objects into a real API server while a
//! *bystander* lives there: a pod of another namespace that must be bound within three times its
//! time on the quiet cluster plus two seconds (`ground::limit`). The scheduler must stay one
//! process, below a limit of memory, healthy, and the holder of its lease; the attacker's own pods
//! must get a node or a message. Run all with `cargo xtask test hostile`, some with `cargo test -p
//! pintle-scheduler-tests --test hostile_sched NAME`.

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

use pintle_testbed::attacks;

fn main() -> ExitCode {
    let themes = [
        claims::ATTACKS,
        affinity::ATTACKS,
        volumes::ATTACKS,
        pods::ATTACKS,
        nodes::ATTACKS,
        groups::ATTACKS,
        extenders::ATTACKS,
        clients::ATTACKS,
    ];
    attacks::run(&themes, &[])
}
