//! Tasks and threads of this process: the effect of a panic, and stalls of the deciding thread.
//!
//! Two kinds. A *singleton* works for the whole node and is never restarted: a panic in it ends the
//! process with one line and `PANIC_EXIT`, and the service manager restarts the agent, which does
//! not affect pods. All other work belongs to one pod or to one request: a panic ends that piece of
//! work (`caught`), and its waiting caller gets an error. In both cases the panic is counted by the
//! task's name. Half an agent never goes on.
//!
//! Every task that is begun here has a name; a poll that keeps its thread for `SLOW_POLL` or longer
//! is logged with it at verbosity 2. `measured`, which wraps all tasks of the main thread, measures
//! how long the deciding loop could not run: two readings of the clock and of the thread's CPU use
//! for each round of them and nothing while the agent is idle.

use std::cell::Cell;
use std::panic::PanicHookInfo;
use std::pin::{Pin, pin};
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use pintle_api_types::panics;
pub use pintle_api_types::panics::{Panicked, catch, counted, panics};
use prometheus_client::metrics::histogram::Histogram;
use tokio::task::JoinHandle;

/// Exit code after the panic of a singleton: the one that Rust's own panics end with.
const PANIC_EXIT: i32 = 101;
/// A poll that takes longer is logged with the task's name.
const SLOW_POLL: Duration = Duration::from_millis(50);
/// Upper bounds of the stall histogram's buckets, in seconds.
const STALL_BUCKETS: [f64; 13] =
    [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];

static STALLS: OnceLock<Histogram> = OnceLock::new();
static BUSY: OnceLock<Histogram> = OnceLock::new();

thread_local! {
    /// The task that is being polled.
    static NAME: Cell<&'static str> = const { Cell::new("") };
}

/// Writes panics to the log as one line each. The code that catches a panic logs it with its
/// effect.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| {
        if panics::is_catching() {
            return panics::set_place(info.location());
        }
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let task = current();
        counted(task);
        tracing::error!(task, "panic: {}, at {place}", panics::message(info.payload()));
    }));
}

/// Silences caught panics on standard error, for commands that report them themselves; any other
/// panic is reported as before.
pub fn keep_caught_quiet() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        if !panics::is_catching() {
            return before(info);
        }
        panics::set_place(info.location());
    }));
}

/// Each time that the deciding thread was busy: how long it did not return to its loop.
pub fn stalls() -> &'static Histogram {
    STALLS.get_or_init(|| Histogram::new(STALL_BUCKETS))
}

/// The part of that time in which the thread itself ran: without the time in which it was ready to
/// run and other threads had the processors.
pub fn busy() -> &'static Histogram {
    BUSY.get_or_init(|| Histogram::new(STALL_BUCKETS))
}

/// Starts work that must not end before the process does; see the module's header.
pub fn singleton<F>(name: &'static str, work: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    tokio::task::spawn_local(or_end(name, work))
}

/// Starts work for one pod or one request. A panic is in the handle.
pub fn spawn<F>(name: &'static str, work: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    tokio::task::spawn_local(NamedWork { name, work: Box::pin(work) })
}

/// Starts such work on a thread without local tasks: one connection, one request.
pub fn serve<F>(name: &'static str, work: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(NamedWork { name, work: Box::pin(work) })
}

/// A thread that must not end before the process does.
pub fn thread<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<T>> {
    let work = move || catch(work).unwrap_or_else(|panic| end(name, &panic));
    std::thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Runs `work`; its panic ends the process.
pub async fn or_end<F: Future>(name: &'static str, work: F) -> F::Output {
    match caught(NamedWork { name, work: Box::pin(work) }).await {
        Ok(done) => done,
        Err(panic) => end(name, &panic),
    }
}

/// Runs `work` of the task that is being polled; its panic is counted and returned.
pub async fn caught<F: Future>(work: F) -> Result<F::Output, Panicked> {
    let mut work = pin!(work);
    std::future::poll_fn(|context| match catch(|| work.as_mut().poll(context)) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

fn end(name: &'static str, panic: &Panicked) -> ! {
    tracing::error!(
        task = name,
        "{panic}; the agent cannot go on without this task and ends; pods keep running"
    );
    std::process::exit(PANIC_EXIT)
}

fn current() -> &'static str {
    let name = NAME.get();
    if name.is_empty() { "unnamed" } else { name }
}

/// Work under a name.
struct NamedWork<F> {
    name: &'static str,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for NamedWork<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _name = Entered(NAME.replace(self.name));
        let begun = Instant::now();
        let poll = self.work.as_mut().poll(context);
        let took = begun.elapsed();
        if took >= SLOW_POLL {
            let ms = took.as_millis();
            tracing::debug!(task = self.name, ms, "a task kept its thread for long");
        }
        poll
    }
}

/// Puts the outer task's name back, also when the inner one panics.
struct Entered(&'static str);

impl Drop for Entered {
    fn drop(&mut self) {
        NAME.set(self.0);
    }
}

/// Runs all tasks of the deciding thread and notes how long each round of them took: so long may
/// something that is due have waited for its turn.
pub async fn measured<F: Future>(all: F) -> F::Output {
    let mut all = pin!(all);
    std::future::poll_fn(|context| {
        let (begun, before) = (Instant::now(), CpuUse::now());
        let poll = all.as_mut().poll(context);
        let away = begun.elapsed();
        stalls().observe(away.as_secs_f64());
        busy().observe(busy_in(away, before, CpuUse::now()).as_secs_f64());
        poll
    })
    .await
}

/// CPU use of this thread.
#[derive(Clone, Copy, Debug)]
struct CpuUse {
    time: Duration,
    /// Voluntary context switches.
    waits: i64,
}

impl CpuUse {
    /// `None` where the kernel does not report it.
    fn now() -> Option<Self> {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).ok()?;
        let micros = (usage.user_time() + usage.system_time()).num_microseconds();
        let time = Duration::from_micros(micros.unsigned_abs());
        Some(Self { time, waits: usage.voluntary_context_switches() })
    }
}

/// How long the thread was busy in a round of `away`.
fn busy_in(away: Duration, before: Option<CpuUse>, after: Option<CpuUse>) -> Duration {
    match (before, after) {
        // It never waited: while it did not run, other threads did.
        (Some(before), Some(after)) if after.waits == before.waits => {
            after.time.saturating_sub(before.time).min(away)
        }
        _ => away,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set for the process that is to end.
    const CHILD: &str = "PINTLE_TEST_PANICS";

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime"), work)
    }

    #[test]
    fn caught_panic_returns_its_message_and_the_thread_continues() {
        let outcome = run(caught(async {
            tokio::task::yield_now().await;
            panic!("of {}", "this")
        }));
        assert!(outcome.is_err_and(|panic: Panicked| panic.0.starts_with("of this")));
        assert_eq!(run(caught(async { 7 })), Ok(7));
        assert!(!panics::is_catching());
    }

    /// The child process of the next test.
    #[test]
    fn as_a_child_a_singleton_panics() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        log_panics();
        run(async {
            singleton("prober", async { panic!("of this test") })
                .await
                .expect("it does not return");
        });
    }

    #[test]
    fn the_panic_of_a_singleton_ends_the_process() {
        let mut child = std::process::Command::new(std::env::current_exe().expect("this test"));
        child.args(["--exact", "tasks::tests::as_a_child_a_singleton_panics", "--nocapture"]);
        let ended = child.env(CHILD, "1").output().expect("it runs");
        assert_eq!(ended.status.code(), Some(PANIC_EXIT), "{ended:?}");
    }

    #[test]
    fn nested_tasks_know_their_own_names() {
        run(async {
            let inner = async { current() };
            let outer = async move {
                let inner = NamedWork { name: "inner", work: Box::pin(inner) }.await;
                (inner, current())
            };
            assert_eq!(spawn("outer", outer).await.ok(), Some(("inner", "outer")));
            assert_eq!(current(), "unnamed");
        });
    }

    #[test]
    fn blocking_poll_is_recorded_as_a_stall_of_its_length() {
        let above = |limit: f64, histogram: &Histogram| {
            let mut registry = prometheus_client::registry::Registry::default();
            registry.register("s", "s", histogram.clone());
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).expect("a string");
            let count = |prefix: &str| -> u64 {
                let line = text.lines().find(|line| line.starts_with(prefix)).expect("a line");
                line.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number")
            };
            count("s_count") - count(&format!("s_bucket{{le=\"{limit}\"}}"))
        };
        for histogram in [stalls(), busy()] {
            let before = above(0.01, histogram);
            run(measured(async {
                tokio::task::yield_now().await;
                std::thread::sleep(Duration::from_millis(15));
            }));
            assert!(above(0.01, histogram) > before);
        }
    }

    #[test]
    fn thread_without_cpu_and_without_waits_is_not_busy() {
        let ms = Duration::from_millis;
        let used = |time: u64, waits: i64| Some(CpuUse { time: ms(time), waits });
        for (before, after, busy) in [
            (used(7, 3), used(9, 3), 2),
            (used(7, 3), used(9, 4), 100),
            (used(7, 3), used(700, 3), 100),
            (used(9, 3), used(7, 3), 0),
            (None, used(9, 3), 100),
            (used(7, 3), None, 100),
        ] {
            assert_eq!(busy_in(ms(100), before, after), ms(busy), "{before:?} {after:?}");
        }
    }
}
