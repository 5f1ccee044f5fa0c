//! `/etc/projects` and `/etc/projid` as lists: pure.
//!
//! Input: both files' text. Output: both texts with lines added and removed; all other lines stay
//! unchanged and in order. The forms are those of xfs_quota and of the kubelet:
//!
//! ```text
//!   /etc/projects   1048577:/var/lib/kubelet/pods/UID/volumes/kubernetes.io~empty-dir/NAME
//!   /etc/projid     volume1048577:1048577
//! ```
// k8s: pkg/volume/util/fsquota/project.go

use std::collections::BTreeSet;

/// The first project that volumes get.
// k8s: pkg/volume/util/fsquota/common/quota_common_linux.go FirstQuota
pub const FIRST: u32 = 1_048_577;
/// Projects in use that no file names: at most this many are skipped.
// k8s: pkg/volume/util/fsquota/project.go maxUnusedQuotasToSearch
pub const STRANGERS_MAX: usize = 128;

/// Both files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projects {
    folders: Vec<String>,
    names: Vec<String>,
}

impl Projects {
    /// Reads both files' text.
    pub fn parse(folders: &str, names: &str) -> Self {
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        Self { folders: lines(folders), names: lines(names) }
    }

    /// The text of the file of folders.
    pub fn folders_text(&self) -> String {
        text(&self.folders)
    }

    /// The text of the file of names.
    pub fn names_text(&self) -> String {
        text(&self.names)
    }

    /// Every folder with its project.
    pub fn folders(&self) -> impl Iterator<Item = (u32, &str)> {
        self.folders.iter().filter_map(|line| folder(line))
    }

    /// The project of a folder.
    pub fn of(&self, path: &str) -> Option<u32> {
        self.folders().find(|(_, listed)| *listed == path).map(|(id, _)| id)
    }

    /// The first project that no file names and of which `holds_something` is false.
    // k8s: pkg/volume/util/fsquota/project.go findAvailableQuota
    pub fn free<E>(
        &self,
        mut holds_something: impl FnMut(u32) -> Result<bool, E>,
    ) -> Result<Option<u32>, E> {
        let named = self.names.iter().filter_map(|line| named(line)).map(|(_, id)| id);
        let taken: BTreeSet<u32> = self.folders().map(|(id, _)| id).chain(named).collect();
        for id in (FIRST..).filter(|id| !taken.contains(id)).take(STRANGERS_MAX) {
            if !holds_something(id)? {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Gives a folder a project of its own.
    // k8s: pkg/volume/util/fsquota/project.go addDirToProject
    pub fn add(&mut self, id: u32, path: &str) {
        self.folders.push(format!("{id}:{path}"));
        self.names.push(format!("{}:{id}", name_of(id)));
    }

    /// Removes folders, and the names of projects without a folder.
    // k8s: pkg/volume/util/fsquota/project.go removeDirFromProject
    pub fn remove(&mut self, is_gone: impl Fn(&str) -> bool) {
        let gone: BTreeSet<u32> =
            self.folders().filter(|(_, path)| is_gone(path)).map(|(id, _)| id).collect();
        self.folders.retain(|line| !folder(line).is_some_and(|(_, path)| is_gone(path)));
        let used: BTreeSet<u32> = self.folders().map(|(id, _)| id).collect();
        // A name without a folder, left when an agent was killed.
        let is_left = |name: &str, id: u32| id >= FIRST && name == name_of(id);
        self.names.retain(|line| {
            let Some((name, id)) = named(line) else { return true };
            used.contains(&id) || !(gone.contains(&id) || is_left(name, id))
        });
    }
}

fn name_of(id: u32) -> String {
    format!("volume{id}")
}

fn text(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

/// `ID:PATH`.
fn folder(line: &str) -> Option<(u32, &str)> {
    let (id, path) = line.split_once(':')?;
    Some((number(id)?, path))
}

/// `NAME:ID`.
fn named(line: &str) -> Option<(&str, u32)> {
    let (name, id) = line.split_once(':')?;
    let is_name = !name.is_empty() && !name.starts_with('#');
    number(id).filter(|_| is_name).map(|id| (name, id))
}

fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn free(list: &Projects, holding: &[u32]) -> Option<u32> {
        let Ok(found) = list.free(|id| Ok::<_, Infallible>(holding.contains(&id)));
        found
    }

    #[test]
    fn first_project_id_without_a_folder_a_name_or_usage_is_assigned() {
        // (folders, names, projects that hold something, the one that is given)
        let table: [(&str, &str, &[u32], u32); 7] = [
            ("", "", &[], FIRST),
            ("1048577:/a\n", "volume1048577:1048577\n", &[], FIRST + 1),
            ("1048577:/a\n1048579:/b\n", "", &[], FIRST + 1),
            ("", "volume1048577:1048577\nweb:1048578\n", &[], FIRST + 2),
            ("", "", &[FIRST, FIRST + 1], FIRST + 2),
            ("1:/home\n10:/srv\n", "home:1\n", &[1], FIRST),
            ("# 1048577:/a\nx1048577:/a\n", "#volume:1048577\n:1048577\n", &[], FIRST),
        ];
        for (folders, names, holding, expected) in table {
            let list = Projects::parse(folders, names);
            assert_eq!(free(&list, holding), Some(expected), "{folders:?} {names:?}");
        }
        let many: Vec<u32> = (FIRST..).take(STRANGERS_MAX).collect();
        assert_eq!(free(&Projects::default(), &many), None);
        assert_eq!(free(&Projects::default(), &many[1..]), Some(FIRST));
        let broken = Projects::default().free(Err::<bool, _>);
        assert_eq!(broken, Err(FIRST), "a file system that does not answer");
    }

    #[test]
    fn project_file_lines_of_other_owners_are_kept() {
        let (folders, names) = ("# ours\n10:/srv\n\n1048577:/admin:x\n", "srv:10\nadmin:1048577\n");
        let mut list = Projects::parse(folders, names);
        assert_eq!(list.of("/admin:x"), Some(FIRST), "a path may have a colon");
        let id = free(&list, &[]).expect("one is free");
        list.add(id, "/v/one");
        assert_eq!(list.of("/v/one"), Some(FIRST + 1));
        assert_eq!(list.folders_text(), format!("{folders}1048578:/v/one\n"));
        assert_eq!(list.names_text(), format!("{names}volume1048578:1048578\n"));
        list.remove(|path| path == "/v/one");
        assert_eq!((list.folders_text().as_str(), list.names_text().as_str()), (folders, names));
        assert_eq!(free(&list, &[]), Some(id), "it is free again");
    }

    #[test]
    fn a_project_is_named_as_long_as_it_has_a_folder() {
        let mut list = Projects::parse(
            "1048577:/a\n1048577:/b\n1048578:/c\n",
            "volume1048577:1048577\nvolume1048578:1048578\n",
        );
        list.remove(|path| path == "/a" || path == "/c");
        assert_eq!(list.folders_text(), "1048577:/b\n");
        assert_eq!(list.names_text(), "volume1048577:1048577\n");
    }

    #[test]
    fn project_names_left_by_a_killed_agent_are_removed() {
        let names = "volume1048577:1048577\nvolume1048578:1048577\nvolume7:7\n";
        let mut list = Projects::parse("", names);
        list.remove(|_| false);
        assert_eq!(list.names_text(), "volume1048578:1048577\nvolume7:7\n", "others named these");
    }
}
