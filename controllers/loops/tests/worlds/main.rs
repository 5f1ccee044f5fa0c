//! Worlds: all controllers over an API server in memory, with a kubelet, a scheduler, users, and
//! everything that can go wrong between them. One seed is one world.
//!
//! ```text
//!   users ──requests──> server (pintle-memory-api) <──requests── managers (the whole frame)
//!                          │ events, each kind with its own lag      ^
//!                          ├─────────────────────────────────────────┘
//!                          └──> kubelet and scheduler of a hundred lines
//! ```
//! Faults: lag and reordering between kinds, conflicts, lost answers, requests that arrive after
//! their sender's death, crashes between any two requests, a second manager that leads too early.
//! Checks: after each request (checks.rs), and at the end, when nothing moves any more: the wanted
//! state is reached, and restarted managers write nothing.

mod checks;
mod cluster;
mod manager;
mod recorded;
mod silence;
mod users;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use world::{FaultRates, ManagerWorld};

/// Worlds with seeds of their own in each run.
const FRESH: u64 = 500;
/// Worlds that failed once: a manager that had lost its lease created a pod of a Job that had ended.
const SEEN: [u64; 1] = [1_795_991_682_585];

/// Runs a world of each seed, on every CPU.
fn run_all(seeds: std::ops::Range<u64>) {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            run(seed, FaultRates::of_seed(seed));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
}

fn run(seed: u64, faults: FaultRates) {
    let result = std::panic::catch_unwind(|| ManagerWorld::new(seed, faults).run());
    if let Err(panic) = result {
        eprintln!("the world of seed {seed} failed; PINTLE_SEED={seed} repeats it");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn world_without_faults_reaches_its_wanted_state() {
    (0..20).for_each(|seed| run(seed, FaultRates::none()));
}

#[test]
fn world_with_faults_reaches_its_wanted_state() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("PINTLE_SEED") {
        return run(seed, FaultRates::of_seed(seed));
    }
    let count = number("PINTLE_SEEDS").unwrap_or(FRESH);
    let first = number("PINTLE_FRESH").unwrap_or_else(seed_of_now);
    println!("worlds {first} to {}", first + count - 1);
    run_all(first..first + count);
}

#[test]
fn world_of_a_formerly_failing_seed_reaches_its_wanted_state() {
    SEEN.into_iter().for_each(|seed| run(seed, FaultRates::of_seed(seed)));
}

/// A seed that the last run did not have.
fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("after 1970").as_secs() * 1_000
}
