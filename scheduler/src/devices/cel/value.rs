//! Values of expressions.
//!
//! Owner: pure data, shared by counting. Bounds: what an expression can make within its cost.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use super::address::Network;
use super::quantity::Quantity;
use super::times::{self, Time};
use super::url::Url;
use super::version::Version;

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Str(Rc<str>),
    Bytes(Rc<[u8]>),
    List(Rc<[Value]>),
    Map(Rc<Map>),
    Quantity(Quantity),
    Version(Rc<Version>),
    Time(Time),
    /// Nanoseconds.
    Duration(i64),
    Address(IpAddr),
    Network(Network),
    Url(Rc<Url>),
    /// The name of a format.
    Format(&'static str),
    Optional(Option<Rc<Value>>),
    /// The name of a type.
    Type(&'static str),
}

/// A map. One with a default has, for whoever looks an entry up, a value under every name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    pub(super) entries: BTreeMap<Key, Value>,
    pub(super) default: Option<Value>,
}

/// What a map has values under: whole numbers are the same however they are written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Bool(bool),
    Number(i128),
    Str(Rc<str>),
}

impl Key {
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(b) => Some(Self::Bool(*b)),
            Value::Int(n) => Some(Self::Number(i128::from(*n))),
            Value::Uint(n) => Some(Self::Number(i128::from(*n))),
            Value::Double(n) if n.fract() == 0.0 && n.abs() < 1e19 => {
                Some(Self::Number(*n as i128))
            }
            Value::Str(text) => Some(Self::Str(Rc::clone(text))),
            _ => None,
        }
    }

    pub(super) fn value(&self) -> Value {
        match self {
            Self::Bool(b) => Value::Bool(*b),
            Self::Number(n) => i64::try_from(*n).map_or(Value::Uint(*n as u64), Value::Int),
            Self::Str(text) => Value::Str(Rc::clone(text)),
        }
    }
}

impl Map {
    /// Of names.
    pub(crate) fn of<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Self {
        let named = |(name, value): (&str, Value)| (Key::Str(name.into()), value);
        Self { entries: entries.into_iter().map(named).collect(), default: None }
    }

    /// The same, in which every name has a value.
    pub(crate) fn or(mut self, default: Value) -> Self {
        self.default = Some(default);
        self
    }

    pub(super) fn find(&self, key: &Value) -> Option<Value> {
        let found = Key::of(key).and_then(|key| self.entries.get(&key));
        found.or(self.default.as_ref()).cloned()
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Self {
        Self::Bool(b)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.into())
    }
}

impl Value {
    /// The name of its type.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::Str(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Version(_) => "kubernetes.Semver",
            Self::Time(_) => times::TIME,
            Self::Duration(_) => times::DURATION,
            Self::Address(_) => "net.IP",
            Self::Network(_) => "net.CIDR",
            Self::Url(_) => "kubernetes.URL",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Optional(_) => "optional_type",
            Self::Type(_) => "type",
        }
    }

    /// What upstream's program calls its type, as far as attributes are of it.
    pub(super) fn go_type(&self) -> &'static str {
        match self {
            Self::Bool(_) => "types.Bool",
            Self::Int(_) => "types.Int",
            Self::Str(_) => "types.String",
            Self::Version(_) => "cel.Semver",
            other => other.kind(),
        }
    }

    /// Whether two are the same; what is of different kinds is not, but numbers compare as such.
    pub(super) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Quantity(a), Self::Quantity(b)) => a.amount == b.amount,
            (Self::Version(a), Self::Version(b)) => a == b,
            (Self::Time(a), Self::Time(b)) => a == b,
            (Self::Duration(a), Self::Duration(b)) => a == b,
            (Self::Address(a), Self::Address(b)) => a == b,
            (Self::Network(a), Self::Network(b)) => a == b,
            (Self::Url(a), Self::Url(b)) => a == b,
            (Self::Format(a), Self::Format(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::Optional(a), Self::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => a.equals(b),
                (a, b) => a.is_none() && b.is_none(),
            },
            (Self::List(a), Self::List(b)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| a.equals(b))
            }
            (Self::Map(a), Self::Map(b)) => {
                let same = |(key, value): (&Key, &Value)| {
                    b.entries.get(key).is_some_and(|other| other.equals(value))
                };
                a.entries.len() == b.entries.len() && a.entries.iter().all(same)
            }
            _ => self.number_order(other) == Some(Ordering::Equal),
        }
    }

    /// The order of two, where they have one.
    pub(super) fn order(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::Str(a), Self::Str(b)) => Some(a.cmp(b)),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Time(a), Self::Time(b)) => Some(a.key().cmp(&b.key())),
            (Self::Duration(a), Self::Duration(b)) => Some(a.cmp(b)),
            _ => self.number_order(other),
        }
    }

    /// Whether both are numbers.
    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Int(_) | Self::Uint(_) | Self::Double(_))
    }

    fn number_order(&self, other: &Self) -> Option<Ordering> {
        let whole = |value: &Self| match value {
            Self::Int(n) => Some(i128::from(*n)),
            Self::Uint(n) => Some(i128::from(*n)),
            _ => None,
        };
        match (self, other) {
            (Self::Double(a), Self::Double(b)) => a.partial_cmp(b),
            (Self::Double(a), b) => a.partial_cmp(&(whole(b)? as f64)),
            (a, Self::Double(b)) => (whole(a)? as f64).partial_cmp(b),
            (a, b) => Some(whole(a)?.cmp(&whole(b)?)),
        }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.kind() == other.kind() && self.equals(other)
    }
}
