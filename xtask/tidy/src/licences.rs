//! Checks that the product may be distributed: every crate in `Cargo.lock` has a licence of the
//! list below, or offers one.
//!
//! Input: the `license` fields that cargo reads, expressions of SPDX with `/` for OR as old crates
//! write it. Crates of ours are checked like all others. AND binds tighter than OR, as SPDX says.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::shell::{capture, cargo};

/// Licences that ask for a notice, and for nothing from users of the product.
const ALLOWED: [&str; 7] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Fails when a crate is not under such a licence; names it.
pub(super) fn check() -> Result<()> {
    let text = capture(&mut cargo(&["metadata", "--locked", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&text).context("read cargo metadata")?;
    let packages = metadata["packages"].as_array().context("packages")?;
    ensure!(packages.len() > 1, "cargo knows of no dependency");
    let refused: Vec<String> = packages.iter().filter_map(refused).collect();
    ensure!(refused.is_empty(), "licences that are not allowed: {}", refused.join(", "));
    Ok(())
}

/// The crate and its licence, if that is not allowed.
fn refused(package: &Value) -> Option<String> {
    let licence = package["license"].as_str().unwrap_or_default();
    let name = package["name"].as_str().unwrap_or_default();
    (!is_allowed(licence)).then(|| format!("{name} ({licence:?})"))
}

/// Returns whether the expression allows a licence of the list.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    // A rest was not understood.
    any(&mut rest) == Some(true) && rest.is_empty()
}

/// Terms between OR; `None` if it is no expression.
fn any(rest: &mut &[&str]) -> Option<bool> {
    let mut allowed = all(rest)?;
    while take(rest, "OR") {
        allowed |= all(rest)?;
    }
    Some(allowed)
}

/// Terms between AND.
fn all(rest: &mut &[&str]) -> Option<bool> {
    let mut allowed = one(rest)?;
    while take(rest, "AND") {
        allowed &= one(rest)?;
    }
    Some(allowed)
}

/// A licence with its exception, or an expression in brackets.
fn one(rest: &mut &[&str]) -> Option<bool> {
    if take(rest, "(") {
        let allowed = any(rest)?;
        return take(rest, ")").then_some(allowed);
    }
    let (name, after) = rest.split_first()?;
    *rest = after;
    if !take(rest, "WITH") {
        return Some(ALLOWED.contains(name));
    }
    let (exception, after) = rest.split_first()?;
    *rest = after;
    Some(ALLOWED.contains(&format!("{name} WITH {exception}").as_str()))
}

fn take(rest: &mut &[&str], word: &str) -> bool {
    let Some((_, after)) = rest.split_first().filter(|(first, _)| **first == word) else {
        return false;
    };
    *rest = after;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_allowed_when_a_choice_is() {
        for (expression, allowed) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("", false),
            ("MIT OR GPL-3.0-only", true),
            ("MIT/Apache-2.0", true),
            ("Apache-2.0 / MIT", true),
            ("GPL-2.0 AND MIT", false),
            ("GPL-2.0 OR Apache-2.0 AND ISC", true),
            ("(GPL-2.0 OR Apache-2.0) AND MPL-2.0", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("GPL-2.0 WITH Classpath-exception-2.0", false),
            ("MIT OR", false),
            ("MIT Apache-2.0", false),
            ("(MIT", false),
            ("MIT)", false),
        ] {
            assert_eq!(is_allowed(expression), allowed, "{expression:?}");
        }
    }

    #[test]
    fn a_crate_without_a_licence_is_named() {
        let package = serde_json::json!({"name": "x", "license": null});
        assert_eq!(refused(&package).as_deref(), Some("x (\"\")"));
    }
}
