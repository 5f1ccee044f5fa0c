//! The simulator: the real core, a simulated world, one seed each.
//!
//! `Pods` is the product's own; clock, runtime, kernel events and manifests are simulated, with
//! delays, failures, lost replies, lost and doubled hints, crashes of the agent and restarts of the
//! runtime. Whatever happens, the rules in `check` must hold at every step, and once the faults
//! stop the node must become what the manifests say, with nothing left over.
//!
//! A failure prints its seed: `PINTLE_SEED=N cargo test -p pintle-agent-core --test sim` repeats it.
//! `PINTLE_SEEDS=N` runs more worlds than usual, `PINTLE_TRACE=1` prints every step.

#![allow(unreachable_pub, reason = "modules of one test program")]

mod agent;
mod apiserver;
mod check;
mod pods;
mod runtime;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use pintle_api_types::rng;
use world::{Faults, World};

/// Worlds of one run, and the first seed of each test so that tests do not repeat each other.
const SEEDS: u64 = 500;

fn seeds(first: u64, share: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("PINTLE_SEED") {
        return vec![seed];
    }
    let count = number("PINTLE_SEEDS").unwrap_or(SEEDS) * share / 100;
    (first..first + count).collect()
}

fn run_all(seeds: Vec<u64>, faults: Faults) {
    let mut stats = world::Stats::default();
    for seed in seeds {
        let run = catch_unwind(AssertUnwindSafe(|| World::new(seed, faults).run()));
        match run {
            Ok(one) => stats.add(&one),
            Err(cause) => {
                let text = cause.downcast_ref::<String>().map_or("no message", String::as_str);
                panic!("seed {seed} ({faults:?}): {text}");
            }
        }
    }
    println!("{stats:?}");
    // A simulator in which nothing happens proves nothing.
    assert!(!faults.api || stats.completed > stats.worlds / 2, "{stats:?}");
    assert!(stats.started > stats.worlds && stats.exited > 0, "{stats:?}");
}

#[test]
fn pods_reach_what_their_manifests_say_in_a_calm_world() {
    run_all(seeds(1, 20), Faults::CALM);
}

#[test]
fn pods_survive_failing_calls_and_lost_replies_and_hints() {
    run_all(seeds(10_000, 30), Faults::CALLS);
}

#[test]
fn crashing_the_agent_at_any_step_breaks_no_rule() {
    run_all(seeds(20_000, 30), Faults::CRASHES);
}

#[test]
fn everything_at_once_still_converges() {
    run_all(seeds(30_000, 20), Faults::ALL);
}

#[test]
fn pods_of_an_api_server_that_lags_fails_and_goes_away() {
    run_all(seeds(40_000, 60), Faults::API);
}

#[test]
fn pods_of_an_api_server_while_the_agent_dies_at_any_step() {
    run_all(seeds(50_000, 40), Faults::API_CRASHES);
}

#[test]
fn a_world_is_the_same_for_the_same_seed() {
    let one = World::new(77, Faults::ALL).run();
    let two = World::new(77, Faults::ALL).run();
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
}
