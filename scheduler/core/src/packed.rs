//! Dictionary compression: similar texts are kept as their difference from one of them.
//!
//! Input: a text, and the key of its workload. Output: the same text, on demand. Owner: one thread.
//! Pods of a workload differ by their name and a few numbers: their texts are compressed with one
//! of them as the dictionary, the pattern. Bounds: `PATTERNS_MAX` patterns for new texts, in
//! addition to those that kept texts still refer to.

use std::collections::VecDeque;
use std::rc::Rc;

use lz4_flex::block;

/// Workloads with a pattern for new texts.
const PATTERNS_MAX: usize = 64;
/// A text whose difference is more than this part of it becomes the pattern of new texts.
const DIFFERENT: usize = 4;

/// Compresses texts.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    /// Patterns by workload, the one used last at the end.
    patterns: VecDeque<(Box<str>, Rc<[u8]>)>,
}

/// A text as its difference from the pattern.
#[derive(Debug)]
pub(crate) struct Packed {
    len: usize,
    rest: Box<[u8]>,
    pattern: Rc<[u8]>,
}

impl Packer {
    /// Compresses a text with the pattern of its workload.
    pub(crate) fn pack(&mut self, of: &str, text: &[u8]) -> Packed {
        let known = self.patterns.iter().position(|(whose, _)| **whose == *of);
        if let Some(at) = known
            && let Some((whose, pattern)) = self.patterns.remove(at)
        {
            let packed = Packed::new(text, &pattern);
            if packed.rest.len() * DIFFERENT <= text.len() {
                self.patterns.push_back((whose, pattern));
                return packed;
            }
        }
        if self.patterns.len() >= PATTERNS_MAX {
            self.patterns.pop_front();
        }
        let pattern = Rc::from(text);
        let packed = Packed::new(text, &pattern);
        self.patterns.push_back((of.into(), pattern));
        packed
    }
}

impl Packed {
    fn new(text: &[u8], pattern: &Rc<[u8]>) -> Self {
        let rest = block::compress_with_dict(text, pattern).into_boxed_slice();
        Self { len: text.len(), rest, pattern: Rc::clone(pattern) }
    }

    /// The text.
    pub(crate) fn text(&self) -> Vec<u8> {
        block::decompress_with_dict(&self.rest, self.len, &self.pattern)
            .expect("what was compressed with this pattern")
    }

    /// Returns the bytes that it takes in addition to its pattern.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.rest.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(at: usize, message: &str) -> Vec<u8> {
        let like =
            "{\"containers\":[{\"image\":\"registry/app:1.2\",\"name\":\"app\"}]}".repeat(12);
        format!("{{\"metadata\":{{\"name\":\"web-{at}\"}},\"spec\":{like},\"m\":\"{message}\"}}")
            .into_bytes()
    }

    #[test]
    fn similar_text_is_packed_as_its_difference_from_the_pattern() {
        let mut packer = Packer::default();
        let all: Vec<_> = (0..100).map(|at| packer.pack("web", &text(at, "why"))).collect();
        for (at, packed) in all.iter().enumerate() {
            assert_eq!(packed.text(), text(at, "why"));
            assert!(packed.bytes() < 40, "{at}: {}", packed.bytes());
            assert!(Rc::ptr_eq(&packed.pattern, &all[0].pattern));
        }
    }

    #[test]
    fn different_text_starts_a_new_pattern() {
        let mut packer = Packer::default();
        let first = packer.pack("web", &text(0, ""));
        let noise =
            (0_u64..2_000).map(|at| (at * at * at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58);
        let other: String = noise.map(|n| char::from(b'0' + n as u8)).collect();
        let second = packer.pack("web", &text(1, &other));
        assert!(!Rc::ptr_eq(&first.pattern, &second.pattern));
        let third = packer.pack("web", &text(2, &other));
        assert!(Rc::ptr_eq(&second.pattern, &third.pattern) && third.bytes() < 40);
        assert_eq!(first.text(), text(0, ""));
    }

    #[test]
    fn oldest_pattern_is_evicted_at_the_limit() {
        let mut packer = Packer::default();
        let first = packer.pack("0", &text(0, ""));
        for at in 1..=PATTERNS_MAX {
            packer.pack(&at.to_string(), &text(at, ""));
        }
        assert_eq!(packer.patterns.len(), PATTERNS_MAX);
        assert!(!Rc::ptr_eq(&first.pattern, &packer.pack("0", &text(0, "")).pattern));
    }

    proptest! {
        #[test]
        fn packed_texts_unpack_unchanged(
            texts in proptest::collection::vec((0_u8..3, proptest::collection::vec(any::<u8>(), 0..300)), 1..20),
        ) {
            let mut packer = Packer::default();
            let pack = |(of, text): &(u8, Vec<u8>)| packer.pack(&of.to_string(), text);
            let packed: Vec<_> = texts.iter().map(pack).collect();
            for (packed, (_, text)) in packed.iter().zip(&texts) {
                prop_assert_eq!(&packed.text(), text);
            }
        }
    }
}
