//! Attacks of a tenant, a client, a disk or a runtime on a node, which must keep serving all other
//! users meanwhile.
//!
//! Each attack is a small function. It attacks a real node while a *bystander* lives there: a pod
//! with volumes that starts, is probed, dies, restarts, is read and is deleted. Each part may take
//! at most three times as long as on the quiet node (`bystander::LIMIT_FACTOR`). For the limits of
//! the agent itself see `ground::Vitals`. After each attack its pods must be gone without a trace.
//!
//! One node serves one attack after another, so that the next attack meets the leftovers of the
//! last; after a failure there is a new node. Therefore this target runs its tests in order instead
//! of on the usual test threads. It takes the necessary arguments of a test program: parts of
//! names, `--exact`, `--list`. Run all with `cargo xtask test hostile`, some with `cargo test -p
//! pintle-agent-tests --test hostile NAME`.
//!
//! No attack steps the clock, because the host shares it. The simulator does.

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
use ground::{AttackedNode, Stalls};
use pintle_testbed::attacks;

impl attacks::AttackTarget for AttackedNode {
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

    fn tally(&self) -> Stalls {
        self.all_stalls()
    }

    fn check(tally: &Stalls) -> Result<()> {
        tally.check_all()
    }
}

/// Attacks by a few pods that wait for more than half a minute each: they slow down no bystander of
/// the other attacks.
const WAITING: [&str; 3] = [
    "hung::volumes_of_a_dead_file_server",
    "hung::host_paths_on_a_dead_server",
    "runtime::an_image_that_cannot_be_had",
];

fn main() -> ExitCode {
    let themes = [
        tenant::ATTACKS,
        probes::ATTACKS,
        clients::ATTACKS,
        files::ATTACKS,
        hung::ATTACKS,
        manifests::ATTACKS,
        runtime::ATTACKS,
    ];
    attacks::run(&themes, &WAITING)
}
