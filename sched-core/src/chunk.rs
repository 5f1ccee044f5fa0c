//! The numbers of the nodes: a fixed number of rows a chunk, one column a number.
//!
//! Input: exact numbers of a node. Output: narrow columns that a kernel can stream.
//! Owner: the writer of the cluster; readers hold chunks of a published epoch.
//! Bounds: `CHUNK_ROWS` rows; CPU below 2^31 thousandths, memory and storage below 2^46 bytes. A
//! row that does not fit is marked wide and its exact numbers live beside (`View::wide`).
//! Why doubles for bytes: they are exact for every integer below 2^53, need no conversion before
//! a division, and 100 times 2^46 still is below 2^53, so that scores are exact (see docs/adr).

use crate::requests::PodRequests;

/// Rows in a chunk: eight words of a mask.
pub const CHUNK_ROWS: usize = 512;
/// Rows in one word of a mask.
pub const WORD_ROWS: usize = 64;
/// Thousandths of a CPU that a column holds, exclusive.
pub const CPU_NARROW_MAX: i64 = 1 << 31;
/// Bytes that a column holds, exclusive.
pub const BYTES_NARROW_MAX: i64 = 1 << 46;
/// Pods that a column holds, exclusive.
pub const PODS_NARROW_MAX: i64 = 1 << 16;

/// Exact numbers of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Allocatable thousandths of a CPU.
    pub cpu: i64,
    /// Requested.
    pub cpu_used: i64,
    /// Requested, defaults for containers without request included.
    pub cpu_nonzero: i64,
    /// Allocatable bytes of memory.
    pub mem: i64,
    /// Requested.
    pub mem_used: i64,
    /// Requested, with defaults.
    pub mem_nonzero: i64,
    /// Allocatable bytes of ephemeral storage.
    pub eph: i64,
    /// Requested.
    pub eph_used: i64,
    /// Pods allowed.
    pub pods: i64,
    /// Pods there.
    pub pods_used: i64,
}

impl Numbers {
    /// Adds a pod's requests (1), or subtracts them (-1).
    pub(crate) fn change(&mut self, requests: &PodRequests, sign: i64) {
        let add = |sum: &mut i64, of: i64| *sum = sum.wrapping_add(sign.wrapping_mul(of));
        add(&mut self.cpu_used, requests.plain.cpu_milli);
        add(&mut self.mem_used, requests.plain.mem_bytes);
        add(&mut self.eph_used, requests.plain.eph_bytes);
        add(&mut self.cpu_nonzero, requests.nonzero_cpu_milli);
        add(&mut self.mem_nonzero, requests.nonzero_mem_bytes);
        self.pods_used += sign;
    }

    /// Returns true if the columns hold these numbers exactly.
    #[must_use]
    pub fn is_narrow(&self) -> bool {
        let within = |values: [i64; 3], max| values.iter().all(|v| (0..max).contains(v));
        within([self.cpu, self.cpu_used, self.cpu_nonzero], CPU_NARROW_MAX / 2)
            && within([self.mem, self.mem_used, self.mem_nonzero], BYTES_NARROW_MAX)
            && within([self.eph, self.eph_used, 0], BYTES_NARROW_MAX)
            && within([self.pods, self.pods_used, 0], PODS_NARROW_MAX)
    }
}

/// Columns of `CHUNK_ROWS` nodes.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // as in `Numbers`
pub struct Chunk {
    pub cpu: [i32; CHUNK_ROWS],
    pub cpu_used: [i32; CHUNK_ROWS],
    pub cpu_nonzero: [i32; CHUNK_ROWS],
    pub pods: [u16; CHUNK_ROWS],
    pub pods_used: [u16; CHUNK_ROWS],
    pub mem: [f64; CHUNK_ROWS],
    pub mem_used: [f64; CHUNK_ROWS],
    pub mem_nonzero: [f64; CHUNK_ROWS],
    pub eph: [f64; CHUNK_ROWS],
    pub eph_used: [f64; CHUNK_ROWS],
    /// Balance of the node before any pod is added, 0..=100.
    pub balance: [u8; CHUNK_ROWS],
    /// Counts the changes of a row.
    pub version: [u32; CHUNK_ROWS],
}

impl Default for Chunk {
    fn default() -> Self {
        Self {
            cpu: [0; CHUNK_ROWS],
            cpu_used: [0; CHUNK_ROWS],
            cpu_nonzero: [0; CHUNK_ROWS],
            pods: [0; CHUNK_ROWS],
            pods_used: [0; CHUNK_ROWS],
            mem: [0.0; CHUNK_ROWS],
            mem_used: [0.0; CHUNK_ROWS],
            mem_nonzero: [0.0; CHUNK_ROWS],
            eph: [0.0; CHUNK_ROWS],
            eph_used: [0.0; CHUNK_ROWS],
            balance: [0; CHUNK_ROWS],
            version: [0; CHUNK_ROWS],
        }
    }
}

impl Chunk {
    /// The numbers of row `at` of this chunk, exact when the row is not wide.
    #[must_use]
    pub fn numbers(&self, at: usize) -> Numbers {
        Numbers {
            cpu: self.cpu[at].into(),
            cpu_used: self.cpu_used[at].into(),
            cpu_nonzero: self.cpu_nonzero[at].into(),
            mem: self.mem[at] as i64,
            mem_used: self.mem_used[at] as i64,
            mem_nonzero: self.mem_nonzero[at] as i64,
            eph: self.eph[at] as i64,
            eph_used: self.eph_used[at] as i64,
            pods: self.pods[at].into(),
            pods_used: self.pods_used[at].into(),
        }
    }

    /// Writes row `at`; numbers must be narrow.
    pub fn set_numbers(&mut self, at: usize, n: &Numbers) {
        assert!(n.is_narrow(), "wide numbers live beside the chunk");
        self.cpu[at] = n.cpu as i32;
        self.cpu_used[at] = n.cpu_used as i32;
        self.cpu_nonzero[at] = n.cpu_nonzero as i32;
        self.pods[at] = n.pods as u16;
        self.pods_used[at] = n.pods_used as u16;
        self.mem[at] = n.mem as f64;
        self.mem_used[at] = n.mem_used as f64;
        self.mem_nonzero[at] = n.mem_nonzero as f64;
        self.eph[at] = n.eph as f64;
        self.eph_used[at] = n.eph_used as f64;
    }
}
