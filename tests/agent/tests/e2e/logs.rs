//! Container logs under a writer that is faster than any poll.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::{bail, ensure};
use pintle_testbed::manifest::{condition, container, pod};
use pintle_testbed::{LONG, Options, TestNode, until};
use serde_json::json;

use crate::support::{log_files, remove_all};

const LIMIT: u64 = 10 << 20;

#[test]
fn a_log_written_at_6_mb_a_second_stays_below_1_2_times_its_limit() {
    let config = json!({"containerLogMaxSize": "10Mi", "containerLogMaxFiles": 3});
    let node = TestNode::start(Options { config, ..Options::default() });
    let writer = container("writer", &["/box", "log", "6000000", "200"]);
    node.put("loud.json", &pod("loud", &[writer]));
    node.pod_until("loud", "is ready", |p| condition(p, "Ready"));
    let (mut seen, mut largest) = (BTreeSet::new(), 0);
    until(LONG, "five log files were begun", || {
        let files = log_files(&node, "loud", "writer");
        ensure!(files.len() <= 4, "3 files are kept, and one may be on its way: {files:?}");
        for file in files {
            // A file may be renamed or compressed between the two calls.
            let Ok(meta) = fs::metadata(&file) else { continue };
            largest = largest.max(meta.len());
            if file.file_name().is_some_and(|n| n == "0.log") {
                seen.insert(meta.ino());
            }
        }
        assert!(largest * 10 < LIMIT * 12, "{largest} bytes in one file");
        if seen.len() < 5 { bail!("{} so far", seen.len()) } else { Ok(()) }
    });
    assert!(largest >= LIMIT, "rotated before the limit: {largest}");
    remove_all(&node);
}
