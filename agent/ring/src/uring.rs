//! Entries and completions of one io_uring: with `project`, the only files of the agent with
//! `unsafe`.
//!
//! Input: parts of chains, each for a place in a slab. Output: a part's chain and answers once the
//! kernel has completed all of its entries. Owned by the thread that serves the ring.
//!
//! Why this is sound: all memory that an entry points to (paths, buffers, descriptors) belongs to
//! the chain and its `EntryMemory`, which are in the slab before the entry is made, are not touched
//! while it is in flight, and leave the slab only after the last completion of their part. Where
//! the ring ends before that, they are leaked: a dead file server is not waited for.
//!
//! Bounds: one part for each place of the slab; the completion queue has room for every entry of
//! all parts, a cancellation of each, and the wake-up, so that it cannot overflow. A submission
//! that the kernel takes only in part would cut a chain in two: that is an error here, and the
//! remaining entries are never submitted.

use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{DestinationSlot, Fd, Fixed, FsyncFlags, OpenHow, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode};
use nix::errno::Errno;
use nix::libc;
use nix::sys::eventfd::EventFd;

use crate::chain::{
    Chain, ChainStep, Done, FileStat, How, OPENS_MAX, OpenFile, PathStart, STEPS_MAX,
};
use crate::progress::{ChainItem, CompletionResult, LinkCondition, Part};

/// Entries of one part.
pub(crate) const ENTRIES_MAX: usize = STEPS_MAX + OPENS_MAX;
/// Names of entries that belong to no part.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

/// Sizes of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingSizes {
    /// Places of the slab; as many chains are in flight at most, each on a worker of the kernel.
    pub(crate) flights: usize,
    /// Entries of the submission queue.
    pub(crate) entries: u32,
    /// No operation is tried on the thread that submits.
    pub(crate) is_async: bool,
}

/// A part with all its entries completed.
#[derive(Debug)]
pub(crate) struct EndedPart {
    pub(crate) flight: usize,
    pub(crate) chain: Chain,
    pub(crate) part: Part,
    pub(crate) answers: Vec<CompletionResult>,
}

/// Memory that an entry points to besides its chain.
enum EntryMemory {
    Nothing,
    How(Box<OpenHow>),
    Buffer(Vec<u8>),
    Stat(Box<MaybeUninit<libc::statx>>),
}

/// A part that the kernel works on.
struct Flight {
    generation: u32,
    chain: Chain,
    part: Part,
    memory: Vec<EntryMemory>,
    results: Vec<Option<i32>>,
}

/// One ring, for the thread that made it.
pub(crate) struct Uring {
    ring: IoUring,
    /// Never grows, so that its elements do not move.
    flights: ManuallyDrop<Vec<Option<Flight>>>,
    is_async: bool,
    last: u32,
    wake: Arc<EventFd>,
    /// The kernel's buffer for reads of `wake`; never freed.
    word: NonNull<u64>,
    is_armed: bool,
    completed: Vec<(u64, i32)>,
}

impl Uring {
    /// Makes a ring; the error names a missing feature of the kernel.
    pub(crate) fn new(sizes: RingSizes, wake: Arc<EventFd>) -> io::Result<Self> {
        let completions = (2 * sizes.flights * ENTRIES_MAX + 2).next_power_of_two();
        let completions = u32::try_from(completions).map_err(io::Error::other)?;
        let build = |is_deferred: bool| {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(completions).setup_submit_all();
            if is_deferred {
                builder.setup_single_issuer().setup_defer_taskrun();
            }
            builder.build(sizes.entries)
        };
        // Deferred work is of 6.1.
        let ring = build(true).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => build(false),
            _ => Err(error),
        })?;
        check(&ring)?;
        let count = u32::try_from(sizes.flights).map_err(io::Error::other)?;
        let slots = count * u32::try_from(OPENS_MAX).map_err(io::Error::other)?;
        ring.submitter().register_files_sparse(slots)?;
        ring.submitter().register_iowq_max_workers(&mut [count, count])?;
        let flights = ManuallyDrop::new((0..sizes.flights).map(|_| None).collect());
        let word = NonNull::from(Box::leak(Box::new(0)));
        let (is_async, completed) = (sizes.is_async, Vec::new());
        Ok(Self { ring, flights, is_async, last: 0, wake, word, is_armed: false, completed })
    }

    /// True if the place has no part in flight.
    pub(crate) fn is_free(&self, flight: usize) -> bool {
        self.flights[flight].is_none()
    }

    /// Queues a part for a place that is free.
    pub(crate) fn start(
        &mut self,
        flight: usize,
        chain: Chain,
        part: Part,
        written: impl Fn(usize) -> usize,
    ) -> io::Result<()> {
        assert!(self.is_free(flight), "a place has one part at a time");
        assert!(!part.is_empty() && part.len() <= ENTRIES_MAX, "a part has entries, but few");
        self.last = self.last.wrapping_add(1) & (u32::MAX >> 1);
        let memory = part.iter().map(|(item, _)| memory_for(*item, &chain)).collect();
        let results = part.iter().map(|_| None).collect();
        let begun = Flight { generation: self.last, chain, part, memory, results };
        let slot_base = flight * OPENS_MAX;
        let begun = self.flights[flight].insert(begun);
        let mut entries = Vec::with_capacity(begun.part.len());
        for (at, (item, link)) in begun.part.iter().enumerate() {
            let entry = match *item {
                ChainItem::Close(slot) => opcode::Close::new(slot_of(slot_base, slot)).build(),
                ChainItem::Step(step) => {
                    let memory = &mut begun.memory[at];
                    entry_of(&begun.chain.steps[step], memory, slot_base, written(step))
                }
            };
            let link = match link {
                LinkCondition::Success => Flags::IO_LINK,
                LinkCondition::End => Flags::IO_HARDLINK,
                LinkCondition::Last => Flags::empty(),
            };
            let flags = if self.is_async { link | Flags::ASYNC } else { link };
            entries.push(entry.flags(flags).user_data(name(begun.generation, flight, at)));
        }
        self.push(&entries)
    }

    /// Asks the kernel to cancel the rest of a part.
    pub(crate) fn cancel(&mut self, flight: usize) -> io::Result<()> {
        let Some(begun) = &self.flights[flight] else { return Ok(()) };
        let left = begun.results.iter().enumerate().filter(|(_, result)| result.is_none());
        let cancel = |at| {
            let of = name(begun.generation, flight, at);
            opcode::AsyncCancel::new(of).build().user_data(CANCEL)
        };
        let entries: Vec<Entry> = left.map(|(at, _)| cancel(at)).collect();
        self.push(&entries)
    }

    /// Queues entries that belong together; they are submitted with the next wait.
    fn push(&mut self, entries: &[Entry]) -> io::Result<()> {
        let room = |ring: &mut IoUring| {
            let queue = ring.submission();
            queue.capacity() - queue.len()
        };
        while room(&mut self.ring) < entries.len() {
            self.submit(None)?;
        }
        // SAFETY: all memory that the entries point to is in `flights` (or is `word`), is not
        // touched before their completions have come, and is leaked if the ring ends before that.
        let pushed = unsafe { self.ring.submission().push_multiple(entries) };
        pushed.map_err(io::Error::other)
    }

    /// Submits the queued entries and waits until one completes, or for so long.
    pub(crate) fn wait(&mut self, longest: Option<Duration>) -> io::Result<()> {
        if !self.is_armed {
            let wake = Fd(self.wake.as_raw_fd());
            let entry = opcode::Read::new(wake, self.word.as_ptr().cast(), 8).build();
            self.push(&[entry.user_data(WAKE)])?;
            self.is_armed = true;
        }
        self.submit(Some(longest.unwrap_or(Duration::MAX)))
    }

    /// Submits all that is queued; with a time it waits for a completion too.
    fn submit(&mut self, wait: Option<Duration>) -> io::Result<()> {
        let queued = self.ring.submission().len();
        let submitter = self.ring.submitter();
        let taken = match wait {
            None => submitter.submit(),
            Some(Duration::MAX) => submitter.submit_and_wait(1),
            Some(longest) => {
                let time = Timespec::from(longest);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match taken {
            Ok(taken) if taken < queued => {
                Err(io::Error::other("the kernel took a part of a submission"))
            }
            Ok(_) => Ok(()),
            // None was taken: they are submitted the next time.
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes the completed parts.
    pub(crate) fn reap(&mut self) -> Vec<EndedPart> {
        let mut completed = std::mem::take(&mut self.completed);
        completed.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        let mut ended = Vec::new();
        for (name, result) in completed.drain(..) {
            match name {
                WAKE => self.is_armed = false,
                CANCEL => {}
                _ => ended.extend(self.complete(name, result)),
            }
        }
        self.completed = completed;
        ended
    }

    fn complete(&mut self, name: u64, result: i32) -> Option<EndedPart> {
        let (generation, flight, at) = parts_of(name);
        let place = &mut self.flights[flight];
        let begun = place.as_mut().filter(|begun| begun.generation == generation);
        let begun = begun.expect("a part stays until its last completion");
        let before = begun.results[at].replace(result);
        assert!(before.is_none(), "an entry completes once");
        if begun.results.iter().any(Option::is_none) {
            return None;
        }
        let Flight { chain, part, memory, results, .. } = place.take()?;
        let each = part.iter().zip(memory).zip(results.into_iter().flatten());
        let answers = each
            .map(|(((item, _), memory), result)| match item {
                ChainItem::Close(_) => outcome(result, |_| CompletionResult::Done(Done::Nothing)),
                ChainItem::Step(step) => answer_of(&chain.steps[*step], memory, result),
            })
            .collect();
        Some(EndedPart { flight, chain, part, answers })
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.flights.iter().all(Option::is_none) {
            // SAFETY: dropped once, here; no entry in flight points into it.
            unsafe { ManuallyDrop::drop(&mut self.flights) };
        }
    }
}

/// Nothing was submitted, and nothing is wrong.
fn is_passing(error: &io::Error) -> bool {
    let passing = [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ETIME];
    error.raw_os_error().is_some_and(|errno| passing.contains(&errno))
}

/// Checks the features that the kernel must have.
fn check(ring: &IoUring) -> io::Result<()> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::OpenAt2::CODE,
        opcode::Statx::CODE,
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Fsync::CODE,
        opcode::Close::CODE,
        opcode::MkDirAt::CODE,
        opcode::UnlinkAt::CODE,
        opcode::RenameAt::CODE,
        opcode::SymlinkAt::CODE,
        opcode::AsyncCancel::CODE,
    ];
    let params = ring.params();
    // A file that an earlier entry of the chain opens is looked up when the later one begins.
    let features = params.is_feature_nodrop()
        && params.is_feature_ext_arg()
        && params.is_feature_linked_file();
    if features && needed.iter().all(|code| probe.is_supported(*code)) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "operations of io_uring are missing"))
}

fn name(generation: u32, flight: usize, at: usize) -> u64 {
    (u64::from(generation) << 32) | ((flight as u64) << 16) | at as u64
}

fn parts_of(name: u64) -> (u32, usize, usize) {
    ((name >> 32) as u32, (name >> 16) as usize & 0xffff, name as usize & 0xffff)
}

fn slot_of(base: usize, slot: usize) -> Fixed {
    Fixed(u32::try_from(base + slot).expect("the table of files is small"))
}

fn memory_for(item: ChainItem, chain: &Chain) -> EntryMemory {
    let ChainItem::Step(step) = item else { return EntryMemory::Nothing };
    match &chain.steps[step] {
        ChainStep::Open { how, .. } => EntryMemory::How(Box::new(how_of(how, 0))),
        ChainStep::OpenHeld { how, .. } => EntryMemory::How(Box::new(how_of(how, libc::O_CLOEXEC))),
        ChainStep::Read { bytes_max, .. } => EntryMemory::Buffer(vec![0; *bytes_max]),
        ChainStep::Stat { .. } => EntryMemory::Stat(Box::new(MaybeUninit::zeroed())),
        _ => EntryMemory::Nothing,
    }
}

/// A descriptor of the ring has no flag for exec.
fn how_of(how: &How, more: libc::c_int) -> OpenHow {
    let flags = u64::from((how.flags.bits() | more).cast_unsigned());
    OpenHow::new().flags(flags).mode(how.mode.bits().into()).resolve(how.resolve.bits())
}

fn fd_of(at: &PathStart) -> Fd {
    Fd(at.dir().as_raw_fd())
}

/// An entry on a file of the chain, or on one that its caller has open.
macro_rules! on {
    ($file:expr, $base:expr, |$fd:ident| $entry:expr) => {
        match $file {
            OpenFile::Here(opened) => {
                let $fd = slot_of($base, opened.0);
                $entry
            }
            OpenFile::Held(held) => {
                let $fd = Fd(held.as_raw_fd());
                $entry
            }
        }
    };
}

/// The entry of a step, after the first `written` bytes of a write.
fn entry_of(step: &ChainStep, memory: &mut EntryMemory, slot_base: usize, written: usize) -> Entry {
    match (step, memory) {
        (ChainStep::Open { at, into, .. }, EntryMemory::How(how)) => {
            let slot = slot_of(slot_base, into.0).0;
            let slot = DestinationSlot::try_from_slot_target(slot).ok();
            opcode::OpenAt2::new(fd_of(at), at.path.as_ptr(), &raw const **how)
                .file_index(Some(slot.expect("the table of files is small")))
                .build()
        }
        (ChainStep::OpenHeld { at, .. }, EntryMemory::How(how)) => {
            opcode::OpenAt2::new(fd_of(at), at.path.as_ptr(), &raw const **how).build()
        }
        (ChainStep::Stat { at, follow }, EntryMemory::Stat(stat)) => {
            let flags = if *follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
            opcode::Statx::new(fd_of(at), at.path.as_ptr(), stat.as_mut_ptr().cast())
                .flags(flags)
                .mask(libc::STATX_BASIC_STATS)
                .build()
        }
        (ChainStep::Read { file, offset, .. }, EntryMemory::Buffer(buffer)) => {
            let (to, count) = (buffer.as_mut_ptr(), length(buffer.len()));
            on!(file, slot_base, |fd| opcode::Read::new(fd, to, count).offset(*offset).build())
        }
        (ChainStep::Write { file, offset, bytes }, _) => {
            let rest = &bytes[written..];
            let (from, count) = (rest.as_ptr(), length(rest.len()));
            let offset = *offset + written as u64;
            on!(file, slot_base, |fd| opcode::Write::new(fd, from, count).offset(offset).build())
        }
        (ChainStep::Sync { file, data_only }, _) => {
            let flags = if *data_only { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
            on!(file, slot_base, |fd| opcode::Fsync::new(fd).flags(flags).build())
        }
        (step, _) => name_entry_of(step),
    }
}

/// The entry of a step that changes only names.
fn name_entry_of(step: &ChainStep) -> Entry {
    match step {
        ChainStep::MakeDir { at, mode } => {
            opcode::MkDirAt::new(fd_of(at), at.path.as_ptr()).mode(mode.bits()).build()
        }
        ChainStep::Unlink { at, is_dir } => {
            let flags = if *is_dir { libc::AT_REMOVEDIR } else { 0 };
            opcode::UnlinkAt::new(fd_of(at), at.path.as_ptr()).flags(flags).build()
        }
        ChainStep::Rename { from, to, flags } => {
            let (before, after) = (fd_of(from), fd_of(to));
            opcode::RenameAt::new(before, from.path.as_ptr(), after, to.path.as_ptr())
                .flags(flags.bits())
                .build()
        }
        ChainStep::SymLink { target, at } => {
            opcode::SymlinkAt::new(fd_of(at), target.as_ptr(), at.path.as_ptr()).build()
        }
        _ => unreachable!("its memory was made for it"),
    }
}

/// Longest write of the kernel at a time; the rest is a further part.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(1 << 30)
}

fn outcome(result: i32, done: impl FnOnce(u32) -> CompletionResult) -> CompletionResult {
    match u32::try_from(result) {
        Ok(value) => done(value),
        Err(_) => CompletionResult::Failed(Errno::from_raw(-result)),
    }
}

/// Interprets the kernel's answer to a step.
fn answer_of(step: &ChainStep, memory: EntryMemory, result: i32) -> CompletionResult {
    outcome(result, |value| match (step, memory) {
        (ChainStep::Read { .. }, EntryMemory::Buffer(mut buffer)) => {
            buffer.truncate(value as usize);
            CompletionResult::Done(Done::Bytes(buffer))
        }
        (ChainStep::Write { .. }, _) => CompletionResult::Wrote(value as usize),
        (ChainStep::OpenHeld { .. }, _) => {
            // SAFETY: the kernel has just made this descriptor for this entry, and no other owner
            // has its number.
            let file = unsafe { OwnedFd::from_raw_fd(result) };
            CompletionResult::Done(Done::File(file))
        }
        (ChainStep::Stat { .. }, EntryMemory::Stat(stat)) => {
            // SAFETY: it was zeroed when it was made, and all bits are numbers.
            let stat = unsafe { stat.assume_init() };
            CompletionResult::Done(Done::Stat(FileStat {
                mode: stat.stx_mode.into(),
                size: stat.stx_size,
                uid: stat.stx_uid,
                gid: stat.stx_gid,
                ino: stat.stx_ino,
                links: stat.stx_nlink.into(),
            }))
        }
        _ => CompletionResult::Done(Done::Nothing),
    })
}
