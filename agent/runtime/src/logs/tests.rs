//! The rotator with a runtime that writes real files.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::Write;

use tokio::task::LocalSet;

use super::*;
use crate::logs::log_files::rotated;

const MIB: u64 = 1 << 20;

/// Writes logs as a runtime does: to an open file, until it is asked to open the name again.
struct LogWriter {
    path: PathBuf,
    file: RefCell<File>,
    reopened: Cell<u32>,
    refuse: Cell<bool>,
    largest: Cell<u64>,
    written: Cell<u64>,
}

fn open(path: &Path) -> File {
    fs::OpenOptions::new().create(true).append(true).open(path).expect("open")
}

impl LogWriter {
    fn new(dir: &Path) -> Rc<Self> {
        let path = dir.join("0.log");
        Rc::new(Self {
            file: RefCell::new(open(&path)),
            path,
            reopened: Cell::new(0),
            refuse: Cell::new(false),
            largest: Cell::new(0),
            written: Cell::new(0),
        })
    }

    fn write(&self, bytes: usize) {
        let line =
            b"2026-01-01T00:00:00.000000000Z stdout F 0123456789012345678901234567890123456789\n";
        let block: Vec<u8> = line.iter().copied().cycle().take(bytes).collect();
        self.file.borrow_mut().write_all(&block).expect("write");
        self.written.set(self.written.get() + bytes as u64);
        let size = self.file.borrow().metadata().expect("stat").len();
        self.largest.set(self.largest.get().max(size));
    }
}

impl Reopen for Rc<LogWriter> {
    async fn reopen(&self, _: &ContainerId) -> Result<(), RotateError> {
        // As long as a call to a busy runtime takes.
        tokio::time::sleep(Duration::from_millis(20)).await;
        if self.refuse.get() {
            return Err(RotateError::Reopen("the runtime says no".to_owned()));
        }
        *self.file.borrow_mut() = open(&self.path);
        self.reopened.set(self.reopened.get() + 1);
        Ok(())
    }
}

/// Runs `test` together with a rotator of `writer`'s log.
async fn beside<F: Future<Output = ()>>(writer: &Rc<LogWriter>, policy: RotatePolicy, test: F) {
    let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
    let id = ContainerId::from("c1");
    let path = writer.path.clone();
    commands.send(LogCommand::Watch { id, path }).await.expect("sent");
    let rotator = Rotator::new(policy, Rc::clone(writer));
    tokio::select! {
        () = rotator.run(inbox) => panic!("the rotator ended"),
        () = test => {}
    }
}

/// Waits until `done`, or fails after a time that no healthy run needs.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.expect("runtime"), test);
}

#[test]
fn fast_writer_exceeds_the_log_limit_by_less_than_a_fifth_and_loses_no_output() {
    run(async {
        let dir = tempfile::tempdir().expect("dir");
        let writer = LogWriter::new(dir.path());
        let policy = RotatePolicy { max_bytes: 2 * MIB, max_files: 100 };
        beside(&writer, policy, async {
            // 20 kB each 10 ms: the limit in a second, so that a twelfth of it, the share left on a
            // busy host, is 80 ms. On a stalled host both sides stall: missed ticks are not written
            // in one go.
            let mut tick = tokio::time::interval(Duration::from_millis(10));
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            while writer.reopened.get() < 5 {
                tick.tick().await;
                writer.write(20_000);
            }
            until("compressed", || {
                rotated(&writer.path).iter().filter(|p| is_gzip(p)).count() >= 4
            })
            .await;
        })
        .await;
        let limit = policy.max_bytes;
        assert!(writer.largest.get() < limit + limit / 5, "{} of {limit}", writer.largest.get());
        let files = rotated(&writer.path);
        assert!(files.len() >= 5);
        assert!(!is_gzip(files.last().expect("one")), "the newest is left for collectors");
        let kept: u64 = files.iter().map(|p| contents(p)).sum();
        assert_eq!(kept + fs::metadata(&writer.path).expect("live").len(), writer.written.get());
    });
}

fn is_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "gz")
}

fn contents(path: &Path) -> u64 {
    let mut file = File::open(path).expect("open");
    let mut sink = std::io::sink();
    match is_gzip(path) {
        true => {
            let mut decoder = flate2::read::GzDecoder::new(file);
            std::io::copy(&mut decoder, &mut sink).expect("a whole gzip")
        }
        false => std::io::copy(&mut file, &mut sink).expect("read"),
    }
}

#[test]
fn only_the_newest_files_stay() {
    run(async {
        let dir = tempfile::tempdir().expect("dir");
        let writer = LogWriter::new(dir.path());
        let policy = RotatePolicy { max_bytes: MIB / 4, max_files: 3 };
        beside(&writer, policy, async {
            for round in 1..=6 {
                writer.write(300_000);
                until("rotated", || writer.reopened.get() >= round).await;
            }
            until("tidied", || {
                let files = rotated(&writer.path);
                files.len() == 2 && is_gzip(&files[0]) && !is_gzip(&files[1])
            })
            .await;
        })
        .await;
    });
}

#[test]
fn idle_log_is_not_polled_and_is_rotated_after_it_is_written_again() {
    run(async {
        let dir = tempfile::tempdir().expect("dir");
        let writer = LogWriter::new(dir.path());
        let policy = RotatePolicy { max_bytes: MIB, max_files: 5 };
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let mut rotator = Rotator::new(policy, Rc::clone(&writer));
        let id = ContainerId::from("c1");
        rotator.command(LogCommand::Watch { id: id.clone(), path: writer.path.clone() });
        assert!(rotator.look(&id).is_none(), "it is opened first");
        let file = Some(regular_file::open_log(&writer.path).expect("a log"));
        rotator.finish(&id, LogOutcome::Opened(file));
        rotator.sleep(&id);
        let next = rotator.logs[&id].due.expect("the backstop");
        assert!(next > Instant::now() + BACKSTOP / 2, "not looked at while it is silent");
        let test = async {
            writer.write(2_000_000);
            until("rotated", || writer.reopened.get() == 1).await;
        };
        tokio::select! {
            () = rotator.run(inbox) => panic!("the rotator ended"),
            () = test => {}
        }
        drop(commands);
    });
}

#[test]
fn refused_reopen_restores_the_log_and_is_retried() {
    run(async {
        let dir = tempfile::tempdir().expect("dir");
        let writer = LogWriter::new(dir.path());
        writer.refuse.set(true);
        let policy = RotatePolicy { max_bytes: MIB / 4, max_files: 5 };
        beside(&writer, policy, async {
            writer.write(500_000);
            until("tried and put back", || {
                rotated(&writer.path).is_empty() && writer.path.exists()
            })
            .await;
            writer.refuse.set(false);
            until("rotated", || writer.reopened.get() == 1).await;
            assert_eq!(rotated(&writer.path).len(), 1);
        })
        .await;
    });
}

#[test]
fn log_whose_path_is_missing_is_reopened() {
    run(async {
        let dir = tempfile::tempdir().expect("dir");
        let writer = LogWriter::new(dir.path());
        writer.write(1000);
        fs::rename(&writer.path, dir.path().join("0.log.20200101-000000")).expect("renamed");
        let policy = RotatePolicy { max_bytes: MIB, max_files: 5 };
        beside(&writer, policy, async {
            until("opened", || writer.reopened.get() == 1 && writer.path.exists()).await;
        })
        .await;
    });
}

#[test]
fn non_regular_file_at_a_log_path_is_moved_aside_and_rotation_continues() {
    for (what, put) in xtask::disk::STRANGE {
        run(async move {
            let dir = tempfile::tempdir().expect("dir");
            let writer = LogWriter::new(dir.path());
            fs::remove_file(&writer.path).expect("removed");
            put(&writer.path);
            let policy = RotatePolicy { max_bytes: MIB / 4, max_files: 3 };
            beside(&writer, policy, async {
                until(what, || writer.reopened.get() >= 1).await;
                let meta = fs::symlink_metadata(&writer.path).expect("a log");
                assert!(meta.is_file(), "{what}");
                for round in 2..=4 {
                    writer.write(300_000);
                    until("rotated", || writer.reopened.get() >= round).await;
                }
                until("tidied", || {
                    let files = rotated(&writer.path);
                    let regular = |p: &PathBuf| fs::symlink_metadata(p).is_ok_and(|m| m.is_file());
                    files.len() == 2 && files.iter().all(regular)
                })
                .await;
            })
            .await;
        });
    }
}

#[test]
fn non_regular_file_at_a_compression_temp_path_is_replaced() {
    for (what, put) in xtask::disk::STRANGE {
        let dir = tempfile::tempdir().expect("dir");
        let log = dir.path().join("0.log");
        for name in ["1", "2"] {
            fs::write(dir.path().join(format!("0.log.{name}")), name).expect("write");
        }
        put(&dir.path().join("0.log.1.tmp"));
        log_rotate::tidy(&log, 10).expect(what);
        let done = fs::symlink_metadata(dir.path().join("0.log.1.gz")).expect(what);
        assert!(done.is_file(), "{what}");
        assert!(fs::symlink_metadata(dir.path().join("0.log.1.tmp")).is_err(), "{what}");
    }
}

#[test]
fn two_rotations_in_one_second_keep_both_files_in_order() {
    let dir = tempfile::tempdir().expect("dir");
    let log = dir.path().join("0.log");
    let now: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let mut names = Vec::new();
    for text in ["first", "second", "third"] {
        fs::write(&log, text).expect("write");
        names.push(log_rotate::set_aside(&log, now).expect("aside"));
    }
    assert_eq!(rotated(&log), names);
    let texts: Vec<String> = names.iter().map(|p| fs::read_to_string(p).expect("read")).collect();
    assert_eq!(texts, ["first", "second", "third"]);
}

#[test]
fn leftovers_of_a_killed_compression_are_removed() {
    let dir = tempfile::tempdir().expect("dir");
    let log = dir.path().join("0.log");
    for name in ["1", "1.tmp", "2", "2.gz", "3"] {
        fs::write(dir.path().join(format!("0.log.{name}")), name).expect("write");
    }
    log_rotate::tidy(&log, 10).expect("tidied");
    let names: Vec<_> = rotated(&log)
        .iter()
        .map(|p| p.file_name().expect("named").to_string_lossy().into_owned())
        .collect();
    assert_eq!(names, ["0.log.1.gz", "0.log.2.gz", "0.log.3"]);
}

#[test]
fn on_a_full_disk_rotation_and_tidying_still_free_space() {
    xtask::disk::with_private_mounts(|| {
        blocking::Pool::own();
        let dir = tempfile::tempdir().expect("dir");
        pintle_agent_host::volume::mount::tmpfs(dir.path(), Some(8 * MIB)).expect("tmpfs");
        run(async {
            // Below the folder of a pod's logs nothing is mounted.
            let logs = dir.path().join("ns_pod_uid/c");
            fs::create_dir_all(&logs).expect("made");
            let writer = LogWriter::new(&logs);
            // Incompressible data, so that even the smaller file has no room.
            let noise: Vec<u8> = (0_u32..700_000)
                .flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes())
                .collect();
            for name in ["20200101-000000", "20200101-000001"] {
                let old = logs.join(format!("0.log.{name}"));
                fs::write(old, &noise[..MIB as usize]).expect("write");
            }
            writer.write(MIB as usize);
            let fill = dir.path().join("filler");
            let mut filler = File::create(&fill).expect("create");
            while filler.write_all(&noise[..4096]).is_ok() {}
            assert!(is_disk_full(&writer.path));
            let policy = RotatePolicy { max_bytes: MIB / 2, max_files: 5 };
            beside(&writer, policy, async {
                until("rotated", || writer.reopened.get() >= 1).await;
                until("space", || !is_disk_full(&writer.path)).await;
                writer.write(1000);
            })
            .await;
        });
        pintle_agent_host::volume::mount::unmount(dir.path()).expect("unmounted");
    });
}
