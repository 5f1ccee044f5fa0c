//! A time limit that only counts time in which the agent really waited.
//!
//! On a busy node the agent itself may not run for seconds. A plain timeout would then end an
//! attempt with an unread answer in the socket, and healthy pods would be restarted because of a
//! busy node. So the limit is waited for in `SLICES` steps, each of which counts as no more than
//! its own length however late it ends, and the work is polled again after each of them. The limit
//! begins with the attempt, not with the time at which it was due.

use std::time::Duration;

use tokio::time::{Instant, timeout};

/// Steps in which a limit is waited for. Each costs one wake-up of a probe that waits.
const SLICES: u32 = 10;

/// How work within a limit went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waited<T> {
    /// The result; `None` when the limit was over first.
    pub(super) done: Option<T>,
    /// The agent's own delay.
    pub(super) delay: Duration,
}

/// Runs `work` to its end, but gives it up after `limit`.
pub(super) async fn patiently<T>(limit: Duration, work: impl Future<Output = T>) -> Waited<T> {
    let slice = limit / SLICES;
    let mut delay = Duration::ZERO;
    // Boxed: pinned in here it would take its room twice, as argument and as the awaited future.
    let mut work = Box::pin(work);
    for _ in 0..SLICES {
        let began = Instant::now();
        if let Ok(done) = timeout(slice, &mut work).await {
            return Waited { done: Some(done), delay };
        }
        delay += began.elapsed().saturating_sub(slice);
        // Lets the loop read new input before the next check.
        tokio::task::yield_now().await;
    }
    let last = tokio::select! {
        biased;
        done = &mut work => Some(done),
        () = std::future::ready(()) => None,
    };
    Waited { done: last, delay }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn work_within_the_limit_ends_with_its_result() {
        let waited = patiently(MS * 30_000, async {
            sleep(MS).await;
            7
        });
        assert_eq!(waited.await.done, Some(7));
    }

    #[tokio::test]
    async fn work_is_abandoned_only_after_its_time_limit() {
        let began = Instant::now();
        let waited = patiently(MS * 50, std::future::pending::<()>()).await;
        assert_eq!(waited.done, None);
        assert!(began.elapsed() >= MS * 50);
    }

    #[tokio::test]
    async fn time_in_which_the_agent_did_not_run_does_not_count() {
        let (send, receive) = tokio::sync::oneshot::channel();
        let stalls = async {
            // The whole loop stands still for longer than the limit. The answer comes only when it
            // has run again for a while: a single check at the end would not be enough.
            sleep(MS).await;
            std::thread::sleep(MS * 1000);
            sleep(MS * 20).await;
            send.send(7).expect("the attempt still waits");
        };
        let (waited, ()) = tokio::join!(patiently(MS * 500, receive), stalls);
        assert_eq!(waited.done, Some(Ok(7)));
        assert!(waited.delay >= MS * 500, "{:?}", waited.delay);
    }
}
