//! An answer that a task owes the core, however the task ends.
//!
//! A worker with a read, list or sync that is never answered waits for ever. So the task holds its
//! debt: `settle` pays it, and a task that panics or is dropped before pays with the answer that
//! was agreed on at the start. Bound: an answer that waits for a full queue is a task of its own.

use pintle_agent_core::worker::PodsInput;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// A debt to the core.
#[derive(Debug)]
pub(super) struct Owed {
    back: mpsc::Sender<PodsInput>,
    answer: Option<PodsInput>,
}

impl Owed {
    /// Creates a debt; `otherwise` is sent if nothing else is.
    pub(super) fn new(back: mpsc::Sender<PodsInput>, otherwise: PodsInput) -> Self {
        Self { back, answer: Some(otherwise) }
    }

    /// Sends the answer; false when the receiver is gone.
    pub(super) async fn settle(mut self, answer: PodsInput) -> bool {
        self.answer = Some(answer);
        let back = self.back.clone();
        let Ok(permit) = back.reserve().await else { return false };
        if let Some(answer) = self.answer.take() {
            permit.send(answer);
        }
        true
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        if let Err(TrySendError::Full(answer)) = self.back.try_send(answer) {
            let back = self.back.clone();
            tokio::task::spawn_local(async move { back.send(answer).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::types::PodUid;

    fn done(ticket: u64) -> PodsInput {
        PodsInput::SyncDone { uid: PodUid::from("u"), ticket }
    }

    async fn ticket(queue: &mut mpsc::Receiver<PodsInput>) -> Option<u64> {
        match queue.recv().await? {
            PodsInput::SyncDone { ticket, .. } => Some(ticket),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn owed_answer_is_sent_once_by_its_task_or_when_the_task_ends() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let (back, mut queue) = mpsc::channel(1);
                assert!(Owed::new(back.clone(), done(0)).settle(done(1)).await);
                assert_eq!(ticket(&mut queue).await, Some(1));
                drop(Owed::new(back.clone(), done(2)));
                // The queue is full now: this one waits for its place.
                drop(Owed::new(back.clone(), done(3)));
                // Given up while it waits for a place: its answer is delivered all the same.
                let settle = Owed::new(back.clone(), done(4)).settle(done(5));
                let task = tokio::task::spawn_local(settle);
                tokio::task::yield_now().await;
                task.abort();
                let mut paid = Vec::new();
                for _ in 0..3 {
                    paid.extend(ticket(&mut queue).await);
                }
                paid.sort_unstable();
                assert_eq!(paid, [2, 3, 5]);
                drop(back);
                assert_eq!(ticket(&mut queue).await, None);
            })
            .await;
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_task_that_panics_pays() {
        let (back, mut queue) = mpsc::channel(1);
        let work = async {
            let _owed = Owed::new(back, done(1));
            tokio::task::yield_now().await;
            panic!("of this");
        };
        assert!(pintle_daemon::tasks::caught(work).await.is_err());
        assert_eq!(ticket(&mut queue).await, Some(1));
    }
}
