//! A server that never answers: the requests that wait for it, the others, and the rest of it.

use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use pintle_daemon::blocking::{Blocked, Class, ClassCounts, JobPlace, Pool};
use xtask::disk::Hung;

use super::{own, runtime, uid};
use crate::chain::{Batch, Chain, How, PathStart};
use crate::files::{Answers, RingFiles};

/// Longer than any operation that is not hung.
const LONG: Duration = Duration::from_secs(60);
/// Certainly over before a dead server answers.
const SHORT: Duration = Duration::from_millis(50);

fn reads(folder: &Path, count: usize) -> Batch {
    let chains = (0..count).map(|n| {
        let path = PathStart::path(folder.join(format!("f{n}"))).expect("a path");
        Chain::read_file(path, How::read(), 10)
    });
    chains.collect::<Vec<_>>().into()
}

/// Runs `test` with a folder that answers, with one that does not, and with a ring of each kind
/// and plain calls.
fn with_hung(test: impl AsyncFn(&RingFiles, &Path, &Path, Hung) + Copy + Send + 'static) {
    for kind in 0..2 {
        xtask::disk::with_private_mounts(move || {
            Pool::own();
            let root = tempfile::tempdir().expect("a folder");
            let (well, dead) = (root.path().join("well"), root.path().join("dead"));
            for folder in [&well, &dead] {
                std::fs::create_dir(folder).expect("made");
            }
            for n in 0..8 {
                std::fs::write(well.join(format!("f{n}")), "text").expect("written");
            }
            let files = if kind == 0 { RingFiles::ring(true) } else { Ok(RingFiles::direct()) };
            let files = files.expect("this kernel has io_uring");
            let hung = Hung::mount(&dead);
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime(), test(&files, &well, &dead, hung));
        });
    }
}

async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn assert_read(answers: Result<Answers, Blocked>) {
    assert!(answers.expect("answered").iter().all(Result::is_ok));
}

#[test]
fn hung_mount_blocks_only_its_own_readers_which_fail_once_the_server_exits() {
    with_hung(async |files, well, dead, hung| {
        let limits = Class::Pod.limits();
        let waiting: Vec<_> = (0..limits.threads)
            .map(|pod| {
                let place = JobPlace::look(&uid(&format!("hung{pod}"))).within(LONG);
                let (files, batch) = (files.clone(), reads(dead, 8));
                tokio::task::spawn_local(async move { files.run(place, batch).await })
            })
            .collect();
        until(|| files.counts(Class::Pod).running == limits.threads).await;
        // Another class, and once those are slow another pod.
        assert_read(files.run(own(), reads(well, 8)).await);
        let place = JobPlace::look(&uid("healthy")).within(LONG);
        assert_read(files.run(place, reads(well, 8)).await);
        // The others still wait.
        until(|| files.counts(Class::Pod).running == limits.threads).await;
        drop(hung);
        for one in waiting {
            let answers = one.await.expect("no panic").expect("answered");
            assert_eq!(answers.len(), 8);
            for answer in answers {
                let errno = answer.expect_err("the server is gone").errno();
                // The last one once nothing is mounted any more.
                let gone = [Errno::ECONNABORTED, Errno::ENOTCONN, Errno::ENOENT];
                assert!(gone.contains(&errno), "{errno}");
            }
        }
        until(|| files.counts(Class::Pod) == ClassCounts::default()).await;
    });
}

#[test]
fn timeout_ends_a_wait_and_the_next_change_of_the_pod_waits_for_the_kernel() {
    with_hung(async |files, well, dead, hung| {
        let place = || JobPlace::change(&uid("a"));
        // On a busy machine it is withdrawn before it begins, and is tried with more patience.
        let mut patience = SHORT;
        while files.counts(Class::Pod).running == 0 {
            let ended = files.run(place().within(patience), reads(dead, 8)).await;
            assert_eq!(ended.expect_err("the server hangs"), Blocked::TimedOut(patience));
            patience *= 2;
        }
        // The kernel has not let go of it.
        let next = files.run(place().within(SHORT), reads(well, 1)).await;
        assert_eq!(next.expect_err("it waits its turn"), Blocked::TimedOut(SHORT));
        assert_eq!(files.counts(Class::Pod).waiting, 0, "and is withdrawn");
        let other = JobPlace::change(&uid("b")).within(LONG);
        assert_read(files.run(other, reads(well, 8)).await);
        drop(hung);
        assert_read(files.run(place().within(LONG), reads(well, 8)).await);
        until(|| files.counts(Class::Pod) == ClassCounts::default()).await;
    });
}

#[test]
fn dropped_batch_starts_no_further_group() {
    with_hung(async |files, well, dead, hung| {
        // The second group would make a file if it came to that.
        let made = well.join("made");
        let mut make = Chain::new();
        let path = PathStart::path(&made).expect("a path");
        make.open(path, How::create_new(nix::sys::stat::Mode::S_IRWXU));
        // Its first group succeeds once the server answers.
        let mut ask = Chain::new();
        ask.stat(PathStart::path(dead.join("f")).expect("a path"), true);
        let batch = Batch::from(ask).then().with(make);
        tokio::select! {
            ended = files.run(JobPlace::look(&uid("a")).within(LONG), batch) => panic!("{ended:?}"),
            () = until(|| files.counts(Class::Pod).running == 1) => {}
        }
        // More than the ring has places: those that wait are withdrawn.
        for pod in 0..40 {
            let run =
                files.run(JobPlace::look(&uid(&format!("p{pod}"))).within(LONG), reads(dead, 8));
            assert!(tokio::time::timeout(Duration::from_millis(1), run).await.is_err());
        }
        assert_eq!(files.counts(Class::Pod).waiting, 0);
        drop(hung);
        until(|| files.counts(Class::Pod) == ClassCounts::default()).await;
        assert!(!made.exists());
        assert_read(files.run(JobPlace::look(&uid("a")).within(LONG), reads(well, 8)).await);
    });
}

#[test]
fn ring_dropped_during_kernel_operations_keeps_its_buffers_alive() {
    xtask::disk::with_private_mounts(|| {
        let dead = tempfile::tempdir().expect("a folder");
        let hung = Hung::mount(dead.path());
        runtime().block_on(async {
            for _ in 0..4 {
                let files = RingFiles::ring(true).expect("this kernel has io_uring");
                let place = JobPlace::look(&uid("a")).within(SHORT);
                let ended = files.run(place, reads(dead.path(), 8)).await;
                assert_eq!(ended.expect_err("the server hangs"), Blocked::TimedOut(SHORT));
            }
        });
        // The kernel's buffers still exist when it writes to them.
        drop(hung);
        let files = RingFiles::ring(true).expect("this kernel has io_uring");
        let read = reads(Path::new("/nowhere"), 8);
        let answers = runtime().block_on(files.run(own(), read)).expect("answered");
        assert!(answers.iter().all(|answer| answer.as_ref().is_err()));
    });
}
