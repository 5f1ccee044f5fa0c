//! Attacks on a node by a tenant, a client, a disk or a runtime, and the service that the node owes
//! all others meanwhile.
//!
//! Each attack is a small function. It does its worst to a real node and lets a *bystander* live
//! through it: a pod with volumes that starts, is probed, dies, is restarted, is read and goes. All
//! of it within three times of what it takes on the quiet node (`bystander::LIMIT_FACTOR`). What
//! the agent itself may grow to meanwhile, see `ground::Vitals`. After each attack its pods go
//! without a trace.
//!
//! One node serves one attack after another, so that what one leaves behind meets the next; after
//! a failure there is a new one. Therefore this target has its own order of things instead of the
//! usual test threads. It takes the arguments of a test program that are needed: parts of names,
//! `--exact`, `--list`. Run all with `cargo xtask test hostile`, some with
//! `cargo test -p pintle-tests --test hostile NAME`.
//!
//! Steps of the clock are not here, because all processes share the host's clock. The simulator has
//! them.

mod bystander;
mod clients;
mod files;
mod ground;
mod hung;
mod manifests;
mod port;
mod probes;
mod runtime;
mod support;
mod tenant;

use std::process::ExitCode;

use anyhow::Result;
use ground::{Ground, Stalls};
use pintle_tests::attacks;

impl attacks::Ground for Ground {
    type Tally = Stalls;
    const OVERALL: &'static str = "all::the_deciding_thread_is_never_busy_for_long";

    fn prepare() -> Self {
        Self::prepare()
    }

    fn recover(&mut self) {
        Self::recover(self);
    }

    fn show_log(&self) {
        Self::show_log(self);
    }

    fn tally(&self, before: Stalls) -> Stalls {
        before.and(self.all_stalls())
    }

    fn check(tally: &Stalls) -> Result<()> {
        tally.check_all()
    }
}

fn main() -> ExitCode {
    attacks::run(&[
        tenant::ATTACKS,
        probes::ATTACKS,
        clients::ATTACKS,
        files::ATTACKS,
        hung::ATTACKS,
        manifests::ATTACKS,
        runtime::ATTACKS,
    ])
}
