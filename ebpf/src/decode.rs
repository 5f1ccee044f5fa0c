//! Decodes one record of the event ring into one [`KernelEvent`].
//!
//! Input: the bytes of `struct event` in bpf/pods.bpf.c, host byte order. Output: an event, or the
//! reason why the bytes are none. The bytes come from our own programs, yet nothing here trusts
//! them: any length and any content is answered with a value, never a panic, so that a mismatch of
//! program and agent shows as a counter and not as a crash. Pure: no clock (the caller passes both
//! clocks to [`Clocks`]), no I/O.
//!
//! Owner: ring.rs calls [`decode`] for each record; fallback.rs builds the same events from other
//! sources.

use std::fmt;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

/// Bytes of one record.
pub const EVENT_BYTES: usize = 56;

const TYPE_EXEC: u32 = 1;
const TYPE_EXIT: u32 = 2;
const TYPE_OOM: u32 = 3;
const TYPE_CGROUP_CREATED: u32 = 4;
const TYPE_CGROUP_REMOVED: u32 = 5;
const TYPE_POPULATED: u32 = 6;

const FLAG_TRACKED: u32 = 1;
const FLAG_INIT: u32 = 2;
const FLAG_OOM: u32 = 4;

/// The caller's number of a pod, given to [`crate::EventSource::track`] and returned with each of its
/// events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u64);

/// Something that happened to a pod. A hint: it says where to look, the runtime says what is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelEvent {
    /// The pod; `None` only for OOM victims outside of every tracked cgroup (system OOM).
    pub slot: Option<Slot>,
    /// The kind of event.
    pub kind: EventKind,
    /// The process in the agent's pid namespace; 0 for cgroup events.
    pub pid: u32,
    /// When.
    pub time: Monotonic,
    /// Inode of the cgroup's directory; 0 where the source does not know it (pidfd).
    pub cgroup_id: u64,
}

/// The kind of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A container's entry point started: the first exec of its first process.
    Exec,
    /// A container's first process ended.
    Exit(Exit),
    /// The OOM killer chose this process.
    OomVictim {
        /// Name of the program, as far as known.
        comm: Comm,
        /// It is a container's first process, so the container ends with it.
        is_init: bool,
    },
    /// A cgroup was made beneath the pod's.
    CgroupCreated,
    /// The pod's cgroup or one beneath it was removed.
    CgroupRemoved,
    /// The cgroup has got its first process (true) or lost its last (false), descendants included.
    Populated(bool),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code or signal; `None` where only the fact is known (pidfd).
    pub status: Option<ExitStatus>,
    /// The OOM killer had chosen it.
    pub oom: bool,
}

/// A decoded wait status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// It called exit with this code.
    Code(u8),
    /// It was ended by this signal.
    Signal(u8),
}

impl ExitStatus {
    /// From the kernel's wait status: signal in bits 0-6, core dump in bit 7, code in bits 8-15.
    pub const fn from_wait_status(status: i32) -> Self {
        let [low, code, ..] = status.to_le_bytes();
        match low & 0x7f {
            0 => Self::Code(code),
            signal => Self::Signal(signal),
        }
    }

    /// The code a container runtime reports for it: 128 + n for signal n, as shells do.
    pub const fn runtime_code(self) -> i32 {
        match self {
            Self::Code(code) => code as i32,
            Self::Signal(signal) => 128 + signal as i32,
        }
    }

    /// The exit code, if it was not a signal.
    pub const fn code(self) -> Option<u8> {
        match self {
            Self::Code(code) => Some(code),
            Self::Signal(_) => None,
        }
    }

    /// The signal, if it was one.
    pub const fn signal(self) -> Option<u8> {
        match self {
            Self::Signal(signal) => Some(signal),
            Self::Code(_) => None,
        }
    }
}

/// A program's name as the kernel keeps it: at most 15 bytes, any bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comm(pub [u8; 16]);

impl fmt::Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        f.write_str(&String::from_utf8_lossy(&self.0[..end]))
    }
}

/// Nanoseconds of CLOCK_MONOTONIC: steady, but only comparable within one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// The clock now.
    pub fn now() -> Self {
        Self(duration_of(ClockId::CLOCK_MONOTONIC).as_nanos() as u64)
    }
}

/// Both clocks, read together: what turns a monotonic stamp into a time of day.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// The steady one.
    pub monotonic: Monotonic,
    /// The wall clock at the same moment.
    pub wall: SystemTime,
}

impl Clocks {
    /// Reads both now.
    pub fn read() -> Self {
        let wall = SystemTime::UNIX_EPOCH + duration_of(ClockId::CLOCK_REALTIME);
        Self { monotonic: Monotonic::now(), wall }
    }

    /// Time of day of a stamp, before or after this reading; a stamp too far away for the type to
    /// hold gives the reading itself.
    pub fn wall_of(&self, stamp: Monotonic) -> SystemTime {
        let (here, there) = (self.monotonic.0, stamp.0);
        let shifted = match there >= here {
            true => self.wall.checked_add(Duration::from_nanos(there - here)),
            false => self.wall.checked_sub(Duration::from_nanos(here - there)),
        };
        shifted.unwrap_or(self.wall)
    }
}

fn duration_of(clock: ClockId) -> Duration {
    let now = clock_gettime(clock).expect("the kernel has both clocks");
    Duration::from(now)
}

/// The reason for which bytes are not an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Too short or too long.
    #[error("a kernel event of {0} bytes instead of {EVENT_BYTES}")]
    Length(usize),
    /// A type that this version does not know.
    #[error("a kernel event of unknown type {0}")]
    Type(u32),
    /// Anything but an OOM victim must belong to a pod.
    #[error("a kernel event of type {0} that belongs to no pod")]
    Untracked(u32),
}

/// Reads one record.
pub fn decode(bytes: &[u8]) -> Result<KernelEvent, DecodeError> {
    let record: &[u8; EVENT_BYTES] =
        bytes.try_into().map_err(|_| DecodeError::Length(bytes.len()))?;
    let type_ = u32_at(record, 24);
    let flags = u32_at(record, 36);
    let code = i32::from_ne_bytes(u32_at(record, 32).to_ne_bytes());
    let kind = match type_ {
        TYPE_EXEC => EventKind::Exec,
        TYPE_EXIT => EventKind::Exit(Exit {
            status: Some(ExitStatus::from_wait_status(code)),
            oom: flags & FLAG_OOM != 0,
        }),
        TYPE_OOM => EventKind::OomVictim {
            comm: Comm(array_at(record, 40)),
            is_init: flags & FLAG_INIT != 0,
        },
        TYPE_CGROUP_CREATED => EventKind::CgroupCreated,
        TYPE_CGROUP_REMOVED => EventKind::CgroupRemoved,
        TYPE_POPULATED => EventKind::Populated(code != 0),
        unknown => return Err(DecodeError::Type(unknown)),
    };
    let slot = (flags & FLAG_TRACKED != 0).then(|| Slot(u64_at(record, 16)));
    if slot.is_none() && type_ != TYPE_OOM {
        return Err(DecodeError::Untracked(type_));
    }
    Ok(KernelEvent {
        slot,
        kind,
        pid: u32_at(record, 28),
        time: Monotonic(u64_at(record, 0)),
        cgroup_id: u64_at(record, 8),
    })
}

fn u64_at(record: &[u8; EVENT_BYTES], at: usize) -> u64 {
    u64::from_ne_bytes(array_at(record, at))
}

fn u32_at(record: &[u8; EVENT_BYTES], at: usize) -> u32 {
    u32::from_ne_bytes(array_at(record, at))
}

fn array_at<const N: usize>(record: &[u8; EVENT_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| record[at + i])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy)]
    struct RawRecord {
        type_: u32,
        code: i32,
        flags: u32,
    }

    fn bytes(record: RawRecord) -> [u8; EVENT_BYTES] {
        let mut out = [0; EVENT_BYTES];
        out[0..8].copy_from_slice(&11u64.to_ne_bytes());
        out[8..16].copy_from_slice(&22u64.to_ne_bytes());
        out[16..24].copy_from_slice(&33u64.to_ne_bytes());
        out[24..28].copy_from_slice(&record.type_.to_ne_bytes());
        out[28..32].copy_from_slice(&44u32.to_ne_bytes());
        out[32..36].copy_from_slice(&record.code.to_ne_bytes());
        out[36..40].copy_from_slice(&record.flags.to_ne_bytes());
        out[40..45].copy_from_slice(b"nginx");
        out
    }

    #[test]
    fn every_event_type_is_decoded_with_its_fields() {
        let comm = Comm(*b"nginx\0\0\0\0\0\0\0\0\0\0\0");
        let exit = |status, oom| EventKind::Exit(Exit { status: Some(status), oom });
        let table = [
            (1, 0, 3, EventKind::Exec),
            (2, 3 << 8, 3, exit(ExitStatus::Code(3), false)),
            (2, 9, 7, exit(ExitStatus::Signal(9), true)),
            (3, 0, 5, EventKind::OomVictim { comm, is_init: false }),
            (3, 0, 7, EventKind::OomVictim { comm, is_init: true }),
            (4, 0, 1, EventKind::CgroupCreated),
            (5, 0, 1, EventKind::CgroupRemoved),
            (6, 1, 1, EventKind::Populated(true)),
            (6, 0, 1, EventKind::Populated(false)),
        ];
        for (type_, code, flags, kind) in table {
            let event = decode(&bytes(RawRecord { type_, code, flags })).expect("well formed");
            let expected = KernelEvent {
                slot: Some(Slot(33)),
                kind,
                pid: 44,
                time: Monotonic(11),
                cgroup_id: 22,
            };
            assert_eq!(event, expected, "type {type_}");
        }
    }

    #[test]
    fn wait_status_becomes_code_or_signal_and_the_code_a_runtime_reports() {
        let table = [
            (0, ExitStatus::Code(0), 0),
            (3 << 8, ExitStatus::Code(3), 3),
            (255 << 8, ExitStatus::Code(255), 255),
            (9, ExitStatus::Signal(9), 137),
            (15, ExitStatus::Signal(15), 143),
            (11 | 0x80, ExitStatus::Signal(11), 139),
        ];
        for (raw, status, runtime) in table {
            assert_eq!(ExitStatus::from_wait_status(raw), status, "{raw:#x}");
            assert_eq!(status.runtime_code(), runtime, "{raw:#x}");
        }
    }

    #[test]
    fn only_an_oom_victim_may_belong_to_no_pod() {
        let event = decode(&bytes(RawRecord { type_: 3, code: 0, flags: 4 })).expect("system oom");
        assert_eq!(event.slot, None);
        for type_ in [1, 2, 4, 5, 6] {
            let result = decode(&bytes(RawRecord { type_, code: 0, flags: 2 }));
            assert_eq!(result, Err(DecodeError::Untracked(type_)));
        }
    }

    #[test]
    fn wrong_length_and_unknown_type_are_named() {
        let good = bytes(RawRecord { type_: 1, code: 0, flags: 1 });
        assert_eq!(decode(&good[..55]), Err(DecodeError::Length(55)));
        assert_eq!(decode(&[]), Err(DecodeError::Length(0)));
        let unknown = bytes(RawRecord { type_: 7, code: 0, flags: 1 });
        assert_eq!(decode(&unknown), Err(DecodeError::Type(7)));
    }

    #[test]
    fn a_stamp_maps_to_the_wall_clock_on_both_sides_of_the_reading() {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let clocks = Clocks { monotonic: Monotonic(5_000_000_000), wall };
        let second = Duration::from_secs(1);
        assert_eq!(clocks.wall_of(Monotonic(4_000_000_000)), wall - second);
        assert_eq!(clocks.wall_of(Monotonic(6_000_000_000)), wall + second);
    }

    #[test]
    fn a_name_with_any_bytes_is_printable() {
        assert_eq!(Comm(*b"sh\0\0\0\0\0\0\0\0\0\0\0\0\0\0").to_string(), "sh");
        assert_eq!(Comm([b'x'; 16]).to_string(), "x".repeat(16));
        assert_eq!(Comm([0xff; 16]).to_string().chars().count(), 16);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Whatever the bytes, the answer is a value; only exact records of known types are events.
        #[test]
        fn any_bytes_are_answered(
            mut raw in proptest::collection::vec(any::<u8>(), 0..130),
            type_ in 0u32..10,
        ) {
            if let Some(field) = raw.get_mut(24..28) {
                field.copy_from_slice(&type_.to_ne_bytes());
            }
            match decode(&raw) {
                Ok(event) => {
                    prop_assert_eq!(raw.len(), EVENT_BYTES);
                    prop_assert!((1..=6).contains(&type_));
                    prop_assert!(event.slot.is_some() || type_ == TYPE_OOM);
                }
                Err(DecodeError::Length(length)) => prop_assert_eq!(length, raw.len()),
                Err(DecodeError::Type(unknown)) => prop_assert!(unknown == 0 || unknown > 6),
                Err(DecodeError::Untracked(known)) => prop_assert!(known != TYPE_OOM),
            }
        }

        /// Garbage of the right length, the fuzz-like case.
        #[test]
        fn any_record_is_answered(
            raw in proptest::array::uniform32(any::<u8>()),
            tail in proptest::array::uniform24(any::<u8>()),
        ) {
            let mut record = [0; EVENT_BYTES];
            record[..32].copy_from_slice(&raw);
            record[32..].copy_from_slice(&tail);
            if let Ok(event) = decode(&record) {
                let text = format!("{event:?}");
                prop_assert!(!text.is_empty());
            }
        }

        /// The wall clock never panics, however far the stamp.
        #[test]
        fn any_stamp_has_a_wall_time(here in any::<u64>(), there in any::<u64>()) {
            let clocks = Clocks { monotonic: Monotonic(here), wall: SystemTime::UNIX_EPOCH };
            clocks.wall_of(Monotonic(there));
        }
    }
}
