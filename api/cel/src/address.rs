//! IP addresses and CIDRs of expressions.
//!
//! Input: texts. Output: addresses, or Go's error messages. Owner: pure data and functions. An
//! address has no zone and is not an IPv4 address mapped to IPv6.
// k8s: apiserver/pkg/cel/library/{ip,cidr}.go, net/netip

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::error::CelError;
use super::eval::{Evaluated, no_overload};
use super::texts::quote;
use super::value::Value;

/// A CIDR: an address, and the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Network {
    /// Returns the length of the prefix.
    pub(super) fn bits(self) -> u8 {
        self.bits
    }

    fn masked(self) -> Self {
        let bits = u32::from(self.bits);
        let address = match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        };
        Self { address, ..self }
    }

    fn contains(self, address: IpAddr) -> bool {
        let of_it = Self { address, bits: self.bits };
        self.address.is_ipv4() == address.is_ipv4() && of_it.masked() == self.masked()
    }
}

/// Parses an IP address.
pub(super) fn address(text: &str) -> Result<IpAddr, CelError> {
    let parsed = parse(text).map_err(|error| {
        let text = quote(text);
        CelError::from(format!(
            "IP Address {text} parse error during conversion from string: {error}"
        ))
    })?;
    if parsed.1 {
        return Err(format!("IP address {} with zone value is not allowed", quote(text)).into());
    }
    match is_mapped(parsed.0) {
        true => Err(mapped(text)),
        false => Ok(parsed.0),
    }
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

fn mapped(text: &str) -> CelError {
    format!("IPv4-mapped IPv6 address {} is not allowed", quote(text)).into()
}

/// Parses the host in brackets of a URL; returns true for IPv6, which it must be.
pub(super) fn host_in_brackets(text: &str) -> Result<bool, CelError> {
    parse(text).map(|(address, _)| address.is_ipv6())
}

/// Parses a CIDR.
pub(super) fn network(text: &str) -> Result<Network, CelError> {
    let wrong = "network address parse error during conversion from string: ";
    let prefix = |why: CelError| {
        CelError::from(format!("{wrong}{wrong}netip.ParsePrefix({}): {why}", quote(text)))
    };
    let (before, bits) = text.rsplit_once('/').ok_or_else(|| prefix("no '/'".into()))?;
    let (address, has_zone) = parse(before).map_err(prefix)?;
    if has_zone {
        return Err(prefix("IPv6 zones cannot be present in a prefix".into()));
    }
    let bad = || prefix(format!("bad bits after slash: {}", quote(bits)).into());
    if bits.len() > 1 && !bits.starts_with(|c: char| ('1'..='9').contains(&c)) {
        return Err(bad());
    }
    let number: i64 = bits.parse().map_err(|_| bad())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = u8::try_from(number).ok().filter(|bits| *bits <= most);
    let bits = bits.ok_or_else(|| prefix("prefix length out of range".into()))?;
    match is_mapped(address) {
        true => Err(format!("{wrong}{}", mapped(text)).into()),
        false => Ok(Network { address, bits }),
    }
}

/// Parses an address as Go does; the second value is true if it has a zone.
fn parse(text: &str) -> Result<(IpAddr, bool), CelError> {
    let wrong = |why: &str| Err(unparsed(text, why, ""));
    match text.chars().find(|c| matches!(c, '.' | ':' | '%')) {
        Some('.') => {
            let fields = four(text, text)?;
            Ok((IpAddr::V4(fields.into()), false))
        }
        Some(':') => match text.split_once('%') {
            Some((_, "")) => wrong("zone must be a non-empty string"),
            Some((address, _)) => Ok((IpAddr::V6(six(text, address)?), true)),
            None => Ok((IpAddr::V6(six(text, text)?), false)),
        },
        Some(_) => wrong("missing IPv6 address"),
        None => wrong("unable to parse IP"),
    }
}

fn unparsed(text: &str, why: &str, at: &str) -> CelError {
    let text = quote(text);
    let error = match at.is_empty() {
        true => format!("ParseAddr({text}): {why}"),
        false => format!("ParseAddr({text}): {why} (at {})", quote(at)),
    };
    error.into()
}

/// Parses four numbers between dots.
fn four(whole: &str, part: &str) -> Result<[u8; 4], CelError> {
    let bytes = part.as_bytes();
    let (mut fields, mut at, mut value, mut digits) = ([0; 4], 0, 0_u32, 0);
    for (place, byte) in bytes.iter().enumerate() {
        let rest = || part.get(place..).unwrap_or_default();
        match byte {
            b'0'..=b'9' => {
                if digits == 1 && value == 0 {
                    return Err(unparsed(whole, "IPv4 field has octet with leading zero", ""));
                }
                value = value * 10 + u32::from(byte - b'0');
                digits += 1;
                if value > 255 {
                    return Err(unparsed(whole, "IPv4 field has value >255", ""));
                }
            }
            b'.' => {
                if place == 0 || place == bytes.len() - 1 || bytes[place - 1] == b'.' {
                    let why = "IPv4 field must have at least one digit";
                    return Err(unparsed(whole, why, rest()));
                }
                if at == 3 {
                    return Err(unparsed(whole, "IPv4 address too long", ""));
                }
                fields[at] = u8::try_from(value).unwrap_or(u8::MAX);
                (at, value, digits) = (at + 1, 0, 0);
            }
            _ => return Err(unparsed(whole, "unexpected character", rest())),
        }
    }
    if at < 3 {
        return Err(unparsed(whole, "IPv4 address too short", ""));
    }
    fields[3] = u8::try_from(value).unwrap_or(u8::MAX);
    Ok(fields)
}

/// Parses groups between colons; `::` stands for the missing ones.
fn six(whole: &str, address: &str) -> Result<Ipv6Addr, CelError> {
    let wrong = |why: &str, at: &str| Err(unparsed(whole, why, at));
    let (mut bytes, mut gap, mut at, mut rest) = ([0_u8; 16], None, 0, address);
    if let Some(after) = rest.strip_prefix("::") {
        (gap, rest) = (Some(0), after);
        if rest.is_empty() {
            return Ok(Ipv6Addr::UNSPECIFIED);
        }
    }
    while at < 16 {
        let digits = group(whole, rest)?;
        let after = &rest[digits..];
        if after.starts_with('.') {
            if gap.is_none() && at != 12 {
                let why = "embedded IPv4 address must replace the final 2 fields of the address";
                return wrong(why, rest);
            }
            if at + 4 > 16 {
                let why = "too many hex fields to fit an embedded IPv4 at the end of the address";
                return wrong(why, rest);
            }
            bytes[at..at + 4].copy_from_slice(&four(whole, rest)?);
            (at, rest) = (at + 4, "");
            break;
        }
        let value = u16::from_str_radix(&rest[..digits], 16).unwrap_or(u16::MAX);
        bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        (at, rest) = (at + 2, after);
        if rest.is_empty() {
            break;
        }
        match rest.strip_prefix(':') {
            None => return wrong("unexpected character, want colon", rest),
            Some("") => return wrong("colon must be followed by more characters", rest),
            Some(after) => rest = after,
        }
        if let Some(after) = rest.strip_prefix(':') {
            if gap.is_some() {
                return wrong("multiple :: in address", rest);
            }
            (gap, rest) = (Some(at), after);
            if rest.is_empty() {
                break;
            }
        }
    }
    if !rest.is_empty() {
        return wrong("trailing garbage after address", rest);
    }
    filled(bytes, at, gap).map_err(|why| unparsed(whole, why, ""))
}

/// Returns the number of hexadecimal digits at the start of a text.
fn group(whole: &str, rest: &str) -> Result<usize, CelError> {
    let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
    match digits {
        0 => {
            let why = "each colon-separated field must have at least one digit";
            Err(unparsed(whole, why, rest))
        }
        1..=4 => Ok(digits),
        _ => Err(unparsed(whole, "each group must have 4 or less digits", rest)),
    }
}

fn filled(mut bytes: [u8; 16], at: usize, gap: Option<usize>) -> Result<Ipv6Addr, &'static str> {
    match gap {
        None if at < 16 => return Err("address string too short"),
        Some(_) if at >= 16 => return Err("the :: must expand to at least one field of zeros"),
        Some(gap) => {
            bytes.copy_within(gap..at, 16 - (at - gap));
            bytes[gap..16 - (at - gap)].fill(0);
        }
        None => {}
    }
    Ok(bytes.into())
}

/// Calls a function of an IP address.
pub(super) fn call(name: &str, address: IpAddr, rest: &[Value]) -> Evaluated {
    let is_last = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    };
    let says = match name {
        _ if !rest.is_empty() => return Err(no_overload()),
        "family" => return Ok(Value::Int(if address.is_ipv4() { 4 } else { 6 })),
        "string" => return Ok(address.to_string().as_str().into()),
        "isUnspecified" => address.is_unspecified(),
        "isLoopback" => address.is_loopback(),
        "isLinkLocalUnicast" => is_link_local,
        "isLinkLocalMulticast" => match address {
            IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
            IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
        },
        "isGlobalUnicast" => {
            !is_last
                && !address.is_unspecified()
                && !address.is_loopback()
                && !address.is_multicast()
                && !is_link_local
        }
        _ => return Err(no_overload()),
    };
    Ok(Value::Bool(says))
}

/// Calls a function of a CIDR.
pub(super) fn call_network(name: &str, of: Network, rest: &[Value]) -> Evaluated {
    let contains = |other: Network| of.contains(other.address) && of.bits <= other.bits;
    match (name, rest) {
        ("ip", []) => Ok(Value::Address(of.address)),
        ("masked", []) => Ok(Value::Network(of.masked())),
        ("prefixLength", []) => Ok(Value::Int(i64::from(of.bits))),
        ("string", []) => Ok(of.to_string().as_str().into()),
        ("containsIP", [Value::Address(address)]) => Ok(of.contains(*address).into()),
        // An invalid address means that no overload matches, whatever the error.
        ("containsIP", [Value::Str(text)]) => {
            let address = address(text).map_err(|_| no_overload())?;
            Ok(of.contains(address).into())
        }
        ("containsCIDR", [Value::Network(other)]) => Ok(contains(*other).into()),
        ("containsCIDR", [Value::Str(text)]) => Ok(contains(network(text)?).into()),
        _ => Err(no_overload()),
    }
}
