//! Files that Go sees in our module and that lie elsewhere.
//!
//! The vectors of Jobs, CronJobs and the garbage collector call private functions of upstream's
//! packages, so our files are compiled as a part of copies of these packages. An overlay makes the
//! copies without writing any: `controllers/job` is upstream's files and one of ours, and so are
//! the other two.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, json};

use super::{module_dir, module_file};

/// The packages of upstream's controllers.
const PACKAGES: [&str; 3] = ["cronjob", "garbagecollector", "job"];

/// Writes the overlay.
pub(super) fn write(path: &Path) -> Result<()> {
    let module = module_dir();
    let mut replaced = Map::new();
    let mut add = |place: String, file: &Path| {
        replaced.insert(module.join(place).display().to_string(), json!(file));
    };
    for package in PACKAGES {
        let dir = module_file("k8s.io/kubernetes", &format!("pkg/controller/{package}"))?;
        let mut count = 0;
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let file = entry?.path();
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.ends_with(".go") && !name.ends_with("_test.go") {
                add(format!("controllers/{package}/{name}"), &file);
                count += 1;
            }
        }
        ensure!(count > 0, "{} has no files of Go", dir.display());
        let own = module.join(format!("_controllers/{package}/vectors.go"));
        add(format!("controllers/{package}/vectors.go"), &own);
    }
    add("controllers/main/main.go".to_owned(), &module.join("_controllers/main/main.go"));
    let text = json!({"Replace": replaced}).to_string();
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
