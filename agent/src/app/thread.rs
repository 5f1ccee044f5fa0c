//! The deciding thread: its async runtime, and how long it was away.
//!
//! With io_uring it runs on tokio-uring, a current-thread tokio with a ring beside it; where the
//! kernel refuses a ring (seccomp, `io_uring_disabled`, older than 5.1), on plain tokio, and logs
//! that once. All tasks of the thread run in one `LocalSet`, and its rounds are measured.

use std::io;

use pintle_daemon::tasks;
use tokio::task::LocalSet;

/// Threads for blocking work within tokio itself, such as its name resolution; the agent's own
/// blocking work has a pool of its own.
const TOKIO_BLOCKING_MAX: usize = 4;

/// Runs `work` and all that it starts on this thread.
pub fn run<T>(work: impl Future<Output = T>) -> io::Result<T> {
    run_on(tokio_uring::Runtime::new(&tokio_uring::builder()), work)
}

fn run_on<T>(
    ring: io::Result<tokio_uring::Runtime>,
    work: impl Future<Output = T>,
) -> io::Result<T> {
    let local = LocalSet::new();
    let all = tasks::measured(local.run_until(tasks::or_end("driver", work)));
    match ring {
        Ok(ring) => Ok(ring.block_on(all)),
        Err(error) => {
            tracing::info!(%error, "the kernel refuses an io_uring; the agent goes on without one");
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(TOKIO_BLOCKING_MAX)
                .thread_name("tokio")
                .build()?;
            Ok(runtime.block_on(all))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn ticks() -> u32 {
        let task = tasks::spawn("test", async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::task::spawn_blocking(|| 7).await.unwrap_or_default()
        });
        task.await.unwrap_or_default()
    }

    #[test]
    fn without_a_ring_everything_runs_all_the_same() {
        let refused = Err(io::Error::from_raw_os_error(nix::libc::EPERM));
        assert_eq!(run_on(refused, ticks()).ok(), Some(7));
    }

    #[test]
    fn tasks_run_on_io_uring_if_the_kernel_supports_it() {
        assert_eq!(run(ticks()).ok(), Some(7));
    }
}
