//! A world: the clock, the random numbers, and the choice of the next actor.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::Request;
use pintle_api_types::rng::Rng;
use pintle_controllers_core::frame::Now;
use pintle_memory_api::{Identity, Server};

use crate::checks::{self, Checks};
use crate::manager::{self, Daemon, ManagerRequest};
use crate::{cluster, users};

/// Steps after which a world that still moves has failed.
const STEPS_MAX: usize = 60_000;
/// Simulated time after which keys that are due are not waited for.
const QUIET: Duration = Duration::from_secs(24 * 3600);

/// Rates of faults, each per thousand cases.
#[derive(Clone, Debug)]
pub(crate) struct FaultRates {
    /// An answer is lost.
    lost: u64,
    /// The manager crashes.
    crash: u64,
    /// A second manager begins while the first still acts.
    split: u64,
    /// The watch of a kind does not move on in so many of ten steps.
    lag: u64,
}

impl FaultRates {
    pub(crate) fn none() -> Self {
        Self { lost: 0, crash: 0, split: 0, lag: 0 }
    }

    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xfa_17);
        let mut some = |most: u64| if rng.chance(60) { rng.range(0, most) } else { 0 };
        Self { lost: some(60), crash: some(8), split: some(4), lag: some(10) }
    }
}

pub(crate) struct ManagerWorld {
    pub(crate) server: Server,
    /// Kinds with a silent watch.
    pub(crate) silent: BTreeSet<Kind>,
    managers: Vec<Daemon>,
    /// Requests of managers that are dead.
    ghosts: Vec<ManagerRequest>,
    rng: Rng,
    faults: FaultRates,
    checks: Checks,
    begun: Instant,
    passed: Duration,
    /// Things that users will still do.
    pub(crate) user_steps: u64,
    /// Writes that controllers made.
    writes: u64,
    log: Vec<String>,
}

/// The next actor and its action.
enum WorldTurn {
    Deliver { manager: usize, kind: Kind },
    Send { manager: usize, call: usize },
    Ghost(usize),
    Cluster,
    User,
}

impl ManagerWorld {
    pub(crate) fn new(seed: u64, faults: FaultRates) -> Self {
        let mut world = Self {
            server: Server::new(seed),
            silent: BTreeSet::new(),
            managers: vec![Daemon::new()],
            ghosts: Vec::new(),
            rng: Rng::new(seed),
            faults,
            checks: Checks::default(),
            begun: Instant::now(),
            passed: Duration::ZERO,
            user_steps: 0,
            writes: 0,
            log: Vec::new(),
        };
        world.user_steps = world.rng.range(5, 40);
        for request in users::beginning() {
            world.ask(&Identity::Admin, &request).expect("a world begins");
        }
        world
    }

    fn now(&self) -> Now {
        let start = Timestamp::from_second(1_800_000_000).expect("a time");
        let wall = start + jiff::SignedDuration::try_from(self.passed).expect("a short time");
        Now { instant: self.begun + self.passed, wall }
    }

    pub(crate) fn ask(
        &mut self,
        identity: &Identity,
        request: &Request,
    ) -> pintle_api_types::request::Answer {
        let now = self.now().wall;
        self.server.handle(identity, request, now)
    }

    /// Runs until nothing moves, checks, then restarts the managers, which must write nothing.
    pub(crate) fn run(mut self) {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.settle();
            checks::check_end(&self.server);
            self.faults = FaultRates::none();
            let (writes, version) = (self.writes, self.server.version());
            self.managers = vec![Daemon::new()];
            self.ghosts.clear();
            self.settle();
            let more = self.writes - writes;
            assert_eq!(
                self.server.version(),
                version,
                "a new manager changed something ({more} writes)"
            );
        }));
        if let Err(panic) = result {
            for line in self.log.iter().rev().take(60).rev() {
                eprintln!("{line}");
            }
            for manager in &self.managers {
                manager.failures.iter().rev().take(10).for_each(|line| eprintln!("failed: {line}"));
            }
            std::panic::resume_unwind(panic);
        }
    }

    fn settle(&mut self) {
        self.settle_until(self.passed + QUIET);
    }

    /// Lets this time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.passed + time;
        self.settle_until(until);
        self.passed = self.passed.max(until);
    }

    /// Runs until nothing moves before this time.
    fn settle_until(&mut self, until: Duration) {
        for _ in 0..STEPS_MAX {
            if !self.step(until) {
                return;
            }
        }
        panic!("the world moves after {STEPS_MAX} steps");
    }

    /// Does one thing; says whether there was one.
    fn step(&mut self, until: Duration) -> bool {
        self.passed += Duration::from_millis(self.rng.range(0, 200));
        self.strike();
        for at in 0..self.managers.len() {
            let now = self.now();
            let manager = &mut self.managers[at];
            manager.discover(&self.server, now);
            manager.turn(now);
        }
        let turns = self.turns();
        if turns.is_empty() {
            return self.wait(until);
        }
        let at = self.rng.range(0, turns.len() as u64);
        let at = usize::try_from(at).expect("a small number");
        let turn = turns.into_iter().nth(at).expect("one of them");
        self.take(turn);
        true
    }

    fn turns(&mut self) -> Vec<WorldTurn> {
        let mut turns = Vec::new();
        for (at, manager) in self.managers.iter().enumerate() {
            let late = manager.late(&self.server).into_iter();
            for kind in late.filter(|kind| !self.silent.contains(kind)) {
                turns.push(WorldTurn::Deliver { manager: at, kind });
            }
            turns
                .extend((0..manager.calls.len()).map(|call| WorldTurn::Send { manager: at, call }));
        }
        turns.extend((0..self.ghosts.len()).map(WorldTurn::Ghost));
        let wall = self.now().wall.to_string();
        if cluster::step(&self.server, &mut self.rng.clone(), &wall).is_some() {
            turns.push(WorldTurn::Cluster);
        }
        if self.user_steps > 0 {
            turns.push(WorldTurn::User);
        }
        turns
    }

    /// Nothing is to be done now: passes the time until a key is due.
    fn wait(&mut self, until: Duration) -> bool {
        let due = self.managers.iter().filter_map(|manager| manager.frame.next_due()).min();
        let Some(due) = due else { return false };
        let due = due.saturating_duration_since(self.begun).max(self.passed);
        if due > until {
            return false;
        }
        self.passed = due + Duration::from_millis(1);
        true
    }

    fn take(&mut self, turn: WorldTurn) {
        match turn {
            WorldTurn::Deliver { manager, kind } => {
                if self.rng.range(0, 10) >= self.faults.lag {
                    let now = self.now();
                    self.managers[manager].deliver(kind, &self.server, now);
                }
            }
            WorldTurn::Send { manager, call } => {
                let call = self.managers[manager].calls.swap_remove(call);
                let is_lost = self.rng.range(0, 1000) < self.faults.lost;
                if is_lost && self.rng.chance(50) {
                    // It never arrived.
                    let now = self.now();
                    return self.managers[manager].answer(&call, None, now);
                }
                let answer = self.send(&call);
                let now = self.now();
                self.managers[manager].answer(&call, (!is_lost).then_some(answer), now);
            }
            WorldTurn::Ghost(at) => {
                let call = self.ghosts.swap_remove(at);
                drop(self.send(&call));
            }
            WorldTurn::Cluster => {
                let wall = self.now().wall.to_string();
                let step = cluster::step(&self.server, &mut self.rng, &wall);
                let request = step.expect("there was one");
                let _ = self.ask(&cluster::IDENTITY, &request); // it may have come too late
            }
            WorldTurn::User => {
                self.user_steps -= 1;
                let request = users::step(&self.server, &mut self.rng);
                self.note("user", &request);
                let _ = self.ask(&Identity::Admin, &request); // users make mistakes
            }
        }
    }

    fn send(&mut self, call: &ManagerRequest) -> pintle_api_types::request::Answer {
        let collects = call.controller == "garbage-collector-controller";
        let deletes = matches!(call.request, Request::Delete { .. });
        // A copy of everything is dear, and only one check needs it.
        let before = (collects && deletes).then(|| self.server.clone());
        let answer = self.ask(&manager::identity(call.controller), &call.request);
        let result = answer.as_ref().map_or_else(|error| error.to_string(), |_| "ok".to_owned());
        self.note(&format!("{} -> {result}:", call.controller), &call.request);
        if !matches!(call.request, Request::Read { .. } | Request::List { .. }) {
            self.writes += 1;
        }
        self.checks.after(call, &answer, before.as_ref(), &self.server);
        answer
    }

    fn note(&mut self, from: &str, request: &Request) {
        let mut text = format!("{request:?}");
        text.truncate(text.floor_char_boundary(300));
        self.log.push(format!("{:>9.3} {from} {text}", self.passed.as_secs_f64()));
    }

    /// Lets a manager crash, or a second one begin.
    fn strike(&mut self) {
        if self.rng.range(0, 1000) < self.faults.crash {
            self.log.push("the manager crashes".to_owned());
            let dead = std::mem::replace(&mut self.managers[0], Daemon::new());
            // Some of its requests are on their way.
            let on_their_way = dead.calls.into_iter().filter(|_| self.rng.chance(30));
            let on_their_way: Vec<_> = on_their_way.collect();
            // What arrives after the next manager has listed is unknown to it.
            self.checks.is_split |= !on_their_way.is_empty();
            self.ghosts.extend(on_their_way);
        }
        if self.managers.len() > 1 {
            if self.rng.chance(5) {
                self.log.push("the first manager learns that it lost the lease".to_owned());
                self.managers.remove(0);
            }
        } else if self.rng.range(0, 1000) < self.faults.split {
            self.log.push("a second manager leads".to_owned());
            self.checks.is_split = true;
            self.managers.push(Daemon::new());
        }
    }
}
