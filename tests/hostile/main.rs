//! Attacks: what a tenant, a client, a disk or a runtime may do to a node, and what the node owes
//! everybody else meanwhile.
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
//! Steps of the clock are not here: the host's clock is everybody's. The simulator has them.

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

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use ground::{Ground, Stalls};

/// One attack.
struct Attack {
    name: &'static str,
    run: fn(&mut Ground),
}

/// A list of attacks named after their functions, below the name of their theme.
#[macro_export]
macro_rules! attacks {
    ($theme:literal: $($name:ident),* $(,)?) => {
        pub(crate) const ATTACKS: &[$crate::Attack] = &[
            $($crate::Attack { name: concat!($theme, "::", stringify!($name)), run: $name }),*
        ];
    };
}

const THEMES: [&[Attack]; 7] = [
    tenant::ATTACKS,
    probes::ATTACKS,
    clients::ATTACKS,
    files::ATTACKS,
    hung::ATTACKS,
    manifests::ATTACKS,
    runtime::ATTACKS,
];

/// What is asked of all attacks together, when all of them ran.
const STALLS: &str = "all::the_deciding_thread_is_never_busy_for_long";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (options, names): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|a| a.starts_with("--"));
    let is_exact = options.contains(&"--exact");
    let is_chosen = |name: &str| {
        let fits = |wanted: &&str| if is_exact { name == *wanted } else { name.contains(*wanted) };
        names.is_empty() || names.iter().any(fits)
    };
    let all: Vec<&Attack> = THEMES.iter().copied().flatten().collect();
    let chosen: Vec<&Attack> = all.iter().copied().filter(|a| is_chosen(a.name)).collect();
    if options.contains(&"--list") {
        chosen.iter().for_each(|attack| println!("{}: test", attack.name));
        return ExitCode::SUCCESS;
    }
    let begin = Instant::now();
    let is_complete = chosen.len() == all.len();
    let count = chosen.len() + usize::from(is_complete);
    println!("\nrunning {count} tests");
    let (mut failed, stalls) = run_all(&chosen);
    if is_complete {
        eprintln!("    all: {stalls:?}");
        let checked = stalls.check_all().inspect_err(|error| eprintln!("{error:#}"));
        println!("test {STALLS} ... {}", if checked.is_ok() { "ok" } else { "FAILED" });
        failed += usize::from(checked.is_err());
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {failed} failed; 0 ignored; 0 measured; {} filtered \
         out; finished in {:.2}s\n",
        count - failed,
        all.len() - chosen.len(),
        begin.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns how many failed, and how long the deciding threads were away.
fn run_all(chosen: &[&Attack]) -> (usize, Stalls) {
    let (mut failed, mut stalls) = (0, Stalls::default());
    let mut ground: Option<Ground> = None;
    for attack in chosen {
        let begin = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let ground = ground.get_or_insert_with(Ground::prepare);
            (attack.run)(ground);
            ground.recover();
        }));
        let took = begin.elapsed().as_secs_f64();
        eprintln!("    {} took {took:.1} s", attack.name);
        if outcome.is_ok() {
            println!("test {} ... ok", attack.name);
            continue;
        }
        println!("test {} ... FAILED", attack.name);
        failed += 1;
        // A node that an attack has harmed proves nothing about the next one.
        if let Some(ground) = ground.take() {
            ground.show_log();
            stalls = stalls.and(ground.all_stalls());
        }
    }
    let last = ground.map_or_else(Stalls::default, |ground| ground.all_stalls());
    (failed, stalls.and(last))
}
