//! Values seen by two scans in a row: a value that just appears or vanishes is in only one. Pure.

use std::collections::BTreeSet;

/// Remembers the last look.
#[derive(Debug)]
pub struct Twice<T>(BTreeSet<T>);

impl<T> Default for Twice<T> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<T: Ord + Clone> Twice<T> {
    /// Takes the result of a scan; returns the values that the scan before had, too.
    pub fn take(&mut self, found: BTreeSet<T>) -> BTreeSet<T> {
        let again = found.intersection(&self.0).cloned().collect();
        self.0 = found;
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_items_seen_in_two_consecutive_checks_count() {
        let mut twice = Twice::default();
        let looks: [(&[u8], &[u8]); 5] =
            [(&[1], &[]), (&[1, 2], &[1]), (&[2], &[2]), (&[1], &[]), (&[1], &[1])];
        for (found, again) in looks {
            let found = found.iter().copied().collect();
            assert_eq!(twice.take(found).into_iter().collect::<Vec<_>>(), again);
        }
    }
}
