//! The service manager's side: `READY=1`, `STOPPING=1`, `WATCHDOG=1`.
//!
//! Input: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` of the environment. Output: one
//! datagram a message, to a socket in the file system or in the abstract namespace. Without a
//! service manager everything here does nothing. The watchdog is fed at half its interval and only
//! while the agent is healthy: silence makes the service manager restart it.
// k8s: pkg/kubelet/watchdog/watchdog_linux.go

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sends messages to the service manager.
#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    address: SocketAddr,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// The service manager that started this process, if one did and expects notifications.
    pub fn from_env() -> Option<Self> {
        let var = |name| std::env::var(name).ok();
        let watchdog = watchdog_interval(
            var("WATCHDOG_USEC").as_deref(),
            var("WATCHDOG_PID").as_deref(),
            std::process::id(),
        );
        Self::new(&var("NOTIFY_SOCKET")?, watchdog)
    }

    fn new(address: &str, watchdog: Option<Duration>) -> Option<Self> {
        let parsed = match address.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(address),
        };
        let opened = parsed.and_then(|parsed| {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            Ok(Self { socket, address: parsed, watchdog })
        });
        opened
            .inspect_err(|error| {
                tracing::warn!(address, %error, "the service manager cannot be told anything");
            })
            .ok()
    }

    /// The watchdog's interval; `None` when it is off.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Sends one message; a service manager that does not listen is no reason to stop.
    pub fn send(&self, message: &str) {
        if let Err(error) = self.socket.send_to_addr(message.as_bytes(), &self.address) {
            tracing::debug!(message, %error, "the service manager was not told");
        }
    }
}

/// Half of the service manager's interval, when it means this process.
fn watchdog_interval(usec: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let allowed: u64 = usec?.parse().ok()?;
    (allowed > 0).then(|| Duration::from_micros(allowed) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_is_notified_at_half_its_interval_by_the_named_process() {
        for (usec, pid, interval_ms) in [
            (Some("30000000"), None, Some(15_000)),
            (Some("30000000"), Some("7"), Some(15_000)),
            (Some("30000000"), Some("8"), None),
            (Some("30000000"), Some("x"), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
            (None, Some("7"), None),
        ] {
            let found = watchdog_interval(usec, pid, 7);
            assert_eq!(found, interval_ms.map(Duration::from_millis), "{usec:?} {pid:?}");
        }
    }

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn notifications_reach_path_and_abstract_sockets() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).expect("bound");
        let text = path.to_str().expect("a path in UTF-8");
        Notifier::new(text, None).expect("a notifier").send("READY=1");
        assert_eq!(heard(&by_path), "READY=1");

        let name = format!("pintle-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let by_name = UnixDatagram::bind_addr(&address).expect("bound");
        Notifier::new(&format!("@{name}"), None).expect("a notifier").send("STOPPING=1");
        assert_eq!(heard(&by_name), "STOPPING=1");
    }

    #[test]
    fn missing_service_manager_is_no_error() {
        Notifier::new("/nonexistent/notify", None).expect("a notifier").send("READY=1");
    }
}
