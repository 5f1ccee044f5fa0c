//! Results of stages: counts of tests, durations, and the table and the line at the end of a run.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::resource::{UsageWho, getrusage};

use crate::shell;

/// Results of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TestCounts {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) skipped: usize,
    /// Those of the passed ones that passed at the second try.
    pub(super) flaky: usize,
}

impl TestCounts {
    /// One yes.
    pub(super) const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0, flaky: 0 };

    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.flaky += other.flaky;
    }
}

/// One stage's row of the table.
#[derive(Clone, Debug)]
pub(super) struct StageRow {
    stage: &'static str,
    pub(super) counts: TestCounts,
    took: Duration,
    /// Processor time of the programs that ended meanwhile, with that of their own children.
    cpu: Duration,
    /// Share of the machine's CPUs that was busy, in percent, with any work.
    busy: Option<u64>,
}

/// Runs a stage and measures it; a stage that cannot be run has failed.
pub(super) fn timed(stage: &'static str, work: impl FnOnce() -> Result<TestCounts>) -> StageRow {
    shell::say("stage", stage);
    let (begin, cpu, machine) = (Instant::now(), cpu_of_children(), MachineTicks::read());
    let counts = work().unwrap_or_else(|error| {
        shell::say("failed", &format!("{stage}: {error:#}"));
        TestCounts { failed: 1, ..TestCounts::default() }
    });
    let busy = machine.and_then(|before| MachineTicks::read()?.busy_since(before));
    let cpu = cpu_of_children().saturating_sub(cpu);
    StageRow { stage, counts, took: begin.elapsed(), cpu, busy }
}

/// Prints the table, and returns the sum of all counts.
pub(super) fn report(rows: &[StageRow]) -> TestCounts {
    println!(
        "\n{:>11}  {:>7}  {:>7}  {:>5}  {:>6}  {:>6}  {:>7}  {:>5}",
        "stage", "seconds", "cpu", "busy", "passed", "failed", "skipped", "flaky"
    );
    let mut total = TestCounts::default();
    for row in rows {
        let TestCounts { passed, failed, skipped, flaky } = row.counts;
        let (stage, took, cpu) = (row.stage, row.took.as_secs_f64(), row.cpu.as_secs_f64());
        let busy = row.busy.map(|percent| format!("{percent}%")).unwrap_or_default();
        println!(
            "{stage:>11}  {took:>7.1}  {cpu:>7.1}  {busy:>5}  {passed:>6}  {failed:>6}  \
             {skipped:>7}  {flaky:>5}"
        );
        total.add(row.counts);
    }
    total
}

/// The last line of a run.
pub(super) fn summary(total: &TestCounts) -> String {
    let TestCounts { passed, failed, skipped, flaky } = total;
    format!("{passed} passed ({flaky} of them flaky), {failed} failed, {skipped} skipped")
}

/// Reads the line of `summary`.
pub(super) fn parse_summary(line: &str) -> Option<TestCounts> {
    let (passed, rest) = line.split_once(" passed (")?;
    let (flaky, rest) = rest.split_once(" of them flaky), ")?;
    let (failed, rest) = rest.split_once(" failed, ")?;
    let skipped = rest.strip_suffix(" skipped")?;
    Some(TestCounts {
        passed: passed.parse().ok()?,
        failed: failed.parse().ok()?,
        skipped: skipped.parse().ok()?,
        flaky: flaky.parse().ok()?,
    })
}

/// Processor time of all children that were waited for.
fn cpu_of_children() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Duration::ZERO };
    let of = |time: nix::sys::time::TimeVal| {
        let micros = time.tv_sec() * 1_000_000 + time.tv_usec();
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    };
    of(usage.user_time()) + of(usage.system_time())
}

/// Ticks of all processors together, as `/proc/stat` counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MachineTicks {
    all: u64,
    idle: u64,
}

impl MachineTicks {
    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Reads `cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL ...`; guests are in USER already.
    fn parse(text: &str) -> Option<Self> {
        let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).take(8).collect();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { all: ticks.iter().sum(), idle })
    }

    fn busy_since(self, before: Self) -> Option<u64> {
        let (all, idle) = (self.all.checked_sub(before.all)?, self.idle.checked_sub(before.idle)?);
        (100 * all.checked_sub(idle)?).checked_div(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_as_it_was_written() {
        let counts = TestCounts { passed: 12, failed: 3, skipped: 4, flaky: 1 };
        assert_eq!(parse_summary(&summary(&counts)), Some(counts));
        for broken in ["", "12 passed", "a passed (1 of them flaky), 3 failed, 4 skipped"] {
            assert_eq!(parse_summary(broken), None, "{broken}");
        }
    }

    #[test]
    fn disk_wait_is_not_busy_time_and_guest_time_counts_once() {
        let before =
            MachineTicks::parse("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 1\n").expect("a line");
        assert_eq!(before, MachineTicks { all: 100, idle: 80 });
        let after = MachineTicks::parse("cpu  80 0 40 140 40 0 0 0 50 0\n").expect("a line");
        assert_eq!(after.busy_since(before), Some(50));
        assert_eq!(before.busy_since(before), None, "no time has passed");
        assert_eq!(MachineTicks::parse("intr 1 2"), None);
    }

    #[test]
    fn a_stage_is_charged_for_the_processor_time_of_its_programs() {
        let row = timed("test", || {
            let spin = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
            shell::run(std::process::Command::new("sh").args(["-c", spin]))?;
            Ok(TestCounts::PASSED)
        });
        assert!(row.cpu > Duration::ZERO && row.counts == TestCounts::PASSED, "{row:?}");
        let row = timed("test", || anyhow::bail!("no"));
        assert_eq!(row.counts.failed, 1);
    }
}
