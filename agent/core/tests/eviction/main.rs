//! Worlds of a node that runs short: the real `Evictor`, a simulated node, one seed each.
//!
//! Pods eat memory or disk at random rates, and stop. Observations come late, never or twice, and
//! may show a disk as it was some seconds ago, or without pods' usage; freeing is slow, frees
//! nothing or is never answered; pods take their time to end; the agent dies; the kernel kills the
//! largest pod when no memory is left. Spared pods are chosen by `worker::Pods` and not a part of
//! these worlds.
//!
//! In some, `--pintle-psi-eviction` is on: page cache counts as used, and stall shows the shortage.
//!
//! A failure prints its seed; `PINTLE_SEED=N` repeats it, `PINTLE_SEEDS=N` runs more worlds.

#![allow(unreachable_pub, reason = "modules of one test program")]

mod check;
mod world;

use world::{EvictionWorld, Stats};

/// Worlds of a run.
const SEEDS: u64 = 400;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn a_node_that_runs_short_ends_no_pod_too_many_and_none_too_late() {
    let seeds = match number("PINTLE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PINTLE_SEEDS").unwrap_or(SEEDS),
    };
    let (mut all, count) = (Stats::default(), seeds.end - seeds.start);
    for seed in seeds {
        all.add(&EvictionWorld::new(seed).run());
    }
    println!("{all:?}");
    // Worlds in which nothing happens prove nothing.
    let often = all.evicted > count && all.soft > count / 10 && all.reclaims > count;
    let rare = all.deaths > count / 2 && all.oom_kills > 0 && all.stuck > 0 && all.lost > count;
    let by_stall = all.stalled > count / 4 && all.hogs > 0 && all.cached > count;
    assert!(count == 1 || often && rare && by_stall, "{all:?}");
}
