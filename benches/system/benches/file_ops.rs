//! Small files read (on a disk, from procfs, from a cgroup), replaced durably, synced many at a
//! time, and the 20 files of a volume's content written beside the old ones. Five ways: an io_uring
//! that tries inline, an io_uring that leaves everything to the kernel's workers, the agent's pool,
//! tokio's pool, and direct calls on the calling thread (which the deciding thread must not make).
//!
//! Criterion measures each; afterwards one table of ratios of one run, with the CPU time of the
//! process for each way. The files lie below `TMPDIR`, which should be on a disk.
#![allow(missing_docs)]

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group};
use nix::fcntl::RenameFlags;
use nix::sys::stat::Mode;
use nix::sys::uio::pwrite;
use nix::unistd::fdatasync;
use pintle_daemon::blocking::{JobPlace, Pool};
use pintle_daemon::durable;
use pintle_ring::{Batch, Chain, How, PathStart, RingFiles};
use pintle_system_benches::rounds;
use tokio::runtime::{Builder, Runtime};

/// Bytes of a small file.
const SMALL: usize = 1024;
/// Files that are synced together.
const SYNCED: usize = 64;
/// Files of a volume's content.
const CONTENT: usize = 20;
/// Files read from procfs and cgroupfs, where this host has them.
const PROC: &str = "/proc/self/stat";
const CGROUPS: [&str; 2] =
    ["/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/memory/memory.usage_in_bytes"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Inline,
    Workers,
    Pool,
    Tokio,
    Direct,
}

impl Way {
    const ALL: [Self; 5] = [Self::Inline, Self::Workers, Self::Pool, Self::Tokio, Self::Direct];

    const fn name(self) -> &'static str {
        match self {
            Self::Inline => "ring, inline first",
            Self::Workers => "ring, workers",
            Self::Pool => "our pool",
            Self::Tokio => "tokio's pool",
            Self::Direct => "direct calls",
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Read,
    Proc,
    Cgroup,
    Replace,
    Sync,
    Content,
}

impl Work {
    const ALL: [Self; 6] =
        [Self::Read, Self::Proc, Self::Cgroup, Self::Replace, Self::Sync, Self::Content];

    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read a file of 1 KiB",
            Self::Proc => "read a file of procfs",
            Self::Cgroup => "read a file of a cgroup",
            Self::Replace => "replace it durably",
            Self::Sync => "write and sync 64 files",
            Self::Content => "make and remove the 20 files of a volume",
        }
    }

    const fn rounds(self) -> usize {
        match self {
            Self::Read | Self::Proc | Self::Cgroup => 2_000,
            Self::Content => 200,
            Self::Replace => 100,
            Self::Sync => 20,
        }
    }
}

/// Files that are open, and a folder with one that is not.
struct OpenFiles {
    folder: tempfile::TempDir,
    open: Vec<Arc<OwnedFd>>,
    runtime: Runtime,
    rings: [RingFiles; 2],
    pool: Pool,
}

impl OpenFiles {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("f"), [b'x'; SMALL]).expect("written");
        let open = |n: usize| File::create(folder.path().join(format!("s{n}"))).expect("a file");
        let open = (0..SYNCED).map(|n| Arc::new(open(n).into())).collect();
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let rings = [false, true].map(|is_async| RingFiles::ring(is_async).expect("a ring"));
        Self { folder, open, runtime, rings, pool: Pool::default() }
    }

    fn path(&self, work: Work) -> PathBuf {
        let cgroup = || CGROUPS.iter().map(Path::new).find(|path| path.exists());
        match work {
            Work::Proc => PROC.into(),
            Work::Cgroup => cgroup().map_or_else(|| PROC.into(), Path::to_owned),
            _ => self.folder.path().join("f"),
        }
    }

    fn once(&self, way: Way, work: Work) {
        self.runtime.block_on(async {
            match way {
                Way::Inline => self.by_ring(&self.rings[0], work).await,
                Way::Workers => self.by_ring(&self.rings[1], work).await,
                Way::Pool => {
                    let (path, open) = (self.path(work), self.open.clone());
                    let job = move || direct(&path, &open, work);
                    self.pool.run(JobPlace::own("bench"), job).await.expect("answered");
                }
                Way::Tokio => self.by_tokio(work).await,
                Way::Direct => direct(&self.path(work), &self.open, work),
            }
        });
    }

    async fn by_ring(&self, files: &RingFiles, work: Work) {
        let at = |path: &Path| PathStart::path(path).expect("a path");
        let path = self.path(work);
        let batch: Batch = match work {
            Work::Read | Work::Proc | Work::Cgroup => {
                Chain::read_file(at(&path), How::read(), 2 * SMALL).into()
            }
            Work::Content => content_by_ring(self.folder.path()),
            Work::Replace => {
                let beside = at(&path.with_file_name(".f.new"));
                let mode = Mode::S_IRUSR | Mode::S_IWUSR;
                let replace = Chain::replace(beside, at(&path), vec![b'y'; SMALL], mode);
                Batch::from(replace).then().with(Chain::sync_dir(at(self.folder.path())))
            }
            Work::Sync => {
                let chain = |file| Chain::append(file, 0, vec![b'z'; SMALL]);
                self.open.iter().map(chain).collect::<Vec<_>>().into()
            }
        };
        let answers = files.run(JobPlace::own("bench"), batch).await.expect("answered");
        assert!(answers.iter().all(Result::is_ok));
    }

    /// A job for each file, as `tokio::fs` does.
    async fn by_tokio(&self, work: Work) {
        let jobs = match work {
            Work::Sync => self.open.iter().map(|file| vec![Arc::clone(file)]).collect(),
            _ => vec![self.open.clone()],
        };
        let jobs: Vec<_> = jobs
            .into_iter()
            .map(|open| {
                let path = self.path(work);
                tokio::task::spawn_blocking(move || direct(&path, &open, work))
            })
            .collect();
        for job in jobs {
            job.await.expect("no panic");
        }
    }
}

/// As far as a ring can do it: a real volume's content has modes and owners as well.
fn content_by_ring(folder: &Path) -> Batch {
    let at = |path: &Path| PathStart::path(path).expect("a path");
    let (new, published) = (folder.join("content"), folder.join("content.published"));
    let one = |fill: &dyn Fn(&mut Chain)| {
        let mut chain = Chain::new();
        fill(&mut chain);
        chain
    };
    let make = one(&|chain| _ = chain.make_dir(at(&new), Mode::S_IRWXU));
    let mut batch = Batch::from(make).then();
    for n in 0..CONTENT {
        let (path, mode) = (new.join(n.to_string()), Mode::S_IRUSR | Mode::S_IWUSR);
        batch.push(one(&|chain| {
            let file = chain.open(at(&path), How::create_new(mode));
            chain.write(file, 0, vec![b'c'; SMALL]);
        }));
    }
    let rename = one(&|chain| _ = chain.rename(at(&new), at(&published), RenameFlags::empty()));
    let mut batch = batch.then().with(rename).then();
    for n in 0..CONTENT {
        let path = published.join(n.to_string());
        batch.push(one(&|chain| _ = chain.unlink(at(&path))));
    }
    batch.then().with(one(&|chain| _ = chain.remove_dir(at(&published))))
}

fn direct(path: &Path, open: &[Arc<OwnedFd>], work: Work) {
    match work {
        Work::Read => {
            assert_eq!(fs::read(path).expect("read").len(), SMALL);
        }
        Work::Proc | Work::Cgroup => {
            assert!(!fs::read(path).expect("read").is_empty());
        }
        Work::Content => {
            let folder = path.with_file_name("content");
            fs::create_dir(&folder).expect("made");
            for n in 0..CONTENT {
                fs::write(folder.join(n.to_string()), [b'c'; SMALL]).expect("written");
            }
            fs::rename(&folder, folder.with_extension("published")).expect("renamed");
            fs::remove_dir_all(folder.with_extension("published")).expect("removed");
        }
        Work::Replace => {
            durable::replace(path, &[b'y'; SMALL], 0o600).expect("replaced");
            let folder = path.parent().expect("a folder");
            File::open(folder).expect("a folder").sync_all().expect("synced");
        }
        Work::Sync => {
            for file in open {
                assert_eq!(pwrite(file, &[b'z'; SMALL], 0), Ok(SMALL));
                fdatasync(file).expect("synced");
            }
        }
    }
}

fn file_ops(c: &mut Criterion) {
    let ground = OpenFiles::new();
    for work in Work::ALL {
        let mut group = c.benchmark_group(work.name());
        group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
        group.sample_size(10);
        for way in Way::ALL {
            group.bench_function(way.name(), |b| b.iter(|| ground.once(way, work)));
        }
        group.finish();
    }
}

/// CPU time of all threads of this process.
fn cpu() -> Duration {
    let used = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
    used.expect("every process has one").into()
}

/// Median latency and CPU time of one operation, in microseconds.
fn measure(ground: &OpenFiles, way: Way, work: Work) -> (f64, f64) {
    let count = rounds(work.rounds());
    let before = cpu();
    let mut each: Vec<Duration> = (0..count)
        .map(|_| {
            let begun = Instant::now();
            ground.once(way, work);
            begun.elapsed()
        })
        .collect();
    let cpu = (cpu() - before) / u32::try_from(count).expect("few rounds");
    each.sort();
    (each[count / 2].as_secs_f64() * 1e6, cpu.as_secs_f64() * 1e6)
}

fn report() {
    let ground = OpenFiles::new();
    for work in Work::ALL {
        println!("\n{}: median, CPU time of the process, each beside our pool's", work.name());
        for way in Way::ALL {
            // Warms up threads and caches.
            ground.once(way, work);
        }
        let pool = measure(&ground, Way::Pool, work);
        for way in Way::ALL {
            let (latency, cpu) = measure(&ground, way, work);
            println!(
                "  {:20} {latency:10.1} us {:6.2}x   {cpu:9.1} us CPU {:6.2}x",
                way.name(),
                latency / pool.0,
                cpu / pool.1
            );
        }
    }
}

criterion_group!(benches, file_ops);

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    report();
}
