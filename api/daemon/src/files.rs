//! Files that are read whole, up to a bound.

use std::path::Path;

/// The beginning of a file, at most `bytes_max` of it; bytes that are not UTF-8 are replaced.
pub fn try_read(path: &Path, bytes_max: usize) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = Vec::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    std::fs::File::open(path)?.take(limit).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
