//! Parts of the repository's tasks.
//!
//! The binary chooses a task; the test harness uses the same private containerd, images and cache.
//!
//! - `shell`, `cache`, `apt`: running programs, keeping what was made, Debian packages
//! - `runtime`: containerd 2.1, 1.7 and 1.6 with runc, CNI and a registry, in the cache folder
//! - `image`: OCI images made from files
//! - `node`: a containerd of its own in its own namespaces and cgroups, removed at the end
//! - `uml`: a node with cgroup v2 and systemd, in a User-Mode Linux guest
//! - `upstream`: Kubernetes' own programs, built from `tests/upstream`
//! - `cluster`: a control plane and nodes in namespaces, with our agent or the kubelet
//! - `conformance`: upstream's end-to-end suite on such a cluster
//! - `e2e_node`: upstream's suite for one node, with our agent or the kubelet
//! - `suites`: upstream's tests of scheduler and controllers, pointed at ours
//! - `table`, `bench_report`, `chart`: what benchmarks print and keep. `ratio`: our agent beside
//!   the kubelet in such a cluster
//! - `differential`: the same pods on our agent and on the kubelet, everything compared
//! - `disk`: mounts and odd files for tests
//! - `supervisor`: a run that ends what it started
//! - `task`: demo, test, bench, cluster, conformance, e2e-node, differential, tidy, vm, uml,
//!   suites
//!
//! It depends on no crate of the product: it is what prepares a machine to build them.

#![forbid(unsafe_code)]

pub mod apt;
pub mod bench_report;
pub mod cache;
pub mod chart;
pub mod cluster;
pub mod conformance;
pub mod differential;
pub mod disk;
pub mod e2e_node;
pub mod image;
pub mod node;
pub mod ratio;
pub mod runtime;
pub mod suites;
pub mod supervisor;
pub mod table;
pub mod task;
pub mod uml;
pub mod upstream;

pub use xtask_tidy::{repository, shell};

/// Counts the running test as skipped, because this host lacks something; then return from it.
///
/// The task that runs the tests names a file; a skipped test is a line of it, and not a success.
pub fn skip(why: &str) {
    use std::io::Write;
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    eprint!("skipped: {line}");
    let Some(path) = std::env::var_os(task::SKIPPED_FILE) else { return };
    let file = std::fs::File::options().create(true).append(true).open(path);
    file.and_then(|mut f| f.write_all(line.as_bytes())).expect("the list of skipped tests");
}
