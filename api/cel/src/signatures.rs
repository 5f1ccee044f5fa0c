//! Signatures of the known functions.
//!
//! Output: what is known of a call before its values are. Owner: pure data.
// k8s: vendor/github.com/google/cel-go/{common/stdlib,ext}, apiserver/pkg/cel/library

use super::{named, times};

/// Functions: the name, true with a receiver, numbers of arguments, and the result's kind.
type Signature = (&'static str, bool, &'static [usize], Option<&'static str>);

const INT: Option<&str> = Some("int");
const BOOL: Option<&str> = Some("bool");
const TEXT: Option<&str> = Some("string");
const LIST: Option<&str> = Some("list");
const QUANTITY: Option<&str> = Some("kubernetes.Quantity");
const VERSION: Option<&str> = Some("kubernetes.Semver");
const OPTIONAL: Option<&str> = Some("optional_type");

/// A function that exists only if attributes may be lists.
pub(super) const INCLUDES: &str = "includes";

const SIGNATURES: [Signature; 106] = [
    ("size", false, &[1], INT),
    ("size", true, &[0], INT),
    ("type", false, &[1], Some("type")),
    ("dyn", false, &[1], None),
    ("bool", false, &[1], BOOL),
    ("int", false, &[1], INT),
    ("uint", false, &[1], Some("uint")),
    ("double", false, &[1], Some("double")),
    ("string", false, &[1], TEXT),
    ("bytes", false, &[1], Some("bytes")),
    ("contains", true, &[1], BOOL),
    ("startsWith", true, &[1], BOOL),
    ("endsWith", true, &[1], BOOL),
    ("matches", true, &[1], BOOL),
    ("matches", false, &[2], BOOL),
    ("find", true, &[1], TEXT),
    ("findAll", true, &[1, 2], LIST),
    ("charAt", true, &[1], TEXT),
    ("indexOf", true, &[1, 2], INT),
    ("lastIndexOf", true, &[1, 2], INT),
    ("lowerAscii", true, &[0], TEXT),
    ("upperAscii", true, &[0], TEXT),
    ("replace", true, &[2, 3], TEXT),
    ("split", true, &[1, 2], LIST),
    ("substring", true, &[1, 2], TEXT),
    ("trim", true, &[0], TEXT),
    ("join", true, &[0, 1], TEXT),
    ("isSorted", true, &[0], BOOL),
    ("sum", true, &[0], None),
    ("min", true, &[0], None),
    ("max", true, &[0], None),
    ("distinct", true, &[0], LIST),
    ("reverse", true, &[0], LIST),
    ("slice", true, &[2], LIST),
    ("sort", true, &[0], LIST),
    ("flatten", true, &[0, 1], LIST),
    ("lists.range", false, &[1], LIST),
    ("sets.contains", false, &[2], BOOL),
    ("sets.equivalent", false, &[2], BOOL),
    ("sets.intersects", false, &[2], BOOL),
    ("quantity", false, &[1], QUANTITY),
    ("isQuantity", false, &[1], BOOL),
    ("isInteger", true, &[0], BOOL),
    ("asInteger", true, &[0], INT),
    ("asApproximateFloat", true, &[0], Some("double")),
    ("sign", false, &[1], INT),
    ("add", true, &[1], QUANTITY),
    ("sub", true, &[1], QUANTITY),
    ("isLessThan", true, &[1], BOOL),
    ("isGreaterThan", true, &[1], BOOL),
    ("compareTo", true, &[1], INT),
    ("semver", false, &[1, 2], VERSION),
    ("isSemver", false, &[1, 2], BOOL),
    ("major", true, &[0], INT),
    ("minor", true, &[0], INT),
    ("patch", true, &[0], INT),
    ("optional.of", false, &[1], OPTIONAL),
    ("optional.ofNonZeroValue", false, &[1], OPTIONAL),
    ("optional.none", false, &[0], OPTIONAL),
    ("hasValue", true, &[0], BOOL),
    ("value", true, &[0], None),
    ("or", true, &[1], OPTIONAL),
    ("orValue", true, &[1], None),
    ("format", true, &[1], TEXT),
    ("strings.quote", false, &[1], TEXT),
    ("timestamp", false, &[1], Some(times::TIME)),
    ("duration", false, &[1], Some(times::DURATION)),
    ("getFullYear", true, &[0, 1], INT),
    ("getMonth", true, &[0, 1], INT),
    ("getDate", true, &[0, 1], INT),
    ("getDayOfMonth", true, &[0, 1], INT),
    ("getDayOfWeek", true, &[0, 1], INT),
    ("getDayOfYear", true, &[0, 1], INT),
    ("getHours", true, &[0, 1], INT),
    ("getMinutes", true, &[0, 1], INT),
    ("getSeconds", true, &[0, 1], INT),
    ("getMilliseconds", true, &[0, 1], INT),
    ("ip", false, &[1], Some("net.IP")),
    ("ip", true, &[0], Some("net.IP")),
    ("isIP", false, &[1], BOOL),
    ("ip.isCanonical", false, &[1], BOOL),
    ("family", true, &[0], INT),
    ("isUnspecified", true, &[0], BOOL),
    ("isLoopback", true, &[0], BOOL),
    ("isLinkLocalMulticast", true, &[0], BOOL),
    ("isLinkLocalUnicast", true, &[0], BOOL),
    ("isGlobalUnicast", true, &[0], BOOL),
    ("cidr", false, &[1], Some("net.CIDR")),
    ("isCIDR", false, &[1], BOOL),
    ("containsIP", true, &[1], BOOL),
    ("containsCIDR", true, &[1], BOOL),
    ("prefixLength", true, &[0], INT),
    ("masked", true, &[0], Some("net.CIDR")),
    ("url", false, &[1], Some("kubernetes.URL")),
    ("isURL", false, &[1], BOOL),
    ("getScheme", true, &[0], TEXT),
    ("getHost", true, &[0], TEXT),
    ("getHostname", true, &[0], TEXT),
    ("getPort", true, &[0], TEXT),
    ("getEscapedPath", true, &[0], TEXT),
    ("getQuery", true, &[0], Some("map")),
    ("format.named", false, &[1], OPTIONAL),
    ("validate", true, &[1], OPTIONAL),
    ("first", true, &[0], OPTIONAL),
    ("last", true, &[0], OPTIONAL),
    (INCLUDES, true, &[1], BOOL),
];

/// Returns the kind of a function's result if it is always the same; `None` for an unknown
/// function.
pub(super) fn signature(name: &str, is_member: bool, args: usize) -> Option<Option<&'static str>> {
    let is_it = |s: &&Signature| s.0 == name && s.1 == is_member && s.2.contains(&args);
    let of_format = |name: &str| named::named(name).map(|_| Some("kubernetes.NamedFormat"));
    let found = SIGNATURES.iter().find(is_it).map(|s| s.3);
    found.or_else(|| name.strip_prefix("format.").filter(|_| args == 0).and_then(of_format))
}
