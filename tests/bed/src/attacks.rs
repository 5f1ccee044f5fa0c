//! Runs attacks one after another on one ground, as a test program without libtest's harness.
//!
//! Input: the program's arguments (parts of names, `--exact`, `--list`), the themes, and the attacks
//! that wait for most of their time, which run on a second ground beside the others. Output:
//! lines as libtest prints them, and the exit code. The next attack meets the leftovers of the
//! last; after a failure there is a new ground, because a ground that an attack has harmed proves
//! nothing.

use std::fmt::Debug;
use std::ops::Add;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use anyhow::Result;

/// One attack on a ground.
pub struct Attack<G> {
    /// Its theme and function.
    pub name: &'static str,
    /// Attacks the ground, and checks that the ground still serves all other users meanwhile.
    pub run: fn(&mut G),
}

/// A list of attacks named after their functions, below the name of their theme.
#[macro_export]
macro_rules! attacks {
    ($ground:ty, $theme:literal: $($name:ident),* $(,)?) => {
        pub(crate) const ATTACKS: &[$crate::attacks::Attack<$ground>] = &[
            $($crate::attacks::Attack {
                name: concat!($theme, "::", stringify!($name)),
                run: $name,
            }),*
        ];
    };
}

/// The target of attacks.
pub trait AttackTarget: Sized {
    /// Counts through all attacks.
    type Tally: Default + Debug + Send + Add<Output = Self::Tally>;
    /// The name of the test that checks the tally, when all attacks ran.
    const OVERALL: &'static str;

    /// Starts a ground and measures it while it is quiet.
    fn prepare() -> Self;
    /// Removes the attack's objects, and checks that the ground is as before.
    fn recover(&mut self);
    /// Prints the end of the attacked program's log.
    fn show_log(&self);
    /// Returns what this ground has counted.
    fn tally(&self) -> Self::Tally;
    /// Checks the tally of all attacks.
    ///
    /// # Errors
    /// The counts that are too high.
    fn check(tally: &Self::Tally) -> Result<()>;
}

/// Runs the chosen attacks, those in `waiting` beside the others.
pub fn run<G: AttackTarget>(themes: &[&'static [Attack<G>]], waiting: &[&str]) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (options, names): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|a| a.starts_with("--"));
    let is_exact = options.contains(&"--exact");
    let is_chosen = |name: &str| {
        let fits = |wanted: &&str| if is_exact { name == *wanted } else { name.contains(*wanted) };
        names.is_empty() || names.iter().any(fits)
    };
    let all: Vec<&Attack<G>> = themes.iter().copied().flatten().collect();
    for name in waiting {
        assert!(all.iter().any(|attack| attack.name == *name), "there is no attack {name}");
    }
    let chosen: Vec<&Attack<G>> = all.iter().copied().filter(|a| is_chosen(a.name)).collect();
    if options.contains(&"--list") {
        chosen.iter().for_each(|attack| println!("{}: test", attack.name));
        return ExitCode::SUCCESS;
    }
    let begin = Instant::now();
    let is_complete = chosen.len() == all.len();
    let count = chosen.len() + usize::from(is_complete);
    println!("\nrunning {count} tests");
    let (patient, busy): (Vec<_>, Vec<_>) =
        chosen.iter().copied().partition(|attack| waiting.contains(&attack.name));
    let (mut failed, tally) = run_both(&busy, &patient);
    if is_complete {
        eprintln!("    all: {tally:?}");
        let checked = G::check(&tally).inspect_err(|error| eprintln!("{error:#}"));
        println!("test {} ... {}", G::OVERALL, if checked.is_ok() { "ok" } else { "FAILED" });
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

/// Runs the attacks of both lists at once, each list on a ground of its own.
fn run_both<G: AttackTarget>(one: &[&Attack<G>], other: &[&Attack<G>]) -> (usize, G::Tally) {
    thread::scope(|scope| {
        let beside = scope.spawn(|| run_all(other));
        let (failed, tally) = run_all(one);
        let (failed_beside, tally_beside) = beside.join().expect("panics of attacks are caught");
        (failed + failed_beside, tally + tally_beside)
    })
}

/// Returns how many failed, and the tally of all grounds.
fn run_all<G: AttackTarget>(chosen: &[&Attack<G>]) -> (usize, G::Tally) {
    let (mut failed, mut tally) = (0, G::Tally::default());
    let mut ground: Option<G> = None;
    for attack in chosen {
        let begin = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let ground = ground.get_or_insert_with(G::prepare);
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
        if let Some(ground) = ground.take() {
            ground.show_log();
            tally = tally + ground.tally();
        }
    }
    let tally = match ground {
        Some(ground) => tally + ground.tally(),
        None => tally,
    };
    (failed, tally)
}
