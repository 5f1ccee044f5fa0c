//! Names and quantities that every stage shares: ids, versions, instants.
//!
//! Newtypes prevent that a pod's uid is taken for a container's id, or a counter for a time.
//! `UnixNanos` is wall-clock time as CRI reports it and people read it, `Mono` is the clock of
//! waits. Versions are counters, see `Version`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! text_of_id {
    ($name:ident) => {
        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                String::deserialize(input).map(Self::from)
            }
        }
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        text_of_id!($name);
        impl<T: Into<Arc<str>>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.into())
            }
        }
    };
}

text_of_id!(PodUid);

/// Longest uid that is taken, in bytes; with namespace and name it is part of a file's name.
const UID_BYTES_MAX: usize = 128;

/// A pod's uid: the API server's UUID, or the hash that a static pod gets. It names directories and
/// cgroups, so it is always one plain component of a path, whatever its source.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// A uid from outside; `None` when it is not plain: letters, digits, `-`, `_` and `.`, not
    /// beginning with a `.`, of at most `UID_BYTES_MAX` bytes.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = !text.is_empty() && text.len() <= UID_BYTES_MAX && !text.starts_with('.');
        (fits && text.bytes().all(is_plain)).then(|| Self(text.into()))
    }
}

impl<T: AsRef<str> + Into<Arc<str>>> From<T> for PodUid {
    /// A uid that is known to be plain. One that is not becomes another one, which is.
    fn from(text: T) -> Self {
        let known = text.as_ref();
        if known.is_empty() || Self::parse(known).is_some() {
            return Self(text.into());
        }
        let plain = known.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
        Self(plain.take(UID_BYTES_MAX).collect::<String>().into())
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// True if a name from outside is one component of a path and cannot leave its folder.
pub fn is_path_component(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

string_id! {
    /// A container's id in the runtime.
    ContainerId
}
string_id! {
    /// A pod sandbox's id in the runtime.
    SandboxId
}

/// Wall-clock time in nanoseconds since the Unix epoch, the form in which CRI reports times.
/// Zero means "never", as in CRI.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct UnixNanos(pub i64);

impl UnixNanos {
    /// "Never happened", as CRI writes it.
    pub const NEVER: Self = Self(0);

    /// False for `NEVER` and anything before the epoch.
    pub fn is_set(self) -> bool {
        self.0 > 0
    }

    /// Time from `earlier` to `self`; zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }

    /// `self` plus `by`, saturating.
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// The timestamp of the API, cut to whole seconds, because RFC 3339 on the wire has none below.
    pub fn to_seconds(self) -> jiff::Timestamp {
        jiff::Timestamp::from_second(self.0.div_euclid(1_000_000_000))
            .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }

    /// The time of the API as text, in whole seconds: `2026-01-02T03:04:05Z`.
    pub fn to_rfc3339(self) -> String {
        self.to_seconds().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// The timestamp with all its nanoseconds.
    pub fn to_timestamp(self) -> jiff::Timestamp {
        jiff::Timestamp::from_nanosecond(self.0.into()).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }
}

/// Monotonic time in nanoseconds since this agent began; earlier events are negative. All waits,
/// deadlines and schedules are on it, because the wall clock may be set at any moment.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Mono(pub i64);

impl Mono {
    /// Before everything else: an event due at it is due now.
    pub const PAST: Self = Self(i64::MIN);
    /// After everything else: an event due at it never is.
    pub const NEVER: Self = Self(i64::MAX);

    /// Time from `earlier` to `self`; zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }

    /// `self` plus `by`, saturating.
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// `self` minus `by`, saturating.
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
    }
}

/// Both clocks, read together: one for people and the runtime's time stamps, one for waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// Wall-clock time.
    pub wall: UnixNanos,
    /// Monotonic time.
    pub mono: Mono,
}

impl Now {
    /// When something happened that the wall clock stamped. A stamp from the future is that of a
    /// clock that was set back since: it counts as now.
    pub fn mono_of(self, stamp: UnixNanos) -> Mono {
        if stamp.is_set() { self.mono.minus(self.wall.since(stamp)) } else { Mono::PAST }
    }

    /// The wall clock's time at `at` unless it is set before, for people.
    pub fn wall_at(self, at: Mono) -> UnixNanos {
        let UnixNanos(wall) = self.wall;
        UnixNanos(wall.saturating_add(at.0.saturating_sub(self.mono.0)))
    }

    /// Both clocks, this much later.
    pub fn plus(self, by: Duration) -> Self {
        Self { wall: self.wall.plus(by), mono: self.mono.plus(by) }
    }
}

/// Counts the changes of one pod's observed record. Compared, never read as a time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version(pub u64);

/// Counts the changes of one pod's desired record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// The list of a pod's spec that contains a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ContainerKind {
    /// An init container that runs to completion.
    Init,
    /// An init container with `restartPolicy: Always`.
    Sidecar,
    /// An entry of `spec.containers`.
    Main,
    /// An entry of `spec.ephemeralContainers`.
    Ephemeral,
}

/// An error with its causes, as one sentence.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_uid_is_one_plain_component() {
        for good in ["27995fb6-f160-45a2-ba3d-8e87cf8ec145", "u", "my_pod.1"] {
            assert_eq!(PodUid::parse(good).as_ref().map(PodUid::as_str), Some(good));
        }
        for bad in ["", ".", "..", "../..", "a/b", "/etc", ".hidden", "a b", "a\0b", "ü", "a\n"] {
            assert_eq!(PodUid::parse(bad), None, "{bad:?}");
        }
        assert_eq!(PodUid::parse(&"x".repeat(UID_BYTES_MAX + 1)), None);
        assert_eq!(PodUid::from("../..").as_str(), "_____");
    }

    proptest! {
        #[test]
        fn no_text_makes_a_uid_that_leads_elsewhere(text in "\\PC{0,300}") {
            let uid = PodUid::from(text.as_str());
            prop_assert!(text.is_empty() || PodUid::parse(uid.as_str()).is_some());
            prop_assert!(text.is_empty() || is_path_component(uid.as_str()));
        }
    }
}
