//! Any chains: a ring and plain calls give the same answers and the same files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::fcntl::{OFlag, RenameFlags};
use nix::sys::stat::Mode;
use proptest::prelude::*;

use super::{dir, own, runtime};
use crate::chain::{Chain, Done, How, OPENS_MAX, PathStart};
use crate::files::RingFiles;

/// A step by numbers: its kind, two names, an offset and a length.
type Random = (u8, usize, usize, u64, usize);

/// Mode and contents of each file.
type Tree = BTreeMap<String, (u32, Vec<u8>)>;

const NAMES: [&str; 8] = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "../out"];

fn chain(folder: &Path, steps: &[Random]) -> Chain {
    let here = dir(folder);
    let at = |name: usize| PathStart::within(&here, NAMES[name]).expect("a path");
    let mode = Mode::from_bits_truncate(0o750);
    let mut chain = Chain::new();
    let mut opened = Vec::new();
    for (kind, name, other, offset, length) in steps.iter().copied() {
        let last = opened.last().copied();
        match (kind, last) {
            (0..=2, _) if opened.len() < OPENS_MAX => {
                let how = match kind {
                    0 => How::read(),
                    1 => How::flags(OFlag::O_RDWR),
                    _ => How { mode, ..How::flags(OFlag::O_RDWR | OFlag::O_CREAT) },
                };
                let how = if other % 2 == 0 { how.beneath() } else { how };
                opened.push(chain.open(at(name), how));
            }
            (0..=4, Some(file)) => _ = chain.read(file, offset, length),
            (5..=7, Some(file)) => {
                _ = chain.write(file, offset, vec![b'a' + kind; length]);
            }
            (8, Some(file)) => _ = chain.sync_data(file),
            (9, _) => _ = chain.make_dir(at(name), mode),
            (10, _) => _ = chain.unlink(at(name)),
            (11, _) => _ = chain.remove_dir(at(name)),
            (12, _) => {
                let flags = [RenameFlags::empty(), RenameFlags::RENAME_NOREPLACE][length % 2];
                chain.rename(at(name), at(other), flags);
            }
            (13, _) => _ = chain.link(NAMES[other], at(name)).expect("a path"),
            _ => _ = chain.stat(at(name), length % 2 == 0),
        }
    }
    chain
}

/// A folder's files with their content.
fn tree(folder: &Path) -> Tree {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let meta = fs::symlink_metadata(&path).expect("a file");
            let bytes = if meta.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else if meta.is_symlink() {
                fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).expect("a file")
            };
            found.insert(path.display().to_string(), (meta.permissions().mode(), bytes));
        }
    }
    found
}

/// The comparable part of a step's result.
fn shown(done: Done) -> String {
    match done {
        // Directories have other sizes where names came and went in another order.
        Done::Stat(stat) => format!("{:?}", (stat.mode, stat.uid, stat.gid, stat.links)),
        other => format!("{other:?}"),
    }
}

fn after(files: &RingFiles, chains: &[Vec<Random>]) -> (Vec<String>, Tree) {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("in");
    fs::create_dir(&folder).expect("made");
    let mut said = Vec::new();
    for steps in chains {
        let mut answers =
            runtime().block_on(files.run(own(), chain(&folder, steps))).expect("answered");
        said.push(match answers.pop().expect("an answer") {
            Ok(done) => format!("{:?}", done.into_iter().map(shown).collect::<Vec<_>>()),
            Err(error) => format!("{error:?}"),
        });
    }
    let found = tree(root.path()).into_iter();
    let strip = |path: String| path.replace(&*root.path().to_string_lossy(), "");
    (said, found.map(|(path, file)| (strip(path), file)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_chains_do_the_same(
        chains in proptest::collection::vec(
            proptest::collection::vec(
                (0_u8..16, 0_usize..8, 0_usize..8, 0_u64..20, 0_usize..5000),
                0..8,
            ),
            1..12,
        )
    ) {
        let expected = after(&RingFiles::direct(), &chains);
        for is_async in [false, true] {
            let ring = RingFiles::ring(is_async).expect("this kernel has io_uring");
            prop_assert_eq!(&after(&ring, &chains), &expected);
        }
    }
}
