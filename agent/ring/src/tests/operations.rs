//! Every operation, its success and its errors.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags};
use nix::mount::MsFlags;
use nix::sys::stat::Mode;
use pintle_daemon::blocking::{Blocked, Class, JobPlace, ThreadLimits};

use super::{dir, on_each, own, runtime, uid};
use crate::chain::{Batch, Chain, Done, How, OPENS_MAX, PathStart, STEPS_MAX};
use crate::files::{Answers, ChainError, RingFiles, RingSetup};

fn at(path: impl AsRef<Path>) -> PathStart {
    PathStart::path(path).expect("a path")
}

fn mode(bits: u32) -> Mode {
    Mode::from_bits_truncate(bits)
}

async fn run(files: &RingFiles, batch: impl Into<Batch>) -> Answers {
    files.run(own(), batch).await.expect("answered")
}

async fn one(files: &RingFiles, chain: Chain) -> Result<Vec<Done>, ChainError> {
    run(files, chain).await.pop().expect("an answer")
}

/// Puts a step to a chain.
type Add<'a> = &'a dyn Fn(&mut Chain);

/// The failing step and its error.
async fn failure(files: &RingFiles, chain: Chain) -> (usize, Errno) {
    match one(files, chain).await {
        Err(ChainError::Step { step, errno, .. }) => (step, errno),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_is_replaced_and_read_again() {
    on_each(async |files, folder| {
        let (beside, file) = (folder.join(".f.new"), folder.join("f"));
        for text in ["old", "new"] {
            let chain = Chain::replace(at(&beside), at(&file), text.into(), mode(0o640));
            let batch = Batch::from(chain).then().with(Chain::sync_dir(at(folder)));
            assert!(run(files, batch).await.iter().all(Result::is_ok));
            assert_eq!(fs::read_to_string(&file).expect("a file"), text);
        }
        let meta = fs::metadata(&file).expect("a file");
        assert_eq!(meta.permissions().mode() & 0o777, 0o640);
        assert!(!beside.exists());
        for (length, text) in [(2, "ne"), (3, "new"), (4096, "new")] {
            let read = one(files, Chain::read_file(at(&file), How::read(), length)).await;
            let mut done = read.expect("read");
            assert_eq!(done.len(), 2, "one for each step, none for the close");
            assert_eq!(done.pop().expect("bytes").bytes(), text.as_bytes());
        }
    });
}

#[test]
fn names_are_made_shown_changed_and_removed() {
    on_each(async |files, folder| {
        let here = dir(folder);
        let at = |name: &str| PathStart::within(&here, name).expect("a path");
        let mut chain = Chain::new();
        chain.make_dir(at("d"), mode(0o700)).stat(at("d"), true);
        chain.link("f", at("d/link")).expect("a path").stat(at("d/link"), false);
        let file = chain.open(at("d/f"), How::create_new(mode(0o600)).beneath());
        chain.write(file, 3, b"bytes".to_vec()).sync_data(file).stat(at("d/link"), true);
        chain.rename(at("d/f"), at("d/g"), RenameFlags::RENAME_NOREPLACE);
        chain.open_held(at("d/g"), How::read());
        let mut done = one(files, chain).await.expect("done");
        let stat = |n: usize| done[n].stat().expect("a stat");
        let meta = fs::metadata(folder.join("d")).expect("a directory");
        assert_eq!((stat(1).mode, stat(1).ino), (meta.mode(), meta.ino()));
        assert_eq!(stat(3).mode & 0o170_000, 0o120_000, "the link itself");
        let (size, links) = (stat(7).size, stat(7).links);
        assert_eq!((size, links, stat(7).uid, stat(7).gid), (8, 1, 0, 0), "what it leads to");
        let held = Arc::new(done.pop().and_then(Done::file).expect("a file"));
        let mut read = Chain::new();
        read.read(&held, 3, 10).read(&held, 0, 4);
        let done = one(files, read).await.expect("read");
        let texts: Vec<_> = done.into_iter().map(Done::bytes).collect();
        assert_eq!(texts, [b"bytes".to_vec(), b"\0\0\0b".to_vec()]);
        let mut chain = Chain::new();
        chain.unlink(at("d/g")).unlink(at("d/link")).remove_dir(at("d"));
        one(files, chain).await.expect("removed");
        assert!(!folder.join("d").exists());
    });
}

#[test]
fn a_log_is_appended_to() {
    on_each(async |files, folder| {
        let mut chain = Chain::new();
        chain.open_held(at(folder.join("log")), How::create_new(mode(0o600)));
        let log = one(files, chain).await.expect("opened").pop().and_then(Done::file);
        let log = Arc::new(log.expect("a file"));
        for n in 0..20 {
            one(files, Chain::append(&log, n * 4, b"line".to_vec())).await.expect("written");
        }
        assert_eq!(fs::read(folder.join("log")).expect("a log"), b"line".repeat(20));
    });
}

#[test]
fn chain_fails_with_the_error_of_its_step_and_later_steps_are_not_run() {
    on_each(async |files, folder| {
        fs::write(folder.join("f"), "text").expect("written");
        fs::create_dir(folder.join("d")).expect("made");
        symlink("loop", folder.join("loop")).expect("linked");
        symlink("f", folder.join("link")).expect("linked");
        symlink("..", folder.join("d/up")).expect("linked");
        let here = dir(folder);
        let within = |name: &str| PathStart::within(&here, name).expect("a path");
        let open = |name: &str, how: How| {
            let mut chain = Chain::new();
            let file = chain.open(within(name), how);
            chain.sync(file);
            chain
        };
        let beneath = How::read().beneath();
        for (name, how, errno) in [
            ("none", How::read(), Errno::ENOENT),
            ("f/below", How::read(), Errno::ENOTDIR),
            ("f", How::directory(), Errno::ENOTDIR),
            ("f", How::create_new(mode(0o600)), Errno::EEXIST),
            ("loop", How::read(), Errno::ELOOP),
            ("link", beneath, Errno::ELOOP),
            ("d/up/f", beneath, Errno::ELOOP),
            ("../f", beneath, Errno::EXDEV),
            ("/etc/passwd", beneath, Errno::EXDEV),
            ("d", How::flags(OFlag::O_WRONLY), Errno::EISDIR),
        ] {
            assert_eq!(failure(files, open(name, how)).await, (0, errno), "{name}");
        }
        let steps: [(Add<'_>, Errno); 8] = [
            (&|c| _ = c.make_dir(within("d"), mode(0o700)), Errno::EEXIST),
            (&|c| _ = c.unlink(within("d")), Errno::EISDIR),
            (&|c| _ = c.remove_dir(within("d")), Errno::ENOTEMPTY),
            (&|c| _ = c.stat(within("none"), true), Errno::ENOENT),
            (&|c| _ = c.link("x", within("f")).expect("a path"), Errno::EEXIST),
            (
                &|c| {
                    let flags = RenameFlags::RENAME_NOREPLACE;
                    c.rename(within("f"), within("link"), flags);
                },
                Errno::EEXIST,
            ),
            (
                &|c| {
                    let directory = c.open(within("d"), How::directory());
                    c.read(directory, 0, 10);
                },
                Errno::EISDIR,
            ),
            (
                &|c| {
                    let read_only = c.open(within("f"), How::read());
                    c.write(read_only, 0, b"x".to_vec());
                },
                Errno::EBADF,
            ),
        ];
        for (number, (step, errno)) in steps.into_iter().enumerate() {
            let mut chain = Chain::new();
            chain.stat(within("f"), true);
            step(&mut chain);
            let last = chain.steps.len() - 1;
            chain.make_dir(within("behind"), mode(0o700));
            assert_eq!(failure(files, chain).await, (last, errno), "{number}");
            assert!(!folder.join("behind").exists(), "{number}");
        }
        // No process has a page at address 0.
        let mut memory = Chain::read_file(at("/proc/self/mem"), How::read(), 10);
        memory.make_dir(within("behind"), mode(0o700));
        assert_eq!(failure(files, memory).await, (1, Errno::EIO));
        assert!(!folder.join("behind").exists());
        assert_eq!(PathStart::path("a\0b").expect_err("no path"), Errno::EINVAL);
    });
}

#[test]
fn enospc_and_erofs_are_errors_of_the_step_that_hit_them() {
    on_each(async |files, folder| {
        xtask::disk::small(folder, 64 << 10);
        let write = |bytes: usize| {
            Chain::replace(at(folder.join(".f")), at(folder.join("f")), vec![1; bytes], mode(0o600))
        };
        // The part that fits is written before the kernel reports the error.
        assert_eq!(failure(files, write(128 << 10)).await, (1, Errno::ENOSPC));
        assert!(!folder.join("f").exists());
        let mut chain = Chain::new();
        chain.unlink(at(folder.join(".f")));
        one(files, chain).await.expect("removed");
        // The room is there again: nothing holds the file open.
        one(files, write(48 << 10)).await.expect("written");
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        nix::mount::mount(None::<&str>, folder, None::<&str>, flags, None::<&str>)
            .expect("read-only, as nothing is open for writing");
        assert_eq!(failure(files, write(1)).await, (0, Errno::EROFS));
        let mut chain = Chain::new();
        chain.make_dir(at(folder.join("d")), mode(0o700));
        assert_eq!(failure(files, chain).await, (0, Errno::EROFS));
    });
}

#[test]
fn group_waits_for_the_previous_group_and_is_skipped_if_that_failed() {
    on_each(async |files, folder| {
        let make = |name: &str| {
            let mut chain = Chain::new();
            chain.make_dir(at(folder.join(name)), mode(0o700));
            chain
        };
        let batch = Batch::new().with(make("a")).then().with(make("a/b")).with(make("a/c"));
        let batch = batch.then().then().with(make("a/b/d"));
        assert!(run(files, batch).await.iter().all(Result::is_ok));
        let batch = Batch::new().with(make("e")).with(make("a")).with(make("f")).then();
        let answers = run(files, batch.with(make("g")).then().with(make("h"))).await;
        let errors: Vec<_> = answers.iter().map(|answer| answer.as_ref().err()).collect();
        let exists = ChainError::Step { step: 0, operation: "mkdirat", errno: Errno::EEXIST };
        let not_begun = Some(&ChainError::NotBegun);
        assert_eq!(errors, [None, Some(&exists), None, not_begun, not_begun]);
        assert!(folder.join("f").exists() && !folder.join("g").exists());
        assert!(run(files, Batch::new()).await.is_empty());
        assert_eq!(one(files, Chain::new()).await.expect("nothing to do").len(), 0);
    });
}

#[test]
fn thousands_of_chains_complete_on_a_small_ring() {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = |_| ThreadLimits { threads: 2, spare: 0 };
    let setup =
        RingSetup { name: "small", classes: &[Class::Pod], limits, entries: 32, is_async: false };
    let files = RingFiles::with(setup).expect("this kernel has io_uring");
    runtime().block_on(async {
        let pods = (0..8).map(|pod| {
            let (files, folder) = (&files, folder.path().join(format!("pod{pod}")));
            fs::create_dir(&folder).expect("made");
            async move {
                let write = (0..300).map(|n| {
                    let (beside, file) = (folder.join(format!(".{n}")), folder.join(n.to_string()));
                    Chain::replace(at(beside), at(file), vec![b'x'; n], mode(0o600))
                });
                let read = (0..300)
                    .map(|n| Chain::read_file(at(folder.join(n.to_string())), How::read(), 1000));
                let batch = Batch { groups: vec![write.collect(), read.collect()] };
                let place = JobPlace::change(&uid(&format!("pod{pod}")));
                let mut answers = files.run(place, batch).await.expect("answered");
                for (n, answer) in answers.drain(..).skip(300).enumerate() {
                    let bytes = answer.expect("read").pop().expect("bytes").bytes();
                    assert_eq!(bytes, vec![b'x'; n]);
                }
            }
        });
        join(pods.collect()).await;
    });
    assert_eq!(files.counts(Class::Pod), Default::default());
}

/// Waits for all of them, side by side.
async fn join(all: Vec<impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.into_iter().map(|one| Some(Box::pin(one))).collect();
    std::future::poll_fn(|cx| {
        for place in &mut all {
            if place.as_mut().is_some_and(|one| one.as_mut().poll(cx).is_ready()) {
                *place = None;
            }
        }
        if all.iter().all(Option::is_none) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

#[test]
fn panic_of_the_ring_loop_is_reported_and_later_calls_use_plain_syscalls() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("f");
    fs::write(&file, "text").expect("written");
    let files = RingFiles::ring(false).expect("this kernel has io_uring");
    let read = || files.run(own(), Chain::read_file(at(&file), How::read(), 10));
    runtime().block_on(async {
        read().await.expect("by the ring");
        files.make_it_break();
        // The one that finds it broken has its answer, and those after it their bytes.
        loop {
            match read().await {
                Err(error) => assert_eq!(error, Blocked::Panicked),
                Ok(_) if files.is_broken() => break,
                Ok(_) => {}
            }
        }
        let mut answers = read().await.expect("by plain calls");
        let done = answers.pop().expect("an answer").expect("read");
        assert_eq!(done.into_iter().map(Done::bytes).next_back(), Some(b"text".to_vec()));
    });
}

#[test]
#[should_panic(expected = "a chain opens at most")]
fn a_chain_opens_few_files() {
    let mut chain = Chain::new();
    for _ in 0..=OPENS_MAX {
        chain.open(at("f"), How::read());
    }
}

#[test]
#[should_panic(expected = "a chain has at most")]
fn a_chain_is_short() {
    let mut chain = Chain::new();
    for _ in 0..=STEPS_MAX {
        chain.stat(at("f"), true);
    }
}
