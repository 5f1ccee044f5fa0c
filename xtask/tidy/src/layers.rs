//! Checks that decisions stay apart from effects, and that modules of a crate have a direction.
//!
//! Input: the manifests and sources of all crates of the workspace. Output: the first crate that
//! depends on what it must not, or the modules that use each other in a circle. Bounds: the
//! workspace.
//!
//! A crate that cannot name an async runtime, a network library or a system call cannot act. Within
//! a crate no compiler sees to the direction, so the modules at its top are read here: `use
//! crate::module` outside of tests is an arrow, and arrows must not lead back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::repository;
use crate::shell::{capture, cargo};

/// The crates that may act. Every other one must not, a new one included: each is checked by
/// itself, so that the report names the crate to change.
const ACTING: [&str; 26] = [
    "pintle-agent",
    "pintle-agent-cluster",
    "pintle-agent-host",
    "pintle-agent-metrics",
    "pintle-agent-plugins",
    "pintle-agent-runtime",
    "pintle-agent-server",
    "pintle-api",
    "pintle-controllers",
    "pintle-cri",
    "pintle-csi-driver",
    "pintle-daemon",
    "pintle-ebpf",
    "pintle-memory-http",
    "pintle-own-plugins",
    "pintle-ring",
    "pintle-scheduler",
    "pintle-system-benches",
    "pintle-testbox",
    "pintle-agent-tests",
    "pintle-controllers-tests",
    "pintle-parity",
    "pintle-scheduler-tests",
    "pintle-testbed",
    "pintle-uml-tests",
    "xtask",
];
/// Crates that the others must not depend on, not even indirectly.
const FORBIDDEN: [&str; 6] = ["tokio", "nix", "kube", "kube-client", "hyper", "tonic"];
/// Modules at the top of crates that use each other in a circle. The list may only become shorter.
const CIRCLES: [(&str, &[&str]); 12] = [
    ("agent/cluster", &["node", "objects"]),
    ("agent/host", &["csi", "volume"]),
    ("agent/ring", &["direct", "files", "serve"]),
    ("agent/runtime", &["execute", "garbage", "image", "shims", "start"]),
    ("agent/server", &["dump", "local"]),
    (
        "api/client",
        &["access", "dial", "exec", "identity", "own_root", "pool", "service", "tls", "user"],
    ),
    (
        "api/config",
        &["daemon", "field", "file", "flag", "forms", "gates", "given", "sources", "status"],
    ),
    ("api/memory", &["below", "change", "create", "identity", "rights", "server", "validate"]),
    ("controllers", &["counts", "debug", "explain", "process", "run", "shadow"]),
    ("controllers/core", &["common", "frame", "kinds", "tables"]),
    ("tests/testbox", &["grpc", "serve"]),
    ("xtask", &["cluster", "image", "node", "runtime", "uml", "upstream"]),
];

/// The modules that each module uses.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Fails when a decision could act, or when modules of a crate use each other in a new circle.
pub(super) fn check() -> Result<()> {
    let crates = crates()?;
    for name in crates.keys().filter(|name| !ACTING.contains(&name.as_str())) {
        let args = ["tree", "--locked", "-p", name, "-e", "normal", "--prefix", "none"];
        let tree = capture(&mut cargo(&args))?;
        let found = forbidden(&tree);
        ensure!(found.is_empty(), "{name} must not depend on {found:?}");
    }
    for name in ACTING {
        ensure!(crates.contains_key(name), "{name} is no crate of the workspace");
    }
    let top = repository();
    for folder in crates.values() {
        let shown = folder.strip_prefix(&top).unwrap_or(folder).display().to_string();
        let known = CIRCLES.iter().find(|(of, _)| *of == shown).map_or(&[][..], |(_, all)| all);
        check_circles(&shown, &arrows(&folder.join("src"))?, known)?;
    }
    Ok(())
}

/// The crates of the workspace with their folders.
fn crates() -> Result<BTreeMap<String, PathBuf>> {
    let args = ["metadata", "--locked", "--no-deps", "--format-version", "1"];
    let metadata: Value = serde_json::from_str(&capture(&mut cargo(&args))?)?;
    let packages = metadata["packages"].as_array().context("packages")?;
    let named = packages.iter().map(|package| {
        let name = package["name"].as_str().context("a name")?;
        let manifest = Path::new(package["manifest_path"].as_str().context("a manifest")?);
        Ok((name.to_owned(), manifest.parent().context("a folder")?.to_owned()))
    });
    named.collect()
}

/// The forbidden crates in a tree of dependencies, which has one a line.
fn forbidden(tree: &str) -> BTreeSet<&str> {
    let names = tree.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| FORBIDDEN.contains(name)).collect()
}

/// Fails when the circles of a crate are not the known ones.
fn check_circles(shown: &str, arrows: &Arrows, known: &[&str]) -> Result<()> {
    let found = in_circles(arrows);
    let new: Vec<&str> = found.iter().map(String::as_str).filter(|m| !known.contains(m)).collect();
    if let Some(one) = new.first() {
        let way = circle_of(arrows, one).join(" -> ");
        anyhow::bail!("modules of {shown} use each other: {way}");
    }
    let gone: Vec<_> = known.iter().filter(|module| !found.contains(**module)).collect();
    ensure!(gone.is_empty(), "{shown}: {gone:?} are in no circle any more: shorten CIRCLES");
    Ok(())
}

/// The arrows between the modules at the top of a crate.
fn arrows(src: &Path) -> Result<Arrows> {
    let mut texts = BTreeMap::new();
    if src.is_dir() {
        read(src, src, &mut texts)?;
    }
    let of_tests: BTreeSet<String> = texts.values().flat_map(|text| test_modules(text)).collect();
    let mut arrows = Arrows::new();
    for (path, text) in &texts {
        let mut names = path.with_extension("");
        let is_test = |name: &str| of_tests.contains(name) || name.ends_with("tests");
        if names.iter().any(|name| is_test(&name.to_string_lossy())) {
            continue;
        }
        while names.parent().is_some_and(|parent| parent != Path::new("")) {
            names.pop();
        }
        let name = names.to_string_lossy().into_owned();
        let used = used(text).into_iter().filter(|other| *other != name);
        arrows.entry(name.clone()).or_default().extend(used);
    }
    arrows.retain(|name, _| !["lib", "main"].contains(&name.as_str()));
    Ok(arrows)
}

/// Reads the files below a folder, without the tests at their ends, by path.
fn read(src: &Path, path: &Path, texts: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            read(src, &entry?.path(), texts)?;
        }
    } else if path.extension().is_some_and(|ext| ext == "rs") {
        let text = fs::read_to_string(path)?;
        let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        texts.insert(path.strip_prefix(src)?.to_owned(), production.to_owned());
    }
    Ok(())
}

/// The modules in other files that a text declares for tests alone.
fn test_modules(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(any(test");
            continue;
        }
        let name = line.split("mod ").nth(1).and_then(|rest| rest.strip_suffix(';'));
        found.extend(name.filter(|_| is_test).map(str::to_owned));
        is_test = false;
    }
    found
}

/// The modules at the top that a text names.
fn used(text: &str) -> BTreeSet<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n");
    let paths = code.split("crate::").skip(1);
    let heads = paths.flat_map(|path| match path.strip_prefix('{') {
        Some(list) => heads(list),
        None => vec![word(path)],
    });
    heads.filter(|head| !head.is_empty()).map(str::to_owned).collect()
}

/// The first names of the paths in a list of a `use`, up to its end.
fn heads(list: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut found) = (0_usize, 0, Vec::new());
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(word(list[begin..at].trim_start()));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(word(list[begin..at].trim_start()));
                begin = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The name at the beginning of a text.
fn word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// The modules that lead back to themselves.
fn in_circles(arrows: &Arrows) -> BTreeSet<String> {
    let names = arrows.keys().filter(|name| reached(arrows, name).contains(*name));
    names.cloned().collect()
}

/// The modules to which arrows from a module lead.
fn reached(arrows: &Arrows, from: &str) -> BTreeSet<String> {
    let (mut found, mut left) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(at) = left.pop() {
        for next in arrows.get(&at).into_iter().flatten().filter(|n| arrows.contains_key(*n)) {
            if found.insert(next.clone()) {
                left.push(next.clone());
            }
        }
    }
    found
}

/// A way from a module in a circle back to it.
fn circle_of(arrows: &Arrows, name: &str) -> Vec<String> {
    let mut way = vec![name.to_owned()];
    loop {
        let last = way.last().expect("it begins with a module");
        let leads = |next: &&String| *next == name || reached(arrows, next).contains(name);
        let mut nexts = arrows[last].iter().filter(|next| arrows.contains_key(*next));
        let Some(next) = nexts.find(|next| leads(next) && (*next == name || !way.contains(next)))
        else {
            return way;
        };
        let next = next.clone();
        way.push(next.clone());
        if next == name {
            return way;
        }
    }
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
        assert!(in_circles(&tree).is_empty());
        let round = arrows_of(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])]);
        assert_eq!(Vec::from_iter(in_circles(&round)), ["b", "c"]);
        assert_eq!(circle_of(&round, "b"), ["b", "c", "b"]);
    }

    #[test]
    fn known_circles_are_tolerated_only_while_they_exist() {
        let round = arrows_of(&[("a", &["b"]), ("b", &["a"]), ("c", &[])]);
        let new = check_circles("x", &round, &[]).expect_err("a circle");
        assert_eq!(new.to_string(), "modules of x use each other: a -> b -> a");
        check_circles("x", &round, &["a", "b"]).expect("a known circle");
        assert!(check_circles("x", &round, &["a", "b", "c"]).is_err());
    }

    #[test]
    fn arrows_are_uses_of_code() {
        let text = "//! crate::no\nuse crate::{admit::{a, b}, pod::x};\nfn f(a: crate::view::V) {}\n\
                    use crate::{\n    far,\n    near::y,\n};\n";
        let found: Vec<_> = used(text).into_iter().collect();
        assert_eq!(found, ["admit", "far", "near", "pod", "view"]);
    }

    #[test]
    fn modules_for_tests_alone_are_known_by_their_declaration() {
        let text = "mod a;\n#[cfg(test)]\nmod b;\n#[cfg(any(test, feature = \"x\"))]\npub mod c;\n\
                    #[cfg(test)]\n#[path = \"d_tests.rs\"]\nmod d;\n#[cfg(test)]\nuse x;\nmod e;\n";
        assert_eq!(test_modules(text), ["b", "c", "d"]);
    }

    #[test]
    fn dependency_that_can_act_is_found_in_the_tree() {
        let tree = "pintle-config v0.1.0 (/src)\nserde v1.0.0\nhyper v1.8.0\ntokio-util v0.7.0\n";
        assert_eq!(Vec::from_iter(forbidden(tree)), ["hyper"]);
    }

    #[test]
    fn the_decisions_cannot_act_and_modules_have_a_direction() {
        check().expect("the workspace keeps its direction");
    }
}
