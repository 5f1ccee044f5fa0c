//! DNS messages: a question for the addresses of a name, and the content of its answer.
//!
//! Pure. An answer is untrusted: every offset is checked, a name's pointers are never followed, at
//! most `RECORDS_MAX` records are read and `ADDRESSES_MAX` addresses kept.
// RFC 1035, RFC 3596

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses kept of an answer.
pub(super) const ADDRESSES_MAX: usize = 16;
/// Records read.
const RECORDS_MAX: u16 = 256;
/// Longest label, in bytes.
const LABEL_BYTES_MAX: usize = 63;
const HEAD_BYTES: usize = 12;
const CLASS_INTERNET: u16 = 1;

/// The address family of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    fn record_type(self) -> u16 {
        match self {
            Self::V4 => 1,
            Self::V6 => 28,
        }
    }
}

/// The content of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// These addresses; none when the name has none of that family.
    Addresses(Vec<IpAddr>),
    /// There is no such name.
    NoName,
    /// The answer is too long for a datagram: ask by TCP.
    Truncated,
    /// The server could not answer.
    Failed,
}

/// The question for a name with its last dot; `None` when that is no name.
pub(super) fn question(id: u16, name: &str, family: Family) -> Option<Vec<u8>> {
    let mut message = Vec::with_capacity(HEAD_BYTES + name.len() + 6);
    for word in [id, 0x0100, 1, 0, 0, 0] {
        message.extend(word.to_be_bytes());
    }
    for label in name.strip_suffix('.')?.split('.') {
        let length = u8::try_from(label.len()).ok()?;
        if length == 0 || usize::from(length) > LABEL_BYTES_MAX {
            return None;
        }
        message.push(length);
        message.extend(label.bytes());
    }
    message.push(0);
    message.extend(family.record_type().to_be_bytes());
    message.extend(CLASS_INTERNET.to_be_bytes());
    Some(message)
}

/// The answer of a message to the question; `None` when it is no answer to it.
pub(super) fn reply(message: &[u8], question: &[u8], family: Family) -> Option<Reply> {
    let word = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
    let asked = question.get(HEAD_BYTES..)?;
    let end = HEAD_BYTES + asked.len();
    let is_ours = message.get(..2) == question.get(..2)
        && word(2)? & 0x8000 != 0
        && word(4)? == 1
        && message.get(HEAD_BYTES..end)?.eq_ignore_ascii_case(asked);
    if !is_ours {
        return None;
    }
    let flags = word(2)?;
    match flags & 0x000F {
        _ if flags & 0x0200 != 0 => return Some(Reply::Truncated),
        0 => {}
        3 => return Some(Reply::NoName),
        _ => return Some(Reply::Failed),
    }
    let mut addresses = Vec::new();
    let mut at = end;
    for _ in 0..word(6)?.min(RECORDS_MAX) {
        let Some((record_type, data, next)) = record(message, at) else { break };
        if record_type == family.record_type() && addresses.len() < ADDRESSES_MAX {
            addresses.extend(address(data));
        }
        at = next;
    }
    Some(Reply::Addresses(addresses))
}

/// A record's type and data, and where the next one begins.
fn record(message: &[u8], at: usize) -> Option<(u16, &[u8], usize)> {
    let at = past_name(message, at)?;
    let word = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
    let (data, length) = (at + 10, usize::from(word(at + 8)?));
    Some((word(at)?, message.get(data..data + length)?, data + length))
}

/// The end of a name. The owner of the records is not checked: a chain of aliases is answered with
/// the addresses at its end.
fn past_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match usize::from(*message.get(at)?) {
            0 => return Some(at + 1),
            length if length & 0xC0 == 0xC0 => return Some(at + 2),
            length if length <= LABEL_BYTES_MAX => at += 1 + length,
            _ => return None,
        }
    }
}

fn address(data: &[u8]) -> Option<IpAddr> {
    match data.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into()),
        _ => None,
    }
}

/// An answer to the question, for tests: that return code and these addresses.
#[cfg(test)]
pub(super) fn answer(question: &[u8], code: u16, addresses: &[IpAddr]) -> Vec<u8> {
    let mut message = question.to_vec();
    message[2..4].copy_from_slice(&(0x8180 | code).to_be_bytes());
    message[6..8].copy_from_slice(&(addresses.len() as u16).to_be_bytes());
    for ip in addresses {
        let (record_type, data) = match ip {
            IpAddr::V4(ip) => (1_u16, ip.octets().to_vec()),
            IpAddr::V6(ip) => (28, ip.octets().to_vec()),
        };
        message.extend([0xC0, 0x0C]);
        message.extend(record_type.to_be_bytes());
        message.extend([0, 1, 0, 0, 0, 60]);
        message.extend((data.len() as u16).to_be_bytes());
        message.extend(data);
    }
    message
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ask(name: &str) -> Vec<u8> {
        question(7, name, Family::V4).expect("it is a name")
    }

    #[test]
    fn dns_query_is_encoded_per_protocol_and_invalid_names_are_rejected() {
        let mut expected = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        expected.extend(b"\x03web\x07example\0\0\x01\0\x01");
        assert_eq!(ask("web.example."), expected);
        for bad in ["web", ".", "a..b.", &format!("{}.", "x".repeat(64))] {
            assert_eq!(question(7, bad, Family::V6), None, "{bad}");
        }
    }

    #[test]
    fn dns_replies_are_decoded_and_unrelated_messages_ignored() {
        let (asked, other) = (ask("web.example."), ask("other."));
        let ips: Vec<IpAddr> = vec![[10, 0, 0, 1].into(), [0_u16; 8].into(), [10, 0, 0, 2].into()];
        let v4 = vec![ips[0], ips[2]];
        let full = answer(&asked, 0, &ips);
        let with = |at: usize, byte: u8| {
            let mut message = full.clone();
            message[at] = byte;
            message
        };
        for (message, expected) in [
            (full.clone(), Some(Reply::Addresses(v4))),
            (answer(&asked, 0, &[]), Some(Reply::Addresses(Vec::new()))),
            (answer(&asked, 3, &[]), Some(Reply::NoName)),
            (answer(&asked, 2, &[]), Some(Reply::Failed)),
            (with(2, 0x83), Some(Reply::Truncated)),
            (with(1, 8), None),
            (with(2, 1), None),
            (answer(&other, 0, &ips), None),
            (full[..full.len() - 1].to_vec(), Some(Reply::Addresses(vec![ips[0]]))),
        ] {
            assert_eq!(reply(&message, &asked, Family::V4), expected, "{message:?}");
        }
    }

    proptest! {
        #[test]
        fn no_message_does_harm(tail in proptest::collection::vec(any::<u8>(), 0..200), count: u16) {
            let asked = ask("web.example.");
            let mut message = answer(&asked, 0, &[]);
            message[6..8].copy_from_slice(&count.to_be_bytes());
            message.extend(tail);
            if let Some(Reply::Addresses(addresses)) = reply(&message, &asked, Family::V4) {
                prop_assert!(addresses.len() <= ADDRESSES_MAX);
            }
        }
    }
}
