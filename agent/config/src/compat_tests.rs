//! docs/COMPAT.md agrees with the code.

use std::fs;
use std::path::PathBuf;

use super::*;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/COMPAT.md")
}

/// The document with each generated table replaced by the current one.
fn with_current_tables(document: &str) -> String {
    let mut text = document.to_owned();
    for (title, table) in compat_sections() {
        let begin = format!("<!-- generated: {title} -->\n");
        let end = "<!-- end of generated -->";
        let (head, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{begin} is missing"));
        let (_, tail) = rest.split_once(end).unwrap_or_else(|| panic!("{title} has no end"));
        text = format!("{head}{begin}\n{table}\n{end}{tail}");
    }
    text
}

#[test]
fn the_compat_tables_in_the_docs_equal_those_of_the_code() {
    let document = fs::read_to_string(path()).expect("docs/COMPAT.md");
    let current = with_current_tables(&document);
    if document != current && std::env::var_os("PINTLE_UPDATE").is_some() {
        fs::write(path(), current).expect("docs/COMPAT.md is written");
        return;
    }
    assert!(
        document == current,
        "docs/COMPAT.md is out of date; run PINTLE_UPDATE=1 cargo test -p pintle-agent-config compat"
    );
}
