//! Values of expressions.
//!
//! Owner: pure data with reference counts. Bounds: those of the expression's cost.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::rc::Rc;

use super::account::Account;
use super::address::Network;
use super::error::CelError;
use super::quantity::Quantity;
use super::times::{self, Time};
use super::url::Url;
use super::version::SemanticVersion;

/// Memory of a pair of addresses in a set, with the unused part of the set.
const SEEN_BYTES: u64 = 32;

/// A value.
#[derive(Clone, Debug)]
pub enum Value {
    /// `null`.
    Null,
    /// `bool`.
    Bool(bool),
    /// `int`.
    Int(i64),
    /// `uint`.
    Uint(u64),
    /// `double`.
    Double(f64),
    /// `string`.
    Str(Rc<str>),
    /// `bytes`.
    Bytes(Rc<[u8]>),
    /// `list`.
    List(Rc<[Value]>),
    /// `map`.
    Map(Rc<Map>),
    /// A quantity of Kubernetes.
    Quantity(Quantity),
    /// A semantic version.
    Version(Rc<SemanticVersion>),
    /// `timestamp`.
    Time(Time),
    /// `duration`, in nanoseconds.
    Duration(i64),
    /// An IP address.
    Address(IpAddr),
    /// A network in CIDR notation.
    Network(Network),
    /// A URL.
    Url(Rc<Url>),
    /// The name of a format.
    Format(&'static str),
    /// `optional`: a value, or none.
    Optional(Option<Rc<Value>>),
    /// The name of a type.
    Type(&'static str),
}

/// A map. One with a default returns it for every missing key.
#[derive(Clone, Debug, Default)]
pub struct Map {
    pub(super) entries: BTreeMap<MapKey, Value>,
    pub(super) default: Option<Value>,
}

/// Key of a map: whole numbers compare by value, whatever their type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MapKey {
    Bool(bool),
    Number(i128),
    Str(Rc<str>),
}

impl MapKey {
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

    /// Bytes to charge for reading it.
    pub(super) fn bytes(&self) -> usize {
        if let Self::Str(text) = self { text.len() } else { 0 }
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
    /// Creates a map with texts as keys.
    pub fn of<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Self {
        let named = |(name, value): (&str, Value)| (MapKey::Str(name.into()), value);
        Self { entries: entries.into_iter().map(named).collect(), default: None }
    }

    /// Sets the default of a map.
    pub fn or(mut self, default: Value) -> Self {
        self.default = Some(default);
        self
    }

    pub(super) fn find(&self, key: &Value) -> Option<Value> {
        let found = MapKey::of(key).and_then(|key| self.entries.get(&key));
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
    /// Returns the name of its type.
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

    /// Returns the Go type of its value in upstream, for types of attributes.
    pub(super) fn go_type(&self) -> &'static str {
        match self {
            Self::Bool(_) => "types.Bool",
            Self::Int(_) => "types.Int",
            Self::Str(_) => "types.String",
            Self::Version(_) => "cel.Semver",
            other => other.kind(),
        }
    }

    /// Returns true if two values are equal; values of different kinds are not, but numbers compare
    /// by value.
    pub(super) fn equals(&self, other: &Self, account: &Account) -> Result<bool, CelError> {
        Equality { account, seen: HashSet::new() }.same(self, other)
    }

    /// Returns the order of two values, if they have one. The caller has charged reading them.
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

    /// Returns a total order of values of one kind, for sorting: NaN comes first.
    pub(super) fn total_order(&self, other: &Self) -> Ordering {
        let is_number = |value: &Self| !matches!(value, Self::Double(n) if n.is_nan());
        let by_nan = || is_number(self).cmp(&is_number(other));
        self.order(other).unwrap_or_else(by_nan)
    }

    /// Returns true if it may contain lists or maps.
    fn is_nested(&self) -> bool {
        matches!(self, Self::List(_) | Self::Map(_) | Self::Optional(_))
    }

    /// Returns its length in bytes, if reading it takes that long.
    pub(super) fn text_bytes(&self) -> usize {
        match self {
            Self::Str(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            _ => 0,
        }
    }

    /// Returns true if both are numbers.
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

/// A comparison. Every visited value is paid for. Parts are shared, so one walk may meet the same
/// pair many times: pairs of lists and maps seen before are not walked again, because one
/// difference ends the comparison. Identical addresses are still walked, because a NaN is not equal
/// to itself, wherever it is.
struct Equality<'a> {
    account: &'a Account<'a>,
    /// Address pairs of visited lists and maps that contain lists or maps.
    seen: HashSet<(usize, usize)>,
}

impl Equality<'_> {
    fn same(&mut self, a: &Value, b: &Value) -> Result<bool, CelError> {
        self.account.work(1)?;
        Ok(match (a, b) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Str(a), Value::Str(b)) => {
                Rc::ptr_eq(a, b) || self.read(a.len(), b.len())? && a == b
            }
            (Value::Bytes(a), Value::Bytes(b)) => {
                Rc::ptr_eq(a, b) || self.read(a.len(), b.len())? && a == b
            }
            (Value::Quantity(a), Value::Quantity(b)) => a.amount == b.amount,
            (Value::Version(a), Value::Version(b)) => a == b,
            (Value::Time(a), Value::Time(b)) => a == b,
            (Value::Duration(a), Value::Duration(b)) => a == b,
            (Value::Address(a), Value::Address(b)) => a == b,
            (Value::Network(a), Value::Network(b)) => a == b,
            (Value::Url(a), Value::Url(b)) => self.read(a.bytes(), b.bytes())? && a == b,
            (Value::Format(a), Value::Format(b)) => a == b,
            (Value::Type(a), Value::Type(b)) => a == b,
            (Value::Optional(Some(a)), Value::Optional(Some(b))) => {
                self.deeper(|it| it.same(a, b))?
            }
            (Value::Optional(a), Value::Optional(b)) => a.is_none() && b.is_none(),
            (Value::List(a), Value::List(b)) => {
                let addresses = (Rc::as_ptr(a).addr(), Rc::as_ptr(b).addr());
                let nested = a.iter().any(Value::is_nested);
                self.is_known(addresses, nested)? || self.deeper(|it| it.same_lists(a, b))?
            }
            (Value::Map(a), Value::Map(b)) => {
                let addresses = (Rc::as_ptr(a).addr(), Rc::as_ptr(b).addr());
                let nested = a.entries.values().any(Value::is_nested);
                self.is_known(addresses, nested)? || self.deeper(|it| it.same_maps(a, b))?
            }
            _ => a.number_order(b) == Some(Ordering::Equal),
        })
    }

    /// Charges reading two texts of these lengths; returns true if they may be equal.
    fn read(&self, a: usize, b: usize) -> Result<bool, CelError> {
        self.account.read(if a == b { a } else { 0 })?;
        Ok(a == b)
    }

    /// Returns true if the pair was visited before.
    fn is_known(&mut self, addresses: (usize, usize), nested: bool) -> Result<bool, CelError> {
        if !nested {
            return Ok(false);
        }
        self.account.bytes(SEEN_BYTES)?;
        Ok(!self.seen.insert(addresses))
    }

    fn deeper(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<bool, CelError>,
    ) -> Result<bool, CelError> {
        let account = self.account;
        account.deeper(|| inner(self))
    }

    fn same_lists(&mut self, a: &[Value], b: &[Value]) -> Result<bool, CelError> {
        if a.len() != b.len() {
            return Ok(false);
        }
        for (a, b) in a.iter().zip(b) {
            if !self.same(a, b)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn same_maps(&mut self, a: &Map, b: &Map) -> Result<bool, CelError> {
        if a.entries.len() != b.entries.len() {
            return Ok(false);
        }
        for (key, value) in &a.entries {
            self.account.read(key.bytes())?;
            let Some(other) = b.entries.get(key) else { return Ok(false) };
            if !self.same(other, value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
