//! Flags as Go programs take them: `-name=value`, `--name=value`, `--name value`, `--name`.
//!
//! Pure. Input: a command line that upstream's manifests write for the host-path driver and its
//! sidecars. Output: the last value of each flag; a flag without a value is `true`. Words that
//! belong to no flag are left out, and a flag that is never read means nothing.

use std::collections::BTreeMap;

/// The flags of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoFlags(BTreeMap<String, String>);

impl GoFlags {
    /// Reads a command line without the program's name.
    pub fn read<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let mut flags = BTreeMap::new();
        let mut arguments = arguments.into_iter().peekable();
        while let Some(argument) = arguments.next() {
            let Some(flag) = argument.strip_prefix('-') else { continue };
            let flag = flag.trim_start_matches('-');
            let (name, value) = match flag.split_once('=') {
                Some(both) => both,
                None => (flag, arguments.next_if(|next| !next.starts_with('-')).unwrap_or("true")),
            };
            flags.insert(name.to_owned(), value.to_owned());
        }
        Self(flags)
    }

    /// The value of a flag.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether a flag is on; `default` where the command line does not have it.
    pub fn is_on(&self, name: &str, default: bool) -> bool {
        self.value(name).map_or(default, |value| value == "true")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_of_any_form_has_its_last_value() {
        let flags =
            GoFlags::read(["-v=5", "--name", "a", "--attach", "--name=b", "word", "-w=x=y"]);
        assert_eq!(flags.value("v"), Some("5"));
        assert_eq!(flags.value("name"), Some("b"));
        assert_eq!(flags.value("w"), Some("x=y"));
        assert_eq!(flags.value("word"), None);
        assert!(flags.is_on("attach", false));
        assert!(flags.is_on("other", true) && !flags.is_on("other", false));
        assert!(!GoFlags::read(["--attach=false"]).is_on("attach", true));
    }
}
