//! Decides which part of a chain the kernel gets next, and interprets its answers: pure.
//!
//! Input: a chain's steps, and the answers to submitted entries. Output: the next entries with
//! their links, in the end the results of the steps or the one that failed.
//!
//! A chain is submitted as a whole where possible, else in parts. The kernel cuts linked entries at
//! an open or a write that fails or is short. A failed sync or rename does not stop the entries
//! linked behind it (before kernel 5.19 it did). A short read, which is no failure, does. So:
//! - A part ends behind the first step that neither opens nor writes; "open, write, sync" is one
//!   part, "rename" the next one.
//! - The closes at the end are linked in such a way that they run whatever the last step returned.
//! - A short write, or a step that a signal interrupted, continues in the next part.
//! - After a failure the last part closes open files.

use nix::errno::Errno;

use crate::chain::{Chain, ChainStep, Done, OPENS_MAX};

/// One entry of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainItem {
    /// A step, by its number.
    Step(usize),
    /// The close of a file that the chain opened.
    Close(usize),
}

/// The condition on which the entry behind one waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkCondition {
    /// Its success.
    Success,
    /// Its end.
    End,
    /// There is no entry behind it.
    Last,
}

/// Entries that are submitted together.
pub(crate) type Part = Vec<(ChainItem, LinkCondition)>;

/// The kernel's answer to an entry.
#[derive(Debug)]
pub(crate) enum CompletionResult {
    Failed(Errno),
    /// Bytes of a write, maybe not all.
    Wrote(usize),
    /// Any other step.
    Done(Done),
}

/// The failed step of a chain, and its error.
pub(crate) type Failure = (usize, Errno);

/// The progress of a chain.
#[derive(Debug, Default)]
pub(crate) struct ChainProgress {
    /// The results of its first steps.
    done: Vec<Done>,
    /// Bytes that the step after these has written.
    written: usize,
    open: [bool; OPENS_MAX],
    failed: Option<Failure>,
}

impl ChainProgress {
    /// The next entries to submit; none at the chain's end.
    pub(crate) fn next(&self, chain: &Chain) -> Part {
        let mut items = Vec::new();
        let mut open = self.open;
        let mut at = self.done.len();
        if self.failed.is_none() {
            while let Some(step) = chain.steps.get(at) {
                items.push(ChainItem::Step(at));
                at += 1;
                match step {
                    ChainStep::Open { into, .. } => open[into.0] = true,
                    ChainStep::OpenHeld { .. } | ChainStep::Write { .. } => {}
                    _ => break,
                }
            }
        }
        if self.failed.is_some() || at == chain.steps.len() {
            let open = open.iter().enumerate().filter(|(_, is_open)| **is_open);
            items.extend(open.map(|(slot, _)| ChainItem::Close(slot)));
        }
        let link = |at: usize| match items.get(at + 1) {
            Some(ChainItem::Step(_)) => LinkCondition::Success,
            Some(ChainItem::Close(_)) => LinkCondition::End,
            None => LinkCondition::Last,
        };
        items.iter().enumerate().map(|(at, item)| (*item, link(at))).collect()
    }

    /// Bytes that the step which comes next has written already.
    pub(crate) fn written(&self, step: usize) -> usize {
        if step == self.done.len() { self.written } else { 0 }
    }

    /// Takes the answers to a part.
    pub(crate) fn answered(&mut self, chain: &Chain, part: &Part, answers: Vec<CompletionResult>) {
        // Behind the first entry that did not come to its end the kernel ran none.
        let mut is_cut = false;
        for ((item, _), answer) in part.iter().zip(answers) {
            match *item {
                // One that did not run is tried again; any other leaves nothing open.
                ChainItem::Close(slot) => {
                    let again = [Errno::ECANCELED, Errno::EINTR];
                    self.open[slot] &=
                        matches!(answer, CompletionResult::Failed(errno) if again.contains(&errno));
                }
                ChainItem::Step(step) => is_cut |= !self.step(chain, step, answer, is_cut),
            }
        }
    }

    /// Handles the answer to a step; returns true if the step completed.
    fn step(&mut self, chain: &Chain, step: usize, answer: CompletionResult, is_cut: bool) -> bool {
        match (&chain.steps[step], answer) {
            (ChainStep::Open { into, .. }, CompletionResult::Done(_)) => self.open[into.0] = true,
            _ if is_cut => return false,
            (_, CompletionResult::Failed(Errno::EINTR)) => return false,
            (_, CompletionResult::Failed(errno)) => return self.fail(step, errno),
            (ChainStep::Write { bytes, .. }, CompletionResult::Wrote(count)) => {
                self.written += count;
                if self.written < bytes.len() && count == 0 {
                    // No byte and no reason: to ask again might never end.
                    return self.fail(step, Errno::EIO);
                }
                if self.written < bytes.len() {
                    return false;
                }
                self.written = 0;
            }
            (_, CompletionResult::Done(done)) => {
                self.done.push(done);
                return true;
            }
            (_, CompletionResult::Wrote(_)) => {}
        }
        self.done.push(Done::Nothing);
        true
    }

    fn fail(&mut self, step: usize, errno: Errno) -> bool {
        self.failed = Some((step, errno));
        false
    }

    /// No further step begins.
    pub(crate) fn give_up(&mut self, chain: &Chain) {
        if self.failed.is_none() && self.done.len() < chain.steps.len() {
            self.failed = Some((self.done.len(), Errno::ECANCELED));
        }
    }

    /// The results of the steps, or the one that failed.
    pub(crate) fn finish(self) -> Result<Vec<Done>, Failure> {
        self.failed.map_or(Ok(self.done), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{How, PathStart};

    fn at(name: &str) -> PathStart {
        PathStart::path(name).expect("a path")
    }

    fn replace() -> Chain {
        Chain::replace(at(".new"), at("file"), b"eight by".to_vec(), nix::sys::stat::Mode::S_IRWXU)
    }

    fn opened() -> CompletionResult {
        CompletionResult::Done(Done::Nothing)
    }

    fn failed(errno: Errno) -> CompletionResult {
        CompletionResult::Failed(errno)
    }

    fn items(part: &Part) -> Vec<ChainItem> {
        part.iter().map(|(item, _)| *item).collect()
    }

    use ChainItem::{Close, Step as Number};

    #[test]
    fn rename_is_not_linked_behind_a_sync_but_submitted_after_it() {
        let (mut progress, chain) = (ChainProgress::default(), replace());
        let first = progress.next(&chain);
        let links = [LinkCondition::Success, LinkCondition::Success, LinkCondition::Last];
        let written: Part = [Number(0), Number(1), Number(2)].into_iter().zip(links).collect();
        assert_eq!(first, written, "a sync that fails would not stop the rename");
        progress.answered(&chain, &first, vec![opened(), CompletionResult::Wrote(8), opened()]);
        assert_eq!(
            progress.next(&chain),
            [(Number(3), LinkCondition::End), (Close(0), LinkCondition::Last)]
        );
    }

    #[test]
    fn file_is_closed_after_the_last_step_regardless_of_its_result() {
        let read = Chain::read_file(at("file"), How::read(), 10);
        let expected = [
            (Number(0), LinkCondition::Success),
            (Number(1), LinkCondition::End),
            (Close(0), LinkCondition::Last),
        ];
        assert_eq!(ChainProgress::default().next(&read), expected);
    }

    #[test]
    fn step_after_a_read_waits_for_the_result_of_the_read() {
        let mut chain = Chain::read_file(at("file"), How::read(), 10);
        chain.unlink(at("file"));
        let mut progress = ChainProgress::default();
        let first = progress.next(&chain);
        assert_eq!(first, [(Number(0), LinkCondition::Success), (Number(1), LinkCondition::Last)]);
        let bytes = CompletionResult::Done(Done::Bytes(vec![1]));
        progress.answered(&chain, &first, vec![opened(), bytes]);
        assert_eq!(items(&progress.next(&chain)), [Number(2), Close(0)]);

        let mut progress = ChainProgress::default();
        progress.answered(&chain, &first, vec![opened(), failed(Errno::EISDIR)]);
        let rest = progress.next(&chain);
        assert_eq!(items(&rest), [Close(0)], "and is not done when it failed");
        progress.answered(&chain, &rest, vec![opened()]);
        assert_eq!(progress.next(&chain), []);
        assert_eq!(progress.finish().expect_err("failed"), (1, Errno::EISDIR));
    }

    #[test]
    fn short_write_resumes_where_it_ended() {
        let (chain, mut progress) = (replace(), ChainProgress::default());
        let cut = || failed(Errno::ECANCELED);
        let first = progress.next(&chain);
        progress.answered(&chain, &first, vec![opened(), CompletionResult::Wrote(3), cut()]);
        let second = progress.next(&chain);
        assert_eq!(items(&second), [Number(1), Number(2)]);
        assert_eq!((progress.written(1), progress.written(2)), (3, 0));
        progress.answered(&chain, &second, vec![CompletionResult::Wrote(5), opened()]);
        let third = progress.next(&chain);
        assert_eq!(items(&third), [Number(3), Close(0)]);
        progress.answered(&chain, &third, vec![opened(), opened()]);
        assert_eq!(progress.next(&chain), []);
        assert_eq!(progress.finish().expect("written").len(), 4);
    }

    #[test]
    fn zero_byte_write_fails_and_an_interrupted_write_is_retried() {
        for (answer, failure) in
            [(CompletionResult::Wrote(0), Some((1, Errno::EIO))), (failed(Errno::EINTR), None)]
        {
            let (chain, mut progress) = (replace(), ChainProgress::default());
            let cut = || failed(Errno::ECANCELED);
            let first = progress.next(&chain);
            progress.answered(&chain, &first, vec![opened(), answer, cut()]);
            let again = items(&progress.next(&chain));
            match failure {
                Some(_) => assert_eq!(again, [Close(0)]),
                None => assert_eq!(again, [Number(1), Number(2)]),
            }
            assert_eq!(progress.finish().err(), failure);
        }
    }

    #[test]
    fn open_file_is_closed_once_regardless_of_the_failed_step() {
        let chain = replace();
        let cut = || failed(Errno::ECANCELED);
        // A file that did not open is not closed.
        let mut progress = ChainProgress::default();
        let first = progress.next(&chain);
        let none = vec![failed(Errno::EEXIST), cut(), cut()];
        progress.answered(&chain, &first, none);
        assert_eq!(progress.next(&chain), []);
        assert_eq!(progress.finish().expect_err("exists"), (0, Errno::EEXIST));
        // A close that was cancelled comes again, one that failed does not.
        for (close, left) in [(cut(), vec![Close(0)]), (failed(Errno::EBADF), vec![])] {
            let mut progress = ChainProgress::default();
            let full = vec![opened(), failed(Errno::ENOSPC), cut()];
            progress.answered(&chain, &first, full);
            let closing = progress.next(&chain);
            assert_eq!(items(&closing), [Close(0)]);
            progress.answered(&chain, &closing, vec![close]);
            assert_eq!(items(&progress.next(&chain)), left);
            assert_eq!(progress.finish().expect_err("full"), (1, Errno::ENOSPC));
        }
    }

    #[test]
    fn abandoned_chain_submits_no_further_step_and_a_finished_chain_keeps_its_result() {
        let (chain, mut progress) = (replace(), ChainProgress::default());
        let cut = || failed(Errno::ECANCELED);
        let first = progress.next(&chain);
        let short = vec![opened(), CompletionResult::Wrote(3), cut()];
        progress.answered(&chain, &first, short);
        progress.give_up(&chain);
        assert_eq!(items(&progress.next(&chain)), [Close(0)]);
        assert_eq!(progress.finish().expect_err("given up"), (1, Errno::ECANCELED));

        let mut progress = ChainProgress::default();
        progress.answered(&chain, &first, vec![opened(), CompletionResult::Wrote(8), opened()]);
        let last = progress.next(&chain);
        progress.answered(&chain, &last, vec![opened(), opened()]);
        progress.give_up(&chain);
        assert_eq!(progress.next(&chain), []);
        assert_eq!(progress.finish().expect("done").len(), 4);
    }

    #[test]
    fn a_step_that_failed_is_the_failure_though_the_kernel_went_on() {
        let (chain, mut progress) = (replace(), ChainProgress::default());
        let first = progress.next(&chain);
        let more = vec![opened(), failed(Errno::EDQUOT), opened()];
        progress.answered(&chain, &first, more);
        assert_eq!(items(&progress.next(&chain)), [Close(0)]);
        assert_eq!(progress.finish().expect_err("failed"), (1, Errno::EDQUOT));
    }
}
