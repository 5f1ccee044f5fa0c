//! Reads files of variables, which a pod's containers have written into its volumes.
//!
//! Input: volumes' directories, paths in them, and the names that are wanted of each. Output: the
//! values of these in the files. `pintle_agent_core::env::file` parses the lines. A container may
//! take a thousand variables from one file, and the file's author is not trusted: each file is read
//! once, line by line, and all of a container's files together up to `FILES_BYTES_MAX`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Take};
use std::path::PathBuf;

use pintle_agent_core::env::file::{LINE_BYTES_MAX, Values, values_of};
use pintle_agent_core::env::variables::EnvFile;
use pintle_agent_host::volume::dir_fd::open_file_beneath;

/// Limit of the bytes read of all files of a container; variables behind it could not be read. The
/// kubelet has no limit here, so this one is far above real files.
const FILES_BYTES_MAX: u64 = 16 << 20;

/// A file that a container takes variables from.
#[derive(Clone, Debug)]
pub(super) struct WantedEnvFile {
    /// Directory of the volume.
    pub volume: PathBuf,
    /// Path within it.
    pub path: String,
    /// Names of variables.
    pub keys: BTreeSet<String>,
}

/// Reads the files, in the order of `wanted`. Blocks for as long as the volumes' file systems do.
pub(super) fn read_all(wanted: &[WantedEnvFile]) -> Vec<EnvFile> {
    let mut left = FILES_BYTES_MAX;
    let files = wanted.iter().map(|wanted| EnvFile {
        host_path: wanted.volume.join(&wanted.path).to_string_lossy().into_owned(),
        values: read(wanted, &mut left),
    });
    files.collect()
}

fn read(wanted: &WantedEnvFile, left: &mut u64) -> Values {
    let Ok(file) = open_file_beneath(&wanted.volume, &wanted.path) else { return Values::new() };
    let mut lines = FileLines { file: BufReader::new(file).take(*left) };
    let (values, _) = values_of(&mut lines, &wanted.keys);
    *left = lines.file.limit();
    values
}

/// The lines of a file, without their ends.
struct FileLines {
    file: Take<BufReader<File>>,
}

impl Iterator for FileLines {
    type Item = Result<String, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        // One more than a line may have and its end: a longer one is seen to be, and not held.
        let part = (&mut self.file).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
        let is_cut = self.file.limit() == 0 && line.last() != Some(&b'\n');
        match part {
            Err(_) => return Some(Err("it cannot be read")),
            Ok(_) if is_cut => return Some(Err("it is too long")),
            Ok(0) => return None,
            Ok(_) => {}
        }
        if line.last() == Some(&b'\n') {
            line.pop();
            if line.last() == Some(&b'\r') {
                line.pop();
            }
        }
        Some(String::from_utf8(line).map_err(|_| "it is no UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn wanted(volume: &Path, path: &str, keys: &[&str]) -> WantedEnvFile {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        WantedEnvFile { volume: volume.to_owned(), path: path.to_owned(), keys }
    }

    fn says(volume: &Path, path: &str, key: &str) -> Option<Option<String>> {
        read_all(&[wanted(volume, path, &[key])]).remove(0).values.remove(key)
    }

    #[test]
    fn env_file_yields_its_values_and_a_non_regular_file_yields_none() {
        let volume = tempfile::tempdir().expect("a folder");
        let volume = volume.path();
        let many: String = (0..8000).map(|n| format!("KEY{n}='value'\n")).collect();
        std::fs::write(volume.join("env"), format!("{many}LAST='x'\r\nEND='y'")).expect("written");
        let has = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(says(volume, "env", "LAST"), has("x"));
        assert_eq!(says(volume, "env", "END"), has("y"), "without an end of its line");
        assert_eq!(says(volume, "env", "OTHER"), Some(None));
        assert_eq!(says(volume, "none", "A"), None);
        for (what, put) in xtask::disk::STRANGE {
            let path = volume.join("strange");
            put(&path);
            assert_eq!(says(volume, "strange", "A"), None, "{what}");
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
        }
    }

    #[test]
    fn env_line_over_64_kib_is_rejected_and_the_lines_before_it_are_read() {
        let volume = tempfile::tempdir().expect("a folder");
        let volume = volume.path();
        let long = format!("A='x'\nLONG='{}'\n", "y".repeat(LINE_BYTES_MAX));
        std::fs::write(volume.join("env"), long).expect("written");
        assert_eq!(says(volume, "env", "A"), Some(Some("x".to_owned())));
        assert_eq!(says(volume, "env", "LONG"), None);
        let hole = File::create(volume.join("hole")).expect("made");
        hole.set_len(1 << 40).expect("sparse");
        assert_eq!(says(volume, "hole", "A"), None);
    }

    #[test]
    fn env_bytes_read_for_a_container_are_bounded_and_no_value_is_truncated() {
        let volume = tempfile::tempdir().expect("a folder");
        let volume = volume.path();
        let comments = format!("{}\n", "#".repeat(1023)).repeat(6 << 10);
        for name in ["one", "two", "three"] {
            std::fs::write(volume.join(name), format!("A='x'\n{comments}B='y'\n"))
                .expect("written");
        }
        let asked = |name: &str| wanted(volume, name, &["A", "B"]);
        let files = read_all(&[asked("one"), asked("two"), asked("three")]);
        let has = |text: &str| Some(Some(text.to_owned()));
        let value = |file: usize, key: &str| files[file].values.get(key).cloned();
        assert_eq!((value(0, "A"), value(0, "B")), (has("x"), has("y")));
        assert_eq!((value(1, "A"), value(1, "B")), (has("x"), has("y")));
        assert_eq!((value(2, "A"), value(2, "B")), (has("x"), None), "18 MiB in all");
        std::fs::write(
            volume.join("cut"),
            "A='".to_owned() + &format!("{}\n", "y".repeat(1023)).repeat(16 << 10) + "'\n",
        )
        .expect("written");
        assert_eq!(says(volume, "cut", "A"), None, "a value is never cut");
    }
}
