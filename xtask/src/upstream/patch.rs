//! Reads and applies a patch of upstream's files: it points tests of a component at another
//! program, or names images that are available. Pure.
//!
//! Input: the text of a `patch.txt`, such as that of `tests/upstream/_scheduler`, and upstream's
//! files. Output: the changed files. Lines to be replaced must occur once in their file: a release
//! that has changed them is refused.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

/// Lines of a file, and their replacement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LineChange {
    old: String,
    new: String,
}

/// Changes and added files of a patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Patch {
    changes: BTreeMap<String, Vec<LineChange>>,
    /// Replacements of parts of lines wherever they occur, by folder.
    each: BTreeMap<String, Vec<LineChange>>,
    /// Path in upstream's module, and the file of ours that is laid there.
    pub(super) added: Vec<(String, String)>,
}

impl Patch {
    /// Reads a patch: `add PATH FILE`, `file PATH` or `each FOLDER`, and below those blocks of
    /// lines with `-` and `+`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut patch = Self::default();
        let (mut file, mut is_each) = (String::new(), false);
        let mut change = LineChange::default();
        // An empty line ends the last block.
        for line in text.lines().chain([""]) {
            if let Some(old) = line.strip_prefix('-') {
                change.old += &format!("{old}\n");
                continue;
            }
            if let Some(new) = line.strip_prefix('+') {
                change.new += &format!("{new}\n");
                continue;
            }
            if change != LineChange::default() {
                ensure!(
                    !file.is_empty() && !change.old.is_empty(),
                    "before {line:?}: of what file, and which lines?"
                );
                let all = if is_each { &mut patch.each } else { &mut patch.changes };
                all.entry(file.clone()).or_default().push(std::mem::take(&mut change));
            }
            match line.split_whitespace().collect::<Vec<_>>().as_slice() {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                ["file", path] => (file, is_each) = ((*path).to_owned(), false),
                ["each", path] => (file, is_each) = ((*path).to_owned(), true),
                ["add", path, ours] => patch.added.push(((*path).to_owned(), (*ours).to_owned())),
                _ => bail!("neither `file`, `each`, `add` nor changed lines: {line:?}"),
            }
        }
        Ok(patch)
    }

    /// The files that are changed.
    pub(super) fn files(&self) -> impl Iterator<Item = &str> {
        self.changes.keys().map(String::as_str)
    }

    /// Folders in which every file is changed.
    pub(super) fn folders(&self) -> impl Iterator<Item = &str> {
        self.each.keys().map(String::as_str)
    }

    /// The changed text of a file in such a folder; none if nothing changes.
    pub(super) fn apply_each(&self, folder: &str, text: &str) -> Option<String> {
        let mut changed = text.to_owned();
        for LineChange { old, new } in self.each.get(folder).into_iter().flatten() {
            changed = changed.replace(old.trim_end(), new.trim_end());
        }
        (changed != text).then_some(changed)
    }

    /// The changed text of a file.
    pub(super) fn apply(&self, file: &str, text: &str) -> Result<String> {
        // With a line's end before it, a block is found as whole lines only.
        let mut text = format!("\n{text}");
        for LineChange { old, new } in self.changes.get(file).into_iter().flatten() {
            let whole = text.match_indices(old).filter(|(at, _)| text[..*at].ends_with('\n'));
            let places: Vec<usize> = whole.map(|(at, _)| at).collect();
            let &[at] = places.as_slice() else {
                bail!("{file} has these lines {} times, not once:\n{old}", places.len());
            };
            text.replace_range(at..at + old.len(), new);
        }
        Ok(text.strip_prefix('\n').context("a file begins with its first line")?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# why\nadd x/new.go ours.go\n\nfile x/a.go\n-\tgo b()\n+\tgo c()\n+\td()\n\n-e\n+\n";

    #[test]
    fn whole_lines_that_occur_once_are_replaced() {
        let patch = Patch::parse(TEXT).expect("a patch");
        assert_eq!(patch.added, [("x/new.go".to_owned(), "ours.go".to_owned())]);
        assert_eq!(patch.files().collect::<Vec<_>>(), ["x/a.go"]);
        let text = patch.apply("x/a.go", "e\n\tgo b()\nme\n").expect("it fits");
        assert_eq!(text, "\n\tgo c()\n\td()\nme\n");
        for other in ["\tgo b()\n", "e\n\tgo b()\n\tgo b()\n", "e\n\tgo b() \n"] {
            assert!(patch.apply("x/a.go", other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn parts_of_lines_are_replaced_at_every_occurrence() {
        let patch = Patch::parse("each x/y\n-go a(\n+b(\n\n-c\n+d\n").expect("a patch");
        assert_eq!(patch.folders().collect::<Vec<_>>(), ["x/y"]);
        assert_eq!(patch.files().count(), 0);
        let text = patch.apply_each("x/y", "\tgo a(1)\n\t\tgo a(c)\n");
        assert_eq!(text.as_deref(), Some("\tb(1)\n\t\tb(d)\n"));
        assert_eq!(patch.apply_each("x/y", "go b(\n"), None);
        assert_eq!(patch.apply_each("x", "go a(\n"), None);
    }

    #[test]
    fn lines_of_no_file_and_unknown_words_are_refused() {
        for text in ["-a\n+b\n", "file x\n+b\n", "replace x\n"] {
            assert!(Patch::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_repositorys_own_patches_name_files_that_are_there() {
        for name in ["_scheduler", "_controllers", "_node"] {
            let dir = crate::repository().join("tests/upstream").join(name);
            let text = std::fs::read_to_string(dir.join("patch.txt")).expect("the patch");
            let patch = Patch::parse(&text).expect("a patch");
            assert!(patch.files().count() > 0, "{name}");
            for (_, ours) in &patch.added {
                assert!(dir.join(ours).is_file(), "{ours}");
            }
        }
    }
}
