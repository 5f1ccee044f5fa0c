//! Time zones by name, and the local times in them.
//!
//! Input: a name of the IANA database, which is part of the binary. Output: the zone. `Local` is
//! the zone of the process, given by the caller. Names have to be written exactly as the database
//! has them, as Go wants it.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A name that is no time zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ZoneError {
    #[error("time: invalid location name")]
    Invalid,
    #[error("unknown time zone {0}")]
    Unknown(String),
}

/// The time zone with a name.
// Go: time.LoadLocation
pub(super) fn load_zone(name: &str, local: &TimeZone) -> Result<TimeZone, ZoneError> {
    match name {
        "" | "UTC" => return Ok(TimeZone::UTC),
        "Local" => return Ok(local.clone()),
        _ if name.contains("..") || name.starts_with(['/', '\\']) => {
            return Err(ZoneError::Invalid);
        }
        _ => {}
    }
    let found = jiff::tz::db().get(name).ok();
    let exact = found.filter(|zone| zone.iana_name() == Some(name));
    exact.ok_or_else(|| ZoneError::Unknown(name.to_owned()))
}

/// A time in a zone, in RFC 3339 with whole seconds.
pub(super) fn in_zone(at: Timestamp, zone: &TimeZone) -> String {
    let local = at.to_zoned(zone.clone());
    if local.offset().is_zero() {
        return local.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    }
    local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}
