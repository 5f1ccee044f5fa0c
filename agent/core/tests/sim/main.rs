//! The simulator: the real core, a simulated world, one seed each.
//!
//! `Pods` is the product's own; clock, runtime, kernel events and manifests are simulated, with
//! delays, failures, lost replies, lost and doubled hints, crashes of the agent and restarts of the
//! runtime. Whatever happens, the rules in `check` must hold at every step, and once the faults
//! stop the node must agree with the manifests, with nothing left over.
//!
//! A failure prints its seed and how to repeat it. `PINTLE_SEEDS=N` runs more worlds than usual,
//! `PINTLE_FRESH=FIRST` chooses new ones from that seed on, `PINTLE_TRACE=1` prints every step.

#![allow(unreachable_pub, reason = "modules of one test program")]

mod agent;
mod apiserver;
mod check;
mod faults;
mod flight;
mod machine;
mod node;
mod pods;
mod runtime;
mod shortage;
mod storage;
mod truth;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use faults::{Fault, Faults};
use pintle_api_types::rng;
use world::{Stats, World};

/// Worlds of a run with the same seeds each time, for each of the two kinds of sources.
const SEEDS: u64 = 200;
/// Worlds of a run with new seeds and faults, if the first seed is given, as `cargo xtask test`
/// does. Else it is a tenth of them.
const FRESH: u64 = 600;
/// The same for worlds of volumes, which are smaller.
const FRESH_OF_VOLUMES: u64 = 2_000;
/// Fresh worlds that failed once: a container that waits longer and longer got a new sandbox; a
/// restored store took away a container that was about to start; the wall clock stepped back behind
/// a deadline before the agent died; a manifest went and came back; a sidecar that never starts; a
/// pod was deleted while its containers, some of them over, were created again in a new sandbox; a
/// deadline passed before a new agent saw containers that had ended in time; a restored store
/// reported an end of a pod that was started again; a pod came back and was over before it could
/// begin; a running pod was removed that waited for admission by a new agent; a container ended by
/// itself between two attempts to kill it for its probe; a pod past its deadline was deleted before a
/// new agent saw it; a resize that lost its answer was taken back.
const SEEN: [u64; 17] = [
    646_772_827_032,
    353_344_152_459,
    353_344_152_689,
    864_779_536_290,
    362_682_709_055,
    362_682_713_479,
    864_779_536_695,
    362_682_714_433,
    362_682_710_729,
    31_925_702_949,
    66_138_343_601,
    66_138_344_513,
    5_001_001_045,
    8_001_001_398,
    378_000_963_290,
    796_035_077_091,
    947_639_601_872,
];
/// Worlds with everything at once that failed once: a manifest was removed while its source began
/// to report, twice; one was removed and came back, and its end was reported in between.
const SEEN_WITH_EVERYTHING: [u64; 3] = [30_512, 30_899, 30_770];
/// A world of an API server and of agents that die that failed once: a pod was refused for the room
/// of a pod that was over and deleted, and that the new agent had not read yet.
const SEEN_WITH_DEATHS: [u64; 1] = [52_359];
/// Worlds of each kind in which the decisions are recorded and replayed.
const RECORDED: u64 = 20;
/// Steps after which the agent dies once, in each of a few worlds.
const DEATHS: u64 = 150;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn seeds(first: u64, share: u64) -> Vec<u64> {
    if let Some(seed) = number("PINTLE_SEED") {
        return vec![seed];
    }
    let count = number("PINTLE_SEEDS").unwrap_or(SEEDS) * share / 100;
    (first..first + count).collect()
}

/// Calls `work` with each seed, on every CPU.
fn on_every_cpu(seeds: &[u64], work: impl Fn(u64) + Sync) {
    let next = AtomicUsize::new(0);
    let work_on = || {
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(*seed);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work_on);
        }
    });
}

/// Runs a world of each seed and adds up the counts.
fn run_all(seeds: &[u64], world: impl Fn(u64) -> World + Sync) -> Stats {
    let (stats, failed) = (Mutex::new(Stats::default()), Mutex::new(Vec::new()));
    on_every_cpu(seeds, |seed| {
        let faults = world(seed).faults;
        match catch_unwind(AssertUnwindSafe(|| world(seed).run())) {
            Ok(one) => stats.lock().expect("no panic within").add(&one),
            Err(cause) => {
                let text = cause.downcast_ref::<String>().map(String::as_str);
                let text = text.or(cause.downcast_ref::<&str>().copied());
                let text = text.unwrap_or("no message");
                let line = format!("seed {seed} {faults:?}: {text}");
                failed.lock().expect("no panic within").push((seed, line));
            }
        }
    });
    let failed = failed.into_inner().expect("no panic within");
    if let Some((seed, _)) = failed.first() {
        let lines: Vec<_> = failed.iter().map(|(_, line)| line.as_str()).collect();
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        panic!(
            "{} of {} worlds failed; PINTLE_SEED={seed} cargo test -p pintle-agent-core --test sim \
             {test} repeats the first\n{}",
            failed.len(),
            seeds.len(),
            lines[..lines.len().min(20)].join("\n")
        );
    }
    let stats = stats.into_inner().expect("no panic within");
    println!("{stats:?}");
    stats
}

/// A simulator in which nothing happens proves nothing.
fn run_preset(seeds: &[u64], faults: Faults) {
    let stats = run_all(seeds, |seed| World::new(seed, faults));
    let api = faults.has(Fault::Api);
    assert!(!api || stats.completed > stats.worlds / 2, "{stats:?}");
    assert!(stats.started > stats.worlds && stats.exited > 0, "{stats:?}");
    let dies = faults.has(Fault::Crashes) && seeds.len() > 1;
    assert!(!dies || stats.crashes_in_sync > stats.worlds / 4, "{stats:?}");
}

/// Seeds of so many new worlds, if the first one is given; else of a tenth, the same ones.
fn fresh_seeds(usual: u64) -> Vec<u64> {
    if let Some(seed) = number("PINTLE_SEED") {
        return vec![seed];
    }
    let given = number("PINTLE_FRESH");
    let count = number("PINTLE_SEEDS").unwrap_or(if given.is_some() { usual } else { usual / 10 });
    let first = 1_000_000 + given.unwrap_or(0) % 1_000_000_000_000;
    println!("{count} seeds from {first}");
    (first..first + count).collect()
}

#[test]
fn worlds_from_fresh_seeds_converge_under_randomly_drawn_faults() {
    let stats = run_all(&fresh_seeds(FRESH), |seed| World::new(seed, Faults::drawn(seed)));
    let one = stats.worlds == 1;
    assert!(one || stats.crashes_in_sync > stats.worlds / 20, "{stats:?}");
}

#[test]
fn worlds_that_failed_once_converge() {
    run_all(&SEEN, |seed| World::new(seed, Faults::drawn(seed)));
    run_all(&SEEN_WITH_EVERYTHING, |seed| World::new(seed, Faults::ALL));
    run_all(&SEEN_WITH_DEATHS, |seed| World::new(seed, Faults::API_CRASHES));
}

#[test]
fn an_agent_may_die_after_any_step() {
    for (first, faults) in [(60_000, Faults::CALM), (61_000, Faults::API)] {
        let repeated = number("PINTLE_SEED").map(|seed| vec![seed]);
        let seeds = repeated.unwrap_or_else(|| (first..first + DEATHS).collect());
        let stats = run_all(&seeds, |seed| {
            // A few worlds; the seed also chooses the step after which it dies.
            World::new(first + seed % 3, faults).dying_after(1 + seed.saturating_sub(first))
        });
        assert!(seeds.len() == 1 || stats.crashes_in_sync > stats.worlds / 4, "{stats:?}");
    }
}

#[test]
fn pods_converge_to_their_manifests_in_a_calm_world() {
    run_preset(&seeds(1, 20), Faults::CALM);
}

#[test]
fn pods_survive_failing_calls_and_lost_replies_and_hints() {
    run_preset(&seeds(10_000, 30), Faults::CALLS);
}

#[test]
fn crashing_the_agent_at_any_step_breaks_no_rule() {
    run_preset(&seeds(20_000, 30), Faults::CRASHES);
}

#[test]
fn everything_at_once_still_converges() {
    run_preset(&seeds(30_000, 20), Faults::ALL);
}

#[test]
fn pods_converge_with_an_api_server_that_lags_fails_and_disappears() {
    run_preset(&seeds(40_000, 60), Faults::API);
}

#[test]
fn pods_of_an_api_server_while_the_agent_dies_at_any_step() {
    run_preset(&seeds(50_000, 40), Faults::API_CRASHES);
}

#[test]
fn a_machine_that_shuts_down_ends_its_pods_in_order_and_in_time() {
    let stats = run_all(&seeds(80_000, 40), |seed| World::new(seed, Faults::SHUTDOWN));
    assert!(stats.worlds == 1 || stats.shutdowns > stats.worlds / 3, "{stats:?}");
    assert!(stats.worlds == 1 || stats.given_up > stats.worlds / 10, "{stats:?}");
}

#[test]
fn node_shutdown_breaks_no_rule_while_the_agent_crashes_at_any_step() {
    for (first, faults) in
        [(81_000, Faults::SHUTDOWN_CRASHES), (82_000, Faults::SHUTDOWN_CRASHES.and(Fault::Api))]
    {
        let stats = run_all(&seeds(first, 60), |seed| World::new(seed, faults));
        assert!(stats.worlds == 1 || stats.shutdowns > stats.worlds / 3, "{stats:?}");
        assert!(stats.worlds == 1 || stats.crashed_in_shutdown > stats.worlds / 10, "{stats:?}");
    }
}

#[test]
fn memory_hog_alone_is_evicted_in_time_despite_api_faults_and_agent_crashes() {
    for (first, faults) in [
        (90_000, Faults::API.and(Fault::Memory)),
        (91_000, Faults::API_CRASHES.and(Fault::Calls).and(Fault::Memory)),
    ] {
        let stats = run_all(&seeds(first, 40), |seed| World::new(seed, faults));
        assert!(stats.worlds == 1 || stats.evicted > stats.worlds / 2, "{stats:?}");
        assert!(stats.worlds == 1 || stats.evicted_late <= stats.evicted / 100, "{stats:?}");
    }
}

#[test]
fn static_pods_are_never_evicted_under_memory_pressure() {
    let stats =
        run_all(&seeds(92_000, 20), |seed| World::new(seed, Faults::ALL.and(Fault::Memory)));
    assert_eq!(stats.evicted, 0);
}

#[test]
fn replay_of_a_recorded_world_makes_the_same_decisions() {
    for (first, faults) in
        [(70_000, Faults::ALL), (71_000, Faults::API_CRASHES), (72_000, Faults::SHUTDOWN_CRASHES)]
    {
        let repeated = number("PINTLE_SEED").map(|seed| vec![seed]);
        let seeds = repeated.unwrap_or_else(|| {
            let count = number("PINTLE_SEEDS").unwrap_or(RECORDED);
            (first..first + count).collect()
        });
        let stats = run_all(&seeds, |seed| World::new(seed, faults).recorded());
        assert!(seeds.len() == 1 || stats.crashes > 0, "{stats:?}");
    }
}

#[test]
fn volumes_stay_on_one_node_and_end_with_their_pods_despite_faults_and_crashes() {
    let all = Mutex::new(storage::Stats::default());
    on_every_cpu(&fresh_seeds(FRESH_OF_VOLUMES), |seed| {
        let run = || storage::World::new(seed).run();
        let one = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            panic!("PINTLE_SEED={seed} repeats the world of volumes that failed")
        });
        all.lock().expect("no panic within").add(&one);
    });
    let all = all.into_inner().expect("no panic within");
    println!("{all:?}");
    let each = |count: u64| assert!(all.worlds == 1 || count > all.worlds / 2, "{all:?}");
    for count in [all.calls, all.deaths_in_call, all.uncertain, all.shared, all.detached] {
        each(count);
    }
}

#[test]
fn a_world_is_the_same_for_the_same_seed() {
    let one = World::new(77, Faults::ALL).run();
    let two = World::new(77, Faults::ALL).run();
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
}
