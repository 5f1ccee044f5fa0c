//! The texts with which upstream's probes, written in Go, report errors and times.
//!
//! Pure. Users search for these phrases and alert on them. Those of connections are in
//! `crate::http::words`.

use std::fmt::Write;
use std::time::Duration;

/// The agent's own delay is shown from this length on.
const DELAY_SHOWN_MIN: Duration = Duration::from_millis(50);

/// `host:port`, with brackets around an IPv6 address.
pub(super) fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// A duration of whole seconds as Go prints it: `1s`, `1m30s`.
pub(super) fn seconds(duration: Duration) -> String {
    let (hours, rest) = (duration.as_secs() / 3600, duration.as_secs() % 3600);
    let mut text = String::new();
    if hours > 0 {
        let _ = write!(text, "{hours}h");
    }
    if hours > 0 || rest >= 60 {
        let _ = write!(text, "{}m", rest / 60);
    }
    let _ = write!(text, "{}s", rest % 60);
    text
}

/// The time that an attempt spent in each phase; for the pod's timeline and `explain`, not for
/// events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    /// Until there was a connection; `None` when there was none.
    pub(super) connect: Option<Duration>,
    /// From then on, without an answer.
    pub(super) answer: Duration,
    /// The agent's own delay; not part of the probe's limit.
    pub(super) delay: Duration,
}

impl Spent {
    /// `connected within 1ms, then no answer for 1s`: coarse, so that a repeated entry keeps its
    /// text and is counted instead of being added again.
    pub(super) fn text(&self) -> String {
        let mut text = match self.connect {
            Some(connect) => format!(
                "connected within {}, then no answer for {}",
                coarse(connect),
                coarse(self.answer)
            ),
            None => format!("no connection for {}", coarse(self.answer)),
        };
        if self.delay >= DELAY_SHOWN_MIN {
            let delay = coarse(self.delay);
            let _ = write!(text, ", not counting a delay of the agent of up to {delay}");
        }
        text
    }
}

/// Rounded up to 1, 2 or 5 times a power of ten of milliseconds.
fn coarse(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX).max(1);
    let mut step = 1_u64;
    while step < 1_000_000_000 {
        for factor in [1, 2, 5] {
            if ms <= step * factor {
                return milliseconds(step * factor);
            }
        }
        step *= 10;
    }
    milliseconds(step)
}

fn milliseconds(ms: u64) -> String {
    if ms >= 1000 { format!("{}s", ms / 1000) } else { format!("{ms}ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (seconds_, text) in
            [(0, "0s"), (1, "1s"), (59, "59s"), (60, "1m0s"), (90, "1m30s"), (3600, "1h0m0s")]
        {
            assert_eq!(seconds(Duration::from_secs(seconds_)), text);
        }
    }

    #[test]
    fn times_are_coarse_so_that_repeated_events_stay_one_event() {
        for (us, text) in [
            (0, "1ms"),
            (900, "1ms"),
            (1100, "2ms"),
            (3000, "5ms"),
            (6000, "10ms"),
            (999_000, "1s"),
        ] {
            assert_eq!(coarse(Duration::from_micros(us)), text, "{us}");
        }
        assert_eq!(coarse(Duration::from_secs(35)), "50s");
    }

    #[test]
    fn agent_delay_is_mentioned_only_when_significant() {
        let second = Duration::from_secs(1);
        let ms = Duration::from_millis;
        let spent = Spent { connect: Some(ms(3)), answer: second, delay: ms(4) };
        assert_eq!(spent.text(), "connected within 5ms, then no answer for 1s");
        let spent = Spent { connect: None, answer: second, delay: ms(300) };
        let text = "no connection for 1s, not counting a delay of the agent of up to 500ms";
        assert_eq!(spent.text(), text);
    }
}
