//! I/O of a cgroup, by device. Pure.
//!
//! Input: `io.stat` of v2, or the two files of v1. Output: a `DeviceIo` for each device that was
//! used. Bounds: `DEVICES_MAX`.
// k8s: github.com/opencontainers/cgroups fs/blkio.go, fs2/io.go statIo

use std::collections::BTreeMap;

/// Most devices that are reported for one cgroup.
const DEVICES_MAX: usize = 64;

/// I/O of a cgroup and everything below it on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// Its numbers: major, minor.
    pub device: (u32, u32),
    /// Bytes by kind of operation: `Read`, `Write`, on v1 also `Sync`, `Async`, `Discard`, `Total`.
    pub bytes: BTreeMap<&'static str, u64>,
    /// Operations by kind.
    pub operations: BTreeMap<&'static str, u64>,
}

/// Reads `io.stat`.
pub(super) fn parse_v2(text: &str) -> Vec<DeviceIo> {
    let device = |line: &str| {
        let mut words = line.split_whitespace();
        let mut found = DeviceIo { device: numbers(words.next()?)?, ..DeviceIo::default() };
        for (name, value) in words.filter_map(|word| word.split_once('=')) {
            let (map, kind) = match name {
                "rbytes" => (&mut found.bytes, "Read"),
                "wbytes" => (&mut found.bytes, "Write"),
                "rios" => (&mut found.operations, "Read"),
                "wios" => (&mut found.operations, "Write"),
                _ => continue,
            };
            map.insert(kind, value.parse().ok()?);
        }
        Some(found)
    };
    text.lines().filter_map(device).take(DEVICES_MAX).collect()
}

/// Reads `io_service_bytes_recursive` and `io_serviced_recursive`.
pub(super) fn parse_v1(bytes: &str, operations: &str) -> Vec<DeviceIo> {
    let mut found: BTreeMap<(u32, u32), DeviceIo> = BTreeMap::new();
    for (device, kind, value) in bytes.lines().filter_map(line_v1) {
        found.entry(device).or_default().bytes.insert(kind, value);
    }
    for (device, kind, value) in operations.lines().filter_map(line_v1) {
        found.entry(device).or_default().operations.insert(kind, value);
    }
    let all = found.into_iter().map(|(device, io)| DeviceIo { device, ..io });
    all.take(DEVICES_MAX).collect()
}

/// `8:0 Read 4096`; the sum of all devices has no numbers and is none.
fn line_v1(line: &str) -> Option<((u32, u32), &'static str, u64)> {
    const KINDS: [&str; 6] = ["Read", "Write", "Sync", "Async", "Discard", "Total"];
    let mut words = line.split_whitespace();
    let device = numbers(words.next()?)?;
    let kind = words.next()?;
    let kind = KINDS.into_iter().find(|known| *known == kind)?;
    Some((device, kind, words.next()?.parse().ok()?))
}

fn numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_and_v2_io_statistics_parse_to_the_same_values() {
        let of = |bytes: &[(&'static str, u64)], operations: &[(&'static str, u64)]| DeviceIo {
            device: (254, 0),
            bytes: bytes.iter().copied().collect(),
            operations: operations.iter().copied().collect(),
        };
        let v2 = "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n7:0 \n";
        let found = parse_v2(v2);
        assert_eq!(found[0], of(&[("Read", 4096), ("Write", 8192)], &[("Read", 1), ("Write", 2)]));
        let bytes = "254:0 Read 4096\n254:0 Write 8192\n254:0 Total 12288\nTotal 12288\n";
        let operations = "254:0 Read 1\n254:0 Write 2\n254:0 Other 9\nTotal 3\n";
        let v1 = [("Read", 4096), ("Write", 8192), ("Total", 12_288)];
        assert_eq!(parse_v1(bytes, operations), [of(&v1, &[("Read", 1), ("Write", 2)])]);
        assert_eq!((parse_v2("junk\n"), parse_v1("Total 0\n", "")), (Vec::new(), Vec::new()));
    }
}
