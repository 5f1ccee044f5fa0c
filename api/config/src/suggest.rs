//! "Did you mean": the known name nearest to one that is not known.
//!
//! Input: a mistyped name and the known ones. Output: a remedy, or nothing when none is near
//! enough. Case and the difference between `_` and `-` do not count.

/// A name may differ by a third of its letters, at least two, but by no more than this.
const DISTANCE_MAX: usize = 4;
/// Longer names are not compared: the work grows with the square.
const NAME_LEN_MAX: usize = 128;

/// `did you mean NAME?` for the nearest of `known`.
pub fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    if name.len() > NAME_LEN_MAX {
        return None;
    }
    let wanted = fold(name);
    let allowed = if wanted.len() < 4 { 1 } else { (wanted.len() / 3).clamp(2, DISTANCE_MAX) };
    let near = known.map(|candidate| (distance(&wanted, &fold(candidate)), candidate));
    let (found, candidate) = near.min_by_key(|(found, _)| *found)?;
    (found <= allowed).then(|| format!("did you mean {candidate}?"))
}

fn fold(name: &str) -> Vec<char> {
    name.chars().map(|c| if c == '_' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Levenshtein distance.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_suggested_and_a_distant_name_is_not() {
        let known = ["max-pods", "pods-per-core", "port"];
        let mean = |name| did_you_mean(name, known.into_iter());
        assert_eq!(mean("maxpods"), Some("did you mean max-pods?".to_owned()));
        assert_eq!(mean("Max_Pods"), Some("did you mean max-pods?".to_owned()));
        assert_eq!(mean("prot"), Some("did you mean port?".to_owned()));
        assert_eq!(mean("abcd"), None);
        assert_eq!(mean("porrt"), Some("did you mean port?".to_owned()));
        assert_eq!(mean("completely-different"), None);
    }
}
