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
mod manifests;
mod port;
mod probes;
mod runtime;
mod support;
mod tenant;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use ground::Ground;

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

const THEMES: [&[Attack]; 6] = [
    tenant::ATTACKS,
    probes::ATTACKS,
    clients::ATTACKS,
    files::ATTACKS,
    manifests::ATTACKS,
    runtime::ATTACKS,
];

/// Attacks that the agent does not withstand yet, and what is missing. They are told as ignored;
/// `--include-ignored` runs them all the same.
const OPEN: &[(&str, &str)] = &[
    ("tenant::a_grace_of_twelve_thousand_years", "deadlines of calls overflow"),
    ("tenant::numbers_at_their_limits", "deadlines of calls overflow"),
    ("tenant::hooks_that_never_end", "removals wait while others start or stop"),
    ("tenant::a_crowd_in_a_crash_loop", "removals wait while others start or stop"),
    ("tenant::one_name_for_two_and_a_uid_that_climbs", "a uid is a path"),
    ("probes::never_answered_and_never_given_up", "probe attempts have no share for each pod"),
    ("probes::of_names_that_hang", "names are resolved where volumes are mounted"),
    ("clients::seven_hundred_that_say_nothing", "connections have no share for each peer"),
    ("clients::seven_hundred_idle_with_h2", "connections have no share for each peer"),
    ("clients::idle_at_the_plain_ports", "connections have no share for each peer"),
    ("clients::heads_that_drip", "connections have no share of memory"),
    ("clients::followers_that_never_read", "connections have no share of memory"),
    ("clients::scrapes_all_at_once", "connections have no share of memory"),
    ("clients::numbers_in_questions", "deadlines of calls overflow"),
    ("files::a_huge_fragmented_hosts_file", "files are written where decisions are made"),
    ("files::links_where_the_agent_writes", "files are written through links"),
    ("files::logs_that_are_something_else", "logs are opened whatever they are"),
    ("runtime::a_frozen_shim", "removals wait while others start or stop"),
    ("runtime::registries_that_hang", "pulls hold up starts"),
    ("manifests::text_that_grows_when_it_is_read", "manifests are read where decisions are made"),
    ("runtime::an_image_that_cannot_be_had", "one image holds up the pod's other containers"),
];

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
    println!("\nrunning {} tests", chosen.len());
    let is_open = |attack: &&Attack| {
        let why = OPEN.iter().find(|(name, _)| *name == attack.name).map(|(_, why)| why);
        why.filter(|_| !options.contains(&"--include-ignored"))
            .inspect(|why| println!("test {} ... ignored, {why}", attack.name))
            .is_some()
    };
    let (open, chosen): (Vec<&Attack>, Vec<&Attack>) = chosen.into_iter().partition(is_open);
    let failed = run_all(&chosen);
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {failed} failed; {} ignored; 0 measured; {} filtered \
         out; finished in {:.2}s\n",
        chosen.len() - failed,
        open.len(),
        all.len() - chosen.len() - open.len(),
        begin.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns how many failed.
fn run_all(chosen: &[&Attack]) -> usize {
    let mut failed = 0;
    let mut ground = None;
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
        if let Some(ground) = &ground {
            ground.show_log();
        }
        // A node that an attack has harmed proves nothing about the next one.
        ground = None;
    }
    failed
}
