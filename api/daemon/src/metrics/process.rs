//! The `process_*` family: the agent's own usage, read from `/proc/self` at each scrape.
//!
//! Effects: three small reads of `/proc`. A value that cannot be read keeps its last reading.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::resource::{Resource, getrlimit};
use pintle_api_types::ids::UnixNanos;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::MetricNames;

/// Ticks per second in which the kernel reports CPU time to programs, on every architecture.
const USER_HZ: f64 = 100.0;

/// Handles of the family.
#[derive(Debug)]
pub struct ProcessMetrics {
    start: Gauge<f64, AtomicU64>,
    cpu_seconds: Counter<f64, AtomicU64>,
    resident_bytes: Gauge,
    virtual_bytes: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    virtual_max: Gauge<f64, AtomicU64>,
    received: Counter<f64, AtomicU64>,
    sent: Counter<f64, AtomicU64>,
}

impl ProcessMetrics {
    /// Registers the family.
    pub fn register(at: &mut MetricNames<'_>) -> Self {
        let start: Gauge<f64, AtomicU64> = at.add(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
        );
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        start.set(since.as_secs_f64());
        Self {
            start,
            cpu_seconds: at
                .add("process_cpu_seconds", "Total user and system CPU time spent in seconds."),
            resident_bytes: at
                .add("process_resident_memory_bytes", "Resident memory size in bytes."),
            virtual_bytes: at.add("process_virtual_memory_bytes", "Virtual memory size in bytes."),
            open_fds: at.add("process_open_fds", "Number of open file descriptors."),
            max_fds: at.add("process_max_fds", "Maximum number of open file descriptors."),
            virtual_max: at.add(
                "process_virtual_memory_max_bytes",
                "Maximum amount of virtual memory available in bytes.",
            ),
            received: at.add(
                "process_network_receive_bytes",
                "Number of bytes received by the process over the network.",
            ),
            sent: at.add(
                "process_network_transmit_bytes",
                "Number of bytes sent by the process over the network.",
            ),
        }
    }

    /// Start of the process in seconds since the epoch.
    pub fn started_at(&self) -> f64 {
        self.start.get()
    }

    /// Updates the values; call it before each exposition.
    pub fn read(&self) {
        if let Some(seconds) = fs::read_to_string("/proc/self/stat").ok().and_then(cpu_seconds) {
            self.cpu_seconds.inner().store(seconds.to_bits(), Ordering::Relaxed);
        }
        if let Ok(status) = fs::read_to_string("/proc/self/status") {
            set(&self.resident_bytes, kib_of(&status, "VmRSS:").map(|kib| kib * 1024));
            set(&self.virtual_bytes, kib_of(&status, "VmSize:").map(|kib| kib * 1024));
        }
        // The directory being read is one of the descriptors.
        let open = fs::read_dir("/proc/self/fd").ok().map(|dir| dir.count().saturating_sub(1));
        set(&self.open_fds, open.and_then(|count| u64::try_from(count).ok()));
        if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_AS) {
            self.virtual_max.set(bytes(soft));
        }
        // The kernel counts them per network namespace, which is the node's.
        if let Ok(netstat) = fs::read_to_string("/proc/self/net/netstat") {
            for (counter, field) in [(&self.received, "InOctets"), (&self.sent, "OutOctets")] {
                if let Some(count) = ip_count(&netstat, field) {
                    counter.inner().store(bytes(count).to_bits(), Ordering::Relaxed);
                }
            }
        }
        set(&self.max_fds, getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft));
    }
}

fn set(gauge: &Gauge, value: Option<u64>) {
    if let Some(value) = value {
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    }
}

/// Boot time of the machine; `UnixNanos::NEVER` when the kernel does not report it.
pub fn booted_at() -> UnixNanos {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    let seconds = line.and_then(|text| text.trim().parse::<i64>().ok());
    seconds.map_or(UnixNanos::NEVER, |at| UnixNanos(at.saturating_mul(1_000_000_000)))
}

/// User and system time of `/proc/PID/stat`; the command name before them may hold anything.
fn cpu_seconds(stat: String) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut ticks = after_name.split_whitespace().skip(11).map(str::parse::<u32>);
    let (user, system) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    Some((f64::from(user) + f64::from(system)) / USER_HZ)
}

#[allow(clippy::cast_precision_loss)] // shown as Prometheus shows all numbers
fn bytes(count: u64) -> f64 {
    count as f64
}

/// A number of the `IpExt` rows: a line of names and a line of values.
fn ip_count(netstat: &str, field: &str) -> Option<u64> {
    let mut rows = netstat.lines().filter(|line| line.starts_with("IpExt:"));
    let (names, values) = (rows.next()?, rows.next()?);
    let index = names.split(' ').position(|name| name == field)?;
    values.split(' ').nth(index)?.parse().ok()
}

fn kib_of(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{cpu_seconds, ip_count, kib_of};

    #[test]
    fn cpu_time_is_read_behind_a_name_with_spaces_and_brackets() {
        let stat = "12 (a b) c) S 1 1 1 0 -1 4 5 0 0 0 150 50 0 0 20 0 3 0 99 1 1".to_owned();
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("12 (cut".to_owned()), None);
    }

    #[test]
    fn network_counts_are_read_by_their_names() {
        let text = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InOctets OutOctets\nIpExt: 7 8\n";
        assert_eq!((ip_count(text, "InOctets"), ip_count(text, "OutOctets")), (Some(7), Some(8)));
        assert_eq!((ip_count(text, "A"), ip_count("", "InOctets")), (None, None));
    }

    #[test]
    fn memory_is_read_by_its_field() {
        let status = "Name:\tx\nVmSize:\t  900 kB\nVmRSS:\t   64 kB\n";
        assert_eq!(kib_of(status, "VmRSS:"), Some(64));
        assert_eq!(kib_of(status, "VmSwap:"), None);
    }
}
