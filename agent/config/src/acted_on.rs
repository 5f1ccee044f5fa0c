//! The agent's support of each flag, field and gate, for people.
//!
//! Output: the three tables of docs/COMPAT.md, which a test keeps equal to the code
//! (`PINTLE_UPDATE=1 cargo test -p pintle-agent-config compat` rewrites them).

use super::fields::{FIELDS, FieldTable};
use super::flag_table;
use super::gate_table::GATES;
use pintle_config::status;

pub use pintle_config::status::Status;

/// A heading of docs/COMPAT.md and the table below it.
pub fn compat_sections() -> [(&'static str, String); 3] {
    let fields = FieldTable(FIELDS);
    [
        ("Flags", status::flag_rows(&flag_table::TABLE, &fields)),
        ("KubeletConfiguration fields", status::field_rows(&fields)),
        ("Feature gates", status::gate_rows(GATES)),
    ]
}

#[cfg(test)]
#[path = "compat_tests.rs"]
mod tests;
