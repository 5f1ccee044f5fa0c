//! Checks of names that users choose before they become arguments of programs or parts of paths.
//!
//! Input: the texts of a source. Output: nothing, or which field is not valid. Stricter than the API
//! in one point: no name has a slash, a blank or a leading dash, because the API server's check of
//! qualified names lets `iqn.2020-01.x:../..` pass, and static pods are checked by nothing else.
// k8s: pkg/apis/core/validation/validation.go validateISCSIVolumeSource, validateFCVolumeSource

/// The largest number of a LUN.
const LUN_MAX: i32 = 255;
/// Longest name, in bytes: a name of 223 bytes is the longest that iSCSI has.
const NAME_BYTES_MAX: usize = 223;

/// A field of a source that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {value:?} is not valid: {why}")]
pub struct InvalidDisk {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// What it must be.
    pub why: &'static str,
}

fn invalid(field: &'static str, value: &str, why: &'static str) -> InvalidDisk {
    InvalidDisk { field, value: value.to_owned(), why }
}

/// A part of a path and an argument: no slash, no blank, no leading dash.
fn check_text(field: &'static str, value: &str) -> Result<(), InvalidDisk> {
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && c != '/';
    if value.is_empty() || value.len() > NAME_BYTES_MAX {
        return Err(invalid(field, value, "must have 1 to 223 bytes"));
    }
    if value.starts_with('-') || !value.chars().all(is_plain) {
        let why = "must not begin with a dash, nor have slashes or blanks";
        return Err(invalid(field, value, why));
    }
    Ok(())
}

/// A qualified name of a target or an initiator.
pub(super) fn check_iqn(field: &'static str, value: &str) -> Result<(), InvalidDisk> {
    check_text(field, value)?;
    let is_alphanumeric = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_valid = match value.split_at_checked(4) {
        Some(("iqn.", rest)) => is_qualified(rest),
        Some(("eui.", rest)) => rest.len() == 16 && is_alphanumeric(rest),
        Some(("naa.", rest)) => rest.len() == 32 && is_alphanumeric(rest),
        _ => false,
    };
    let why = "must be a name that begins with iqn., eui. or naa.";
    if is_valid { Ok(()) } else { Err(invalid(field, value, why)) }
}

/// `yyyy-mm.domain:name`.
fn is_qualified(rest: &str) -> bool {
    let Some((authority, name)) = rest.split_once(':') else { return false };
    let Some((date, domain)) = authority.split_once('.') else { return false };
    let digits =
        |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    let is_date =
        date.split_once('-').is_some_and(|(year, month)| digits(year, 4) && digits(month, 2));
    let is_domain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    is_date
        && !domain.is_empty()
        && domain.bytes().all(is_domain)
        && !name.is_empty()
        && !name.contains([',', ';', '*', '&', '$', '|'])
}

/// An address with a port or without.
pub(super) fn check_portal(field: &'static str, value: &str) -> Result<(), InvalidDisk> {
    check_text(field, value)?;
    let is_address =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'[' | b']');
    let is_valid = value.bytes().all(is_address);
    if is_valid { Ok(()) } else { Err(invalid(field, value, "must be an address and a port")) }
}

/// The name of an interface record.
pub(super) fn check_iface(value: &str) -> Result<(), InvalidDisk> {
    const FIELD: &str = "iscsiInterface";
    check_text(FIELD, value)?;
    let is_part =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'_' | b'@');
    let is_valid = value.bytes().all(is_part);
    if is_valid { Ok(()) } else { Err(invalid(FIELD, value, "must be the name of an interface")) }
}

/// The number of a LUN.
pub(super) fn check_lun(lun: i32) -> Result<u16, InvalidDisk> {
    let number = u16::try_from(lun).ok().filter(|_| lun <= LUN_MAX);
    number.ok_or_else(|| invalid("lun", &lun.to_string(), "must be between 0 and 255"))
}

/// The name of a port of a fabric.
pub(super) fn check_wwn(value: &str) -> Result<(), InvalidDisk> {
    const FIELD: &str = "targetWWNs";
    check_text(FIELD, value)?;
    let is_valid = value.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_valid { Ok(()) } else { Err(invalid(FIELD, value, "must be letters and digits")) }
}

/// The name of a disk. The kernel's links have its blanks as underscores.
pub(super) fn check_wwid(value: &str) -> Result<(), InvalidDisk> {
    const FIELD: &str = "wwids";
    check_text(FIELD, &value.replace(' ', "_"))?;
    let is_reserved = matches!(value, "." | ".." | super::DEVICES_DIR);
    let why = "must be the identifier of a disk";
    if is_reserved { Err(invalid(FIELD, value, why)) } else { Ok(()) }
}
