//! A host port, interned.
//!
//! Input: texts of API objects. Output: values that filters and tables compare. Owner: the parser
//! of pods. Bounds: 12 bytes.

use crate::intern::Str;

/// A host port in use: protocol, address, port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// "TCP", "UDP" or "SCTP".
    pub protocol: Str,
    /// Address; the wildcard is "0.0.0.0".
    pub ip: Str,
    /// Port.
    pub port: i32,
}
