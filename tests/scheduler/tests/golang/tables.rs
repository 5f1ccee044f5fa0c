//! The generated tables are those of the release of Kubernetes that is built here.

use std::fs;
use std::path::Path;

use super::table;

fn check_current(kind: &'static str, path: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let generated = table(kind);
    assert!(generated.lines().count() > 1_000, "{kind} has {} lines", generated.lines().count());
    if std::env::var("PINTLE_WRITE").is_ok() {
        fs::write(&path, &generated).expect("the table can be written");
    }
    let kept = fs::read_to_string(&path).expect("the table is there");
    let at = kept.lines().zip(generated.lines()).position(|(kept, new)| kept != new);
    let shown = at.and_then(|at| generated.lines().nth(at)).unwrap_or("the end");
    assert!(
        kept == generated,
        "{} is old, from {shown:?} on; PINTLE_WRITE=1 writes it anew",
        path.display()
    );
}

#[test]
fn table_of_types_is_current() {
    check_current("types", "controllers/core/src/golang/types.txt");
}

#[test]
fn table_of_merge_keys_is_current() {
    check_current("mergeKeys", "api/types/src/strategic/merge_keys.txt");
}
