//! Chains on real files: the same tables through a ring that tries inline, a ring that does not,
//! and plain calls.

mod faults;
mod hung;
mod operations;
mod random;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use pintle_api_types::ids::PodUid;
use pintle_daemon::blocking::{JobPlace, Pool};

use crate::files::RingFiles;

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime")
}

/// Runs `test` on each kind, in mounts of its own, with an empty folder.
fn on_each(test: impl AsyncFn(&RingFiles, &Path) + Copy + Send + 'static) {
    for kind in 0..3 {
        xtask::disk::with_private_mounts(move || {
            Pool::own();
            let files = match kind {
                0 => RingFiles::ring(false).expect("this kernel has io_uring"),
                1 => RingFiles::ring(true).expect("this kernel has io_uring"),
                _ => RingFiles::direct(),
            };
            let folder = tempfile::tempdir().expect("a folder");
            runtime().block_on(test(&files, folder.path()));
        });
    }
}

fn uid(name: &str) -> PodUid {
    PodUid::from(name)
}

fn own() -> JobPlace {
    JobPlace::own("test")
}

fn dir(path: &Path) -> Arc<OwnedFd> {
    Arc::new(std::fs::File::open(path).expect("a directory").into())
}
