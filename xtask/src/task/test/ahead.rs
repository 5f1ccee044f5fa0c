//! Artefacts of later stages, built while earlier stages leave time: upstream's programs, the
//! runtimes, the suites' images, guests' kernel and root, and the agent.
//!
//! A stage that needs one of them earlier waits for its lock. A failure here does not count: the
//! stage that needs the artefact tries again.

use std::sync::Arc;
use std::thread;

use anyhow::Result;

use super::TestRun;
use crate::image::{e2e, set};
use crate::runtime::{Runtime, Version};
use crate::task::vectors;
use crate::upstream::Program;
use crate::{cluster, shell, uml};

/// Starts the work that needs no cargo: compiling Go, downloading.
pub(super) fn start() {
    in_background("upstream's programs", || {
        Program::FOR_CLUSTERS.iter().try_for_each(|program| program.ensure().map(drop))?;
        e2e::layout()?;
        cluster::template()?;
        Program::FOR_SUITES.iter().try_for_each(|program| program.ensure().map(drop))?;
        vectors::KINDS.iter().try_for_each(|kind| kind.program.ensure().map(drop))
    });
    in_background("runtimes and images", || {
        e2e::fetch_parts()?;
        Version::sampled()?
            .into_iter()
            .try_for_each(|version| Runtime::ensure(version).map(drop))?;
        set::archive()?;
        uml::prepare()
    });
}

/// Compiles the agent of the end-to-end tests, while other stages run programs that are ready.
pub(super) fn build_agent(run: &Arc<TestRun>) {
    let run = Arc::clone(run);
    in_background("the agent", move || run.agent().map(drop));
}

fn in_background(what: &'static str, work: impl FnOnce() -> Result<()> + Send + 'static) {
    thread::spawn(move || {
        if let Err(error) = work() {
            shell::say("", &format!("{what}: not made yet: {error:#}"));
        }
    });
}
