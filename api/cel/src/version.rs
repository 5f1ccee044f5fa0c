//! Versions of semver 2.0.0, as device attributes use them.
//!
//! Input: texts. Output: versions that compare. Owner: pure functions. Bounds: the text.
// k8s: vendor/github.com/blang/semver/v4, apiserver/pkg/cel/library/semverlib.go

use std::cmp::Ordering;

use super::error::CelError;

/// A version. Build metadata after `+` is parsed and not compared.
#[derive(Clone, Debug)]
pub struct SemanticVersion {
    pub(super) numbers: [u64; 3],
    before: Vec<VersionPart>,
}

/// A part of the pre-release after `-`: numbers come before words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum VersionPart {
    Number(u64),
    Word(String),
}

impl PartialEq for SemanticVersion {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for SemanticVersion {}
impl PartialOrd for SemanticVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for SemanticVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        let before = match (self.before.is_empty(), other.before.is_empty()) {
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ => self.before.cmp(&other.before),
        };
        self.numbers.cmp(&other.numbers).then(before)
    }
}

impl SemanticVersion {
    /// Parses a version.
    ///
    /// # Errors
    /// The reason it is invalid, in the library's words.
    pub fn parse(text: &str) -> Result<Self, CelError> {
        if text.is_empty() {
            return Err("Version string empty".into());
        }
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [major, minor, rest] = parts[..] else {
            return Err("No Major.Minor.Patch elements found".into());
        };
        let (rest, build) = rest.split_once('+').map_or((rest, None), |(a, b)| (a, Some(b)));
        let (patch, before) = rest.split_once('-').map_or((rest, None), |(a, b)| (a, Some(b)));
        let numbers = [number("major", major)?, number("minor", minor)?, number("patch", patch)?];
        let before = before.map_or(Ok(Vec::new()), |all| all.split('.').map(part).collect())?;
        for word in build.into_iter().flat_map(|all| all.split('.')) {
            if word.is_empty() {
                return Err("Build meta data is empty".into());
            }
            check_word(word, "Invalid character(s) found in build meta data")?;
        }
        Ok(Self { numbers, before })
    }

    /// Parses a version that may begin with `v`, have leading zeros or fewer than three numbers.
    ///
    /// # Errors
    /// The reason it is invalid.
    // k8s: apiserver/pkg/cel/library/semverlib.go normalizeAndParse
    pub(super) fn normalise(text: &str) -> Result<Self, CelError> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_owned).collect();
        for part in parts.iter_mut().filter(|part| part.len() > 1) {
            let cut = part.trim_start_matches('0');
            let is_number = cut.starts_with(|c: char| c.is_ascii_digit());
            *part = if is_number { cut.to_owned() } else { format!("0{cut}") };
        }
        if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
            let error = "short version cannot contain PreRelease/Build meta data";
            return Err(error.into());
        }
        while parts.len() < 3 {
            parts.push("0".to_owned());
        }
        Self::parse(&parts.join("."))
    }
}

fn number(name: &str, text: &str) -> Result<u64, CelError> {
    if text.is_empty() {
        return Err("strconv.ParseUint: parsing \"\": invalid syntax".into());
    }
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {name} number {text:?}").into());
    }
    if text.len() > 1 && text.starts_with('0') {
        let name = format!("{}{}", name[..1].to_ascii_uppercase(), &name[1..]);
        return Err(format!("{name} number must not contain leading zeroes {text:?}").into());
    }
    text.parse().map_err(|_| out_of_range(text))
}

fn out_of_range(text: &str) -> CelError {
    format!("strconv.ParseUint: parsing {text:?}: value out of range").into()
}

fn part(text: &str) -> Result<VersionPart, CelError> {
    if text.is_empty() {
        return Err("Prerelease is empty".into());
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        if text.len() > 1 && text.starts_with('0') {
            let error = "Numeric PreRelease version must not contain leading zeroes";
            return Err(format!("{error} {text:?}").into());
        }
        let out = |_| out_of_range(text);
        return text.parse().map(VersionPart::Number).map_err(out);
    }
    check_word(text, "Invalid character(s) found in prerelease")?;
    Ok(VersionPart::Word(text.to_owned()))
}

fn check_word(text: &str, error: &str) -> Result<(), CelError> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    if text.bytes().all(good) { Ok(()) } else { Err(format!("{error} {text:?}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_in_semver_order() {
        let order = [
            "0.9.0",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.0.1",
            "1.10.0",
            "2.0.0",
        ];
        let all: Vec<SemanticVersion> =
            order.iter().map(|t| SemanticVersion::parse(t).expect(t)).collect();
        for (at, a) in all.iter().enumerate() {
            for (other, b) in all.iter().enumerate() {
                assert_eq!(a.cmp(b), at.cmp(&other), "{} {}", order[at], order[other]);
            }
        }
        assert_eq!(SemanticVersion::parse("1.0.0+a"), SemanticVersion::parse("1.0.0+b"));
    }

    #[test]
    fn invalid_semantic_versions_are_rejected_and_lenient_ones_normalised() {
        for text in
            ["", "1", "1.2", "v1.2.3", "01.2.3", "1.2.x", "1.2.3-", "1.2.3-01", "1.2.3+", "1.2.3-ä"]
        {
            assert!(SemanticVersion::parse(text).is_err(), "{text}");
        }
        for (text, want) in
            [("v1", "1.0.0"), ("01.02", "1.2.0"), ("1.2.03-rc", "1.2.3-rc"), ("00", "0.0.0")]
        {
            assert_eq!(SemanticVersion::normalise(text), SemanticVersion::parse(want), "{text}");
        }
        assert!(SemanticVersion::normalise("1.2-rc").is_err());
    }
}
