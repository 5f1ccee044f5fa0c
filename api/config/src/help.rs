//! The output of `--help` and `--version`.
//!
//! Output: texts that end in a newline. The version is one line of upstream's form, because
//! installers read it: `Kubernetes v` and a semantic version, with ours as build metadata.

use std::fmt::Write as _;

use crate::flag::{FlagTable, FlagTarget};

/// The version of Kubernetes that the daemons implement.
pub const KUBERNETES_VERSION: &str = "v1.36.2";
/// Column at which the help text of a flag begins, and the width of a line.
const HELP_COLUMN: usize = 44;

/// `Kubernetes v1.36.2+pintle.0.1.0`
pub fn version() -> String {
    format!("Kubernetes {KUBERNETES_VERSION}+pintle.{}\n", env!("CARGO_PKG_VERSION"))
}

/// The user agent of a component of this version.
pub fn user_agent(component: &str) -> String {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let own = env!("CARGO_PKG_VERSION");
    format!("{component}/{KUBERNETES_VERSION} (linux/{arch}) pintle/{own}")
}

impl FlagTable {
    /// All flags under their headings.
    pub fn help(&self) -> String {
        let mut out = String::new();
        for group in self.groups() {
            let _ = write!(out, "\n{}:\n", group.title);
            for flag in group.flags {
                let form = match flag.kind {
                    kind if kind.needs_no_value() => String::new(),
                    kind => format!("={}", kind.name()),
                };
                let field = match flag.target {
                    FlagTarget::Field(path) => format!(" [{path}]"),
                    FlagTarget::Own(_) => String::new(),
                };
                let left = format!("  --{}{form}", flag.name);
                line(&mut out, &left, &format!("{}{field}", flag.help));
            }
        }
        out.push_str("\n[field] is the field of the --config file that the flag overrides.\n");
        out
    }
}

/// A line with an explanation in its column.
pub fn line(out: &mut String, left: &str, right: &str) {
    if left.len() < HELP_COLUMN {
        let _ = writeln!(out, "{left:HELP_COLUMN$}{right}");
    } else {
        let _ = writeln!(out, "{left}\n{:HELP_COLUMN$}{right}", "");
    }
}
