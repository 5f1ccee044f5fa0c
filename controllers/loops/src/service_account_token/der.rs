//! As much of the distinguished encoding as keys need.
//!
//! Input: the bytes of a key file. Output: the parts of a key on a curve; and encoded items.
//! Bounds: lengths below 2^32.

pub(super) const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
pub(super) const NULL: u8 = 0x05;
pub(super) const OID: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const PARAMETERS: u8 = 0xa0;
const PUBLIC: u8 = 0xa1;

/// An item with this tag.
pub(super) fn item(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    let length = content.len().to_be_bytes();
    match content.len() {
        0..0x80 => bytes.push(length[length.len() - 1]),
        _ => {
            let first = length.iter().position(|byte| *byte != 0).unwrap_or(length.len());
            let count = u8::try_from(length.len() - first).expect("at most eight bytes");
            bytes.push(0x80 | count);
            bytes.extend_from_slice(&length[first..]);
        }
    }
    bytes.extend_from_slice(content);
    bytes
}

/// The content of the first item, if it has this tag, and what follows it.
fn take(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (first, rest) = bytes.split_first()?;
    (*first == tag).then_some(())?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match *length {
        short @ 0..0x80 => (usize::from(short), rest),
        long => {
            let (digits, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            (digits.len() <= 4).then_some(())?;
            let number = digits.iter().fold(0, |sum, digit| (sum << 8) | usize::from(*digit));
            (number, rest)
        }
    };
    rest.split_at_checked(length)
}

/// A private key on a curve.
pub(super) struct Sec1Key<'a> {
    pub(super) curve: &'a [u8],
    pub(super) private: &'a [u8],
    pub(super) public: &'a [u8],
}

/// Reads a key as RFC 5915 has it, with its curve and its public key.
pub(super) fn read_sec1(bytes: &[u8]) -> Option<Sec1Key<'_>> {
    let (content, _) = take(bytes, SEQUENCE)?;
    let (_version, rest) = take(content, INTEGER)?;
    let (private, rest) = take(rest, OCTET_STRING)?;
    let (parameters, rest) = take(rest, PARAMETERS)?;
    let (curve, _) = take(parameters, OID)?;
    let (public, _) = take(rest, PUBLIC)?;
    let (public, _) = take(public, BIT_STRING)?;
    // The first byte counts unused bits.
    let (_, public) = public.split_first()?;
    Some(Sec1Key { curve, private, public })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn der_item_is_read_as_written(content in prop::collection::vec(any::<u8>(), 0..400)) {
            let bytes = [item(OCTET_STRING, &content), vec![1, 2]].concat();
            prop_assert_eq!(take(&bytes, OCTET_STRING), Some((&*content, &[1, 2][..])));
            prop_assert_eq!(take(&bytes, NULL), None);
        }

        #[test]
        fn bytes_of_any_kind_are_read_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..64)
        ) {
            let text = [&[SEQUENCE, 0x84][..], &bytes].concat();
            prop_assert!(read_sec1(&bytes).is_none_or(|key| key.private.len() < 64));
            prop_assert!(read_sec1(&text).is_none_or(|key| key.private.len() < 64));
        }
    }
}
