//! The agent killed at random moments while pods come and go.

use std::thread;
use std::time::Duration;

use pintle_tests::cluster::{AGENT, TestCluster};

use crate::work::{Bystander, Work, seed};

/// How often the agent is killed.
const KILLS: u64 = 10;

#[test]
fn an_agent_that_is_killed_again_and_again_loses_and_doubles_nothing() {
    let test = TestCluster::take();
    test.empty_node();
    let bystander = Bystander::start(&test, "bystander");
    let mut work = Work::new(&test, seed()).with_kills();
    for _ in 0..KILLS {
        work.step();
        work.step();
        // The moment is what is tried: in the middle of a start, of a pass, or long after.
        thread::sleep(Duration::from_millis(work.rng().range(0, 2_500)));
        test.cluster().kill(AGENT).expect("the agent dies");
        if work.rng().chance(50) {
            work.step();
        }
        test.cluster().start(AGENT).expect("the agent starts");
    }
    work.settle();
    bystander.check(&test);
    // What containerd leaves running when the caller of a stop goes away is nobody's to find.
    work.finish_but(|left| left.shims.clear());
}
