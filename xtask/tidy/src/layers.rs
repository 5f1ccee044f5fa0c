//! Checks that decisions stay apart from effects: the dependencies of the agent's core and of the
//! crates below it, and the arrows between the core's folders.
//!
//! A crate that cannot name an async runtime, a network library or a system call cannot act. Within
//! the crate no compiler sees to the direction, so the folders below `src` are read here: `use
//! crate::folder` outside of tests is an arrow, and arrows must not lead back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::repository;
use crate::shell::{capture, cargo};

/// Source folder of the decisions.
const CORE_SOURCE: &str = "agent/core/src";
/// The crates that must not be able to act: the core, and the crates below it. Each is checked by
/// itself, so that the report names the crate to change.
const PURE: [&str; 9] = [
    "pintle-api-types",
    "pintle-cel",
    "pintle-memory-api",
    "pintle-config",
    "pintle-agent-config",
    "pintle-agent-core",
    "pintle-scheduler-core",
    "pintle-controllers-core",
    "pintle-controllers-loops",
];
/// Crates that they must not depend on, not even indirectly.
const FORBIDDEN: [&str; 6] = ["tokio", "nix", "kube", "kube-client", "hyper", "tonic"];

/// The folders that each folder uses.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Fails when a decision could act, or when folders of the core use each other in a circle.
pub(super) fn check() -> Result<()> {
    for name in PURE {
        let args = ["tree", "--locked", "-p", name, "-e", "normal", "--prefix", "none"];
        let tree = capture(&mut cargo(&args))?;
        let found = forbidden(&tree);
        ensure!(found.is_empty(), "{name} must not depend on {found:?}");
    }
    let circle = circle(&arrows(&repository().join(CORE_SOURCE))?);
    ensure!(circle.is_empty(), "folders of {CORE_SOURCE} use each other: {}", circle.join(" -> "));
    Ok(())
}

/// The forbidden crates in a tree of dependencies, which has one a line.
fn forbidden(tree: &str) -> BTreeSet<&str> {
    let names = tree.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| FORBIDDEN.contains(name)).collect()
}

/// The arrows between the modules at the top of a crate.
fn arrows(src: &Path) -> Result<Arrows> {
    let mut arrows = Arrows::new();
    for entry in fs::read_dir(src)? {
        let path = entry?.path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        let mut texts = Vec::new();
        read(&path, &mut texts)?;
        let to = arrows.entry(name.to_owned()).or_default();
        to.extend(texts.iter().flat_map(|text| used(text)).filter(|other| other != name));
    }
    arrows.remove("lib");
    Ok(arrows)
}

/// Reads the files of a module, without those that hold only tests.
fn read(path: &Path, texts: &mut Vec<String>) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            read(&entry?.path(), texts)?;
        }
        return Ok(());
    }
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let is_test = ["tests", "testing", "properties"].iter().any(|end| name.ends_with(end));
    if !is_test && path.extension().is_some_and(|ext| ext == "rs") {
        let text = fs::read_to_string(path)?;
        let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        texts.push(production.to_owned());
    }
    Ok(())
}

/// The modules at the top that a text names.
fn used(text: &str) -> BTreeSet<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let paths = code.flat_map(|line| line.split("crate::").skip(1));
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let names = paths.flat_map(|path| match path.strip_prefix('{') {
        Some(list) => list.split(',').map(str::trim).collect::<Vec<_>>(),
        None => vec![path],
    });
    let heads = names.map(|name| name.split(|c| !is_word(c)).next().unwrap_or_default());
    heads.filter(|head| !head.is_empty()).map(str::to_owned).collect()
}

/// Some circle; empty when there is none.
fn circle(arrows: &Arrows) -> Vec<String> {
    let mut left = arrows.clone();
    // A folder that uses none of the rest cannot be part of a circle.
    loop {
        let leaf = left.iter().find(|(_, to)| to.iter().all(|other| !left.contains_key(other)));
        let Some(leaf) = leaf.map(|(name, _)| name.clone()) else { break };
        left.remove(&leaf);
    }
    let Some(mut at) = left.keys().next().cloned() else { return Vec::new() };
    let mut way = Vec::new();
    while !way.contains(&at) {
        way.push(at.clone());
        let next = left[&at].iter().find(|other| left.contains_key(*other));
        at = next.cloned().unwrap_or_default();
    }
    way.drain(..way.iter().position(|name| *name == at).unwrap_or(0));
    way.push(at);
    way
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows_of(list: &[(&str, &[&str])]) -> Arrows {
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        list.iter().map(|(name, to)| ((*name).to_owned(), set(to))).collect()
    }

    #[test]
    fn a_circle_is_found_and_named() {
        let tree = arrows_of(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &["elsewhere"])]);
        assert!(circle(&tree).is_empty());
        let round = arrows_of(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])]);
        assert_eq!(circle(&round), ["b", "c", "b"]);
    }

    #[test]
    fn arrows_are_uses_of_code() {
        let text = "//! crate::no\nuse crate::{admit, pod::x};\nfn f(a: crate::view::View) {}\n";
        let found: Vec<_> = used(text).into_iter().collect();
        assert_eq!(found, ["admit", "pod", "view"]);
    }

    #[test]
    fn what_can_act_is_found_among_the_dependencies() {
        let tree = "pintle-config v0.1.0 (/src)\nserde v1.0.0\nhyper v1.8.0\ntokio-util v0.7.0\n";
        assert_eq!(Vec::from_iter(forbidden(tree)), ["hyper"]);
    }

    #[test]
    fn the_decisions_cannot_act_and_their_folders_have_a_direction() {
        check().expect("the core keeps its direction");
    }
}
