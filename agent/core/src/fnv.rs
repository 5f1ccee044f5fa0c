//! FNV-1a of 64 bits: equal bytes have equal numbers, in each build and in each record.
//!
//! Pure. The standard library's hashers may differ from one release of the compiler to the next,
//! and a record of the decisions outlives the build that wrote it. It does not resist collisions,
//! so it is only for values that the owner of a pod chooses.

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// The hash so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(OFFSET)
    }
}

impl Fnv {
    /// Takes bytes.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        Self(bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME)))
    }

    /// Takes one of several texts; where one ends and the next begins counts.
    pub(crate) fn text(self, text: &str) -> Self {
        // No text has this byte.
        self.bytes(text.as_bytes()).bytes(&[0xff])
    }

    /// The number.
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_algorithm() {
        for (text, number) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(Fnv::default().bytes(text.as_bytes()).number(), number, "{text}");
        }
    }

    #[test]
    fn texts_are_not_run_together() {
        let of = |texts: &[&str]| texts.iter().fold(Fnv::default(), |all, text| all.text(text));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["a"]), of(&["a", ""]));
    }
}
