//! Atomic writes on a real file system: what is published, kept, rewritten and put right.

use std::os::unix::fs::MetadataExt;

use pintle_agent_core::volume::payload::PayloadFile;

use super::*;

fn payload(files: &[(&str, &str)]) -> Payload {
    let file = |data: &str| PayloadFile { data: data.as_bytes().into(), mode: 0o640, owner: None };
    files.iter().map(|(path, data)| ((*path).to_owned(), file(data))).collect()
}

fn put(dir: &Path, second: u32, files: &[(&str, &str)]) -> WriteResult {
    let stamp = format!("..2026_01_01_00_00_{second:02}.1");
    write(dir, &payload(files), &stamp, || Ok(())).expect("written")
}

/// Every name in the volume, versions as `..<version>`.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("read").flatten();
    let name = |e: fs::DirEntry| e.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = entries.map(name).collect();
    for name in &mut names {
        if name.starts_with("..2") {
            "..<version>".clone_into(name);
        }
    }
    names.sort();
    names
}

#[test]
fn files_are_reached_through_links_and_an_equal_payload_is_not_written_again() {
    let dir = tempfile::tempdir().expect("dir");
    let files = [("one", "1"), ("deep/er/two", "2")];
    assert_eq!(put(dir.path(), 1, &files), WriteResult::Published);
    assert_eq!(names(dir.path()), ["..<version>", "..data", "deep", "one"]);
    assert_eq!(fs::read_to_string(dir.path().join("deep/er/two")).expect("two"), "2");
    assert_eq!(fs::read_link(dir.path().join("one")).expect("link"), Path::new("..data/one"));
    let mode = fs::metadata(dir.path().join("one")).expect("stat").mode();
    assert_eq!(mode & 0o777, 0o640);
    let version = fs::read_link(dir.path().join(DATA)).expect("link");
    assert_eq!(put(dir.path(), 2, &files), WriteResult::Unchanged);
    assert_eq!(fs::read_link(dir.path().join(DATA)).expect("link"), version);
}

#[test]
fn removed_keys_are_deleted_and_links_of_kept_keys_stay() {
    let dir = tempfile::tempdir().expect("dir");
    put(dir.path(), 1, &[("a", "1"), ("b/x", "1"), ("b/y", "1")]);
    assert_eq!(
        put(dir.path(), 2, &[("b/y", "1")]),
        WriteResult::Published,
        "fewer files differ too"
    );
    assert_eq!(names(dir.path()), ["..<version>", "..data", "b"]);
    assert!(!dir.path().join("b/x").exists());
    put(dir.path(), 3, &[]);
    assert_eq!(names(dir.path()), ["..<version>", "..data"]);
}

#[test]
fn leftovers_of_a_killed_agent_are_repaired_by_the_next_write() {
    type Leave = fn(&Path);
    let leftovers: [(&str, Leave); 5] = [
        ("an unpublished version", |d| {
            fs::create_dir(d.join("..2026_01_01_00_00_09.9")).expect("mkdir");
            fs::write(d.join("..2026_01_01_00_00_09.9/a"), "torn").expect("write");
        }),
        ("the new link, not renamed", |d| symlink("..nowhere", d.join(DATA_NEW)).expect("link")),
        ("a missing visible link", |d| fs::remove_file(d.join("a")).expect("removed")),
        ("a link of a removed key", |d| symlink("..data/gone", d.join("gone")).expect("link")),
        ("a version of the same name", |d| {
            fs::create_dir(d.join("..2026_01_01_00_00_02.1")).expect("mkdir");
            fs::write(d.join("..2026_01_01_00_00_02.1/a"), "torn").expect("write");
        }),
    ];
    for (what, leave) in leftovers {
        for next in ["1", "2"] {
            let dir = tempfile::tempdir().expect("dir");
            put(dir.path(), 1, &[("a", "1")]);
            leave(dir.path());
            put(dir.path(), 2, &[("a", next)]);
            assert_eq!(names(dir.path()), ["..<version>", "..data", "a"], "{what}");
            assert_eq!(fs::read_to_string(dir.path().join("a")).expect("a"), next, "{what}");
        }
    }
}

#[test]
fn live_version_is_never_overwritten_even_if_the_clock_stands_still() {
    let dir = tempfile::tempdir().expect("dir");
    put(dir.path(), 1, &[("a", "1")]);
    put(dir.path(), 1, &[("a", "2")]);
    put(dir.path(), 1, &[("a", "3")]);
    assert_eq!(fs::read_to_string(dir.path().join("a")).expect("a"), "3");
    assert_eq!(names(dir.path()), ["..<version>", "..data", "a"]);
}

#[test]
fn failed_write_of_a_version_keeps_the_previous_version() {
    let dir = tempfile::tempdir().expect("dir");
    put(dir.path(), 1, &[("a", "1")]);
    let failed = write(dir.path(), &payload(&[("a", "2")]), "..2026_01_01_00_00_02.1", || {
        Err(IoFailure::new("chown", dir.path(), nix::errno::Errno::EPERM))
    });
    assert!(failed.is_err());
    assert_eq!(fs::read_to_string(dir.path().join("a")).expect("a"), "1");
}

#[test]
fn a_data_link_that_leaves_the_volume_is_replaced_and_not_followed() {
    let dir = tempfile::tempdir().expect("dir");
    let outside = tempfile::tempdir().expect("outside");
    fs::write(outside.path().join("a"), "theirs").expect("write");
    symlink(outside.path(), dir.path().join(DATA)).expect("symlink");
    put(dir.path(), 1, &[("a", "ours")]);
    assert_eq!(fs::read_to_string(dir.path().join("a")).expect("a"), "ours");
    assert_eq!(fs::read_to_string(outside.path().join("a")).expect("a"), "theirs");
}

#[test]
fn versions_are_named_by_their_time() {
    let at: jiff::Timestamp = "2026-11-21T02:28:19.41902Z".parse().expect("a time");
    assert_eq!(stamp(at), "..2026_11_21_02_28_19.419020000");
}
