//! Counters of network interfaces, from `/proc/PID/net/dev`. Pure.
// k8s: github.com/google/cadvisor container/libcontainer/handler.go scanInterfaceStats

/// Most interfaces of one network namespace.
const INTERFACES_MAX: usize = 64;
/// Names that are left out: the loopback, and the node's ends of pods' interfaces.
const IGNORED: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// Counters of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) received: Traffic,
    pub(super) sent: Traffic,
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) bytes: u64,
    pub(super) packets: u64,
    pub(super) errors: u64,
    pub(super) dropped: u64,
}

/// The interfaces of a namespace, in the kernel's order.
pub(super) fn interfaces(net_dev: &str) -> Vec<Interface> {
    let lines = net_dev.lines().filter_map(|line| line.split_once(':'));
    let wanted = lines.filter(|(name, _)| {
        let name = name.trim();
        !IGNORED.iter().any(|ignored| name.starts_with(ignored))
    });
    wanted.take(INTERFACES_MAX).filter_map(|(name, numbers)| interface(name, numbers)).collect()
}

fn interface(name: &str, numbers: &str) -> Option<Interface> {
    let numbers: Vec<u64> =
        numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let traffic = |at: usize| {
        Some(Traffic {
            bytes: *numbers.get(at)?,
            packets: *numbers.get(at + 1)?,
            errors: *numbers.get(at + 2)?,
            dropped: *numbers.get(at + 3)?,
        })
    };
    Some(Interface { name: name.trim().to_owned(), received: traffic(0)?, sent: traffic(8)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_but_for_the_loop_and_the_ends_of_pods() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets\n\
            lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 100 2 3 4 0 0 0 0 500 6 7 8 0 0 0 0\n\
            vethab: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n broken: 1 x\n";
        let received = Traffic { bytes: 100, packets: 2, errors: 3, dropped: 4 };
        let sent = Traffic { bytes: 500, packets: 6, errors: 7, dropped: 8 };
        assert_eq!(interfaces(text), [Interface { name: "eth0".to_owned(), received, sent }]);
    }
}
