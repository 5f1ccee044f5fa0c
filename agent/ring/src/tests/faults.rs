//! Disks that fail, are slow or hang at one operation, and a process without a free descriptor: the
//! reported errors, and that nothing stays open.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags};
use nix::mount::{MntFlags, umount2};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::Mode;
use pintle_daemon::blocking::{Blocked, Class, ClassCounts, JobPlace, Pool};
use xtask::disk::{DiskFault, DiskOperation, Faulty};

use super::{own, runtime, uid};
use crate::chain::{Chain, How, PathStart};
use crate::files::{ChainError, RingFiles};

/// Certainly over before a disk that hangs answers.
const SHORT: Duration = Duration::from_millis(50);
/// Delay of a slow disk.
const LATE: Duration = Duration::from_millis(20);
/// Set in the process that has few descriptors.
const CHILD: &str = "PINTLE_RING_TEST_FEW_DESCRIPTORS";

fn at(path: impl AsRef<Path>) -> PathStart {
    PathStart::path(path).expect("a path")
}

fn mode() -> Mode {
    Mode::S_IRUSR | Mode::S_IWUSR
}

/// Each way to run chains.
fn all_ways() -> [RingFiles; 3] {
    let ring = |is_async| RingFiles::ring(is_async).expect("this kernel has io_uring");
    [ring(false), ring(true), RingFiles::direct()]
}

/// Runs `test` each way, with a disk that does nothing wrong yet and has a file `f`.
fn with_faulty(test: impl AsyncFn(&RingFiles, &Path, &Faulty) + Copy + Send + 'static) {
    for way in 0..3 {
        xtask::disk::with_private_mounts(move || {
            Pool::own();
            let files = all_ways().into_iter().nth(way).expect("three ways");
            let folder = tempfile::tempdir().expect("a folder");
            let disk = Faulty::mount(folder.path());
            fs::write(folder.path().join("f"), "text").expect("written");
            runtime().block_on(async {
                test(&files, folder.path(), &disk).await;
                // No file of it is open any more, once the kernel has let go of them.
                while let Err(errno) = umount2(folder.path(), MntFlags::empty()) {
                    assert_eq!(errno, Errno::EBUSY);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        });
    }
}

/// A chain that comes to this operation with this step.
fn chain_to(operation: DiskOperation, folder: &Path) -> (usize, Chain) {
    let file = || at(folder.join("f"));
    let write = |chain: &mut Chain| {
        let opened = chain.open(file(), How::flags(OFlag::O_WRONLY));
        chain.write(opened, 0, b"words".to_vec()).sync(opened);
    };
    let mut chain = Chain::new();
    let step = match operation {
        DiskOperation::Lookup => {
            chain.stat(file(), true);
            0
        }
        DiskOperation::Open | DiskOperation::Read => {
            chain = Chain::read_file(file(), How::read(), 10);
            usize::from(operation == DiskOperation::Read)
        }
        DiskOperation::Create => {
            chain = Chain::replace(at(folder.join(".f.new")), file(), b"new".to_vec(), mode());
            0
        }
        DiskOperation::Write => {
            write(&mut chain);
            1
        }
        DiskOperation::Sync => {
            write(&mut chain);
            2
        }
        DiskOperation::Rename => {
            let beside = at(folder.join("g"));
            chain.rename(file(), beside.clone(), RenameFlags::empty());
            chain.rename(beside, file(), RenameFlags::empty());
            0
        }
        DiskOperation::Unlink => {
            let opened = chain.open(at(folder.join("made")), How::create_new(mode()));
            chain.write(opened, 0, b"x".to_vec()).sync(opened).unlink(at(folder.join("made")));
            3
        }
    };
    (step, chain)
}

#[test]
fn failed_operation_is_named_with_its_error_and_the_next_chain_succeeds() {
    with_faulty(async |files, folder, disk| {
        for operation in DiskOperation::ALL {
            for errno in [Errno::EIO, Errno::ENOSPC, Errno::EROFS] {
                disk.set(operation, DiskFault::Fails(errno));
                let (at, chain) = chain_to(operation, folder);
                let mut answers = files.run(own(), chain.clone()).await.expect("answered");
                let error = answers.pop().expect("an answer").expect_err("it fails");
                let ChainError::Step { step, errno: told, .. } = error else { panic!("{error}") };
                assert_eq!((step, told), (at, errno), "{operation:?}");
                disk.set(operation, None);
                let _ = fs::remove_file(folder.join("made"));
                let answers = files.run(own(), chain).await.expect("answered");
                assert!(answers.iter().all(Result::is_ok), "{operation:?}: {answers:?}");
            }
        }
    });
}

#[test]
fn an_operation_that_is_slow_is_done() {
    with_faulty(async |files, folder, disk| {
        for operation in DiskOperation::ALL {
            disk.set(operation, DiskFault::Slow(LATE));
        }
        for operation in DiskOperation::ALL {
            let (_, chain) = chain_to(operation, folder);
            let answers = files.run(JobPlace::change(&uid("a")), chain).await.expect("answered");
            assert!(answers.iter().all(Result::is_ok), "{operation:?}: {answers:?}");
        }
    });
}

#[test]
fn hung_operation_times_out_and_blocks_only_its_own_pod() {
    for operation in DiskOperation::ALL {
        for way in 0..3 {
            xtask::disk::with_private_mounts(move || {
                Pool::own();
                let files = all_ways().into_iter().nth(way).expect("three ways");
                // One that tries inline is for files that tenants cannot reach.
                if way == 0 {
                    return;
                }
                let folder = tempfile::tempdir().expect("a folder");
                let disk = Faulty::mount(folder.path());
                fs::write(folder.path().join("f"), "text").expect("written");
                disk.set(operation, DiskFault::Hangs);
                runtime().block_on(async {
                    let mut patience = SHORT;
                    // Withdrawn before it began where the machine is busy.
                    while disk.hung() == 0 {
                        let (_, chain) = chain_to(operation, folder.path());
                        let place = JobPlace::change(&uid("a")).within(patience);
                        let ended = files.run(place, chain).await;
                        assert_eq!(ended.expect_err("it hangs"), Blocked::TimedOut(patience));
                        patience *= 2;
                    }
                    let read = Chain::read_file(at("/proc/self/stat"), How::read(), 10);
                    let other =
                        files.run(JobPlace::change(&uid("b")), read).await.expect("answered");
                    assert!(other[0].is_ok(), "{operation:?}");
                    drop(disk);
                    while files.counts(Class::Pod) != ClassCounts::default() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                });
            });
        }
    }
}

/// In a process of its own: its limit is that of all its threads.
#[test]
fn without_free_descriptors_only_operations_that_need_one_fail() {
    const NAME: &str = "tests::faults::without_free_descriptors_only_operations_that_need_one_fail";
    if std::env::var_os(CHILD).is_none() {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program).args(["--exact", NAME]).env(CHILD, "1").output();
        let child = child.expect("started");
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("f"), "text").expect("written");
    let (ways, runtime) = (all_ways(), runtime());
    let read = || Chain::read_file(at(folder.path().join("f")), How::read(), 10);
    let make = |name: &str| {
        let beside = at(folder.path().join(format!(".{name}.new")));
        Chain::replace(beside, at(folder.path().join(name)), b"new".to_vec(), mode())
    };
    let keep = || {
        let mut chain = Chain::new();
        chain.open_held(at(folder.path().join("f")), How::read());
        chain
    };
    let errno = |files: &RingFiles, chain: Chain| {
        let mut answers = runtime.block_on(files.run(own(), chain)).expect("answered");
        answers.pop().expect("an answer").map(drop).map_err(ChainError::errno)
    };
    for files in &ways {
        assert_eq!(errno(files, read()), Ok(()), "threads are there");
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, 256, hard).expect("set");
    let mut held = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        held.push(file);
    }
    for (files, is_ring) in ways.iter().zip([true, true, false]) {
        // Files of a ring's chain have no descriptor.
        let expected = if is_ring { Ok(()) } else { Err(Errno::EMFILE) };
        assert_eq!(errno(files, read()), expected);
        assert_eq!(errno(files, make(if is_ring { "ring" } else { "direct" })), expected);
        assert_eq!(errno(files, keep()), Err(Errno::EMFILE));
    }
    held.truncate(held.len() - 8);
    for files in &ways {
        for chain in [read(), make("again"), keep()] {
            assert_eq!(errno(files, chain), Ok(()));
        }
    }
}
