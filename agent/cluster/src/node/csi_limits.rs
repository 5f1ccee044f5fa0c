//! Refreshes the volume limits of CSI drivers at the period that each CSIDriver sets.
//!
//! Input: the registered drivers, the CSIDriver of each. Output: refresh requests to the registry,
//! which calls the driver; `csi_drivers` writes the limits. A CSIDriver is read when its driver
//! registers, before each refresh, and every `READ_EVERY` while it has no period. Owner: one task.
//! Bounds: one read at a time, `PERIOD_MIN`.
// k8s: pkg/volume/csi/csi_node_updater.go

use std::collections::BTreeMap;
use std::time::Duration;

use pintle_agent_plugins::{Drivers, Refresher};
use tokio::time::Instant;

use crate::objects::Objects;

/// Shortest period; the API's validation has the same minimum.
const PERIOD_MIN: Duration = Duration::from_secs(10);
/// How often an object without a period is read again.
const READ_EVERY: Duration = Duration::from_secs(5 * 60);

/// The next turn of each driver.
#[derive(Debug, Default)]
struct DriverTurns(BTreeMap<String, DriverTurn>);

/// The next turn of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DriverTurn {
    at: Instant,
    /// The driver is refreshed in this turn, if its CSIDriver still has a period.
    is_refresh: bool,
}

impl DriverTurns {
    /// Schedules new drivers now and drops drivers that are no longer registered.
    fn follow<'a>(&mut self, now: Instant, names: impl Iterator<Item = &'a String>) {
        let mut known = std::mem::take(&mut self.0);
        let first = DriverTurn { at: now, is_refresh: false };
        self.0 = names.map(|name| (name.clone(), known.remove(name).unwrap_or(first))).collect();
    }

    /// The driver with the earliest turn.
    fn next(&self) -> Option<(String, DriverTurn)> {
        let first = self.0.iter().min_by_key(|(_, turn)| turn.at)?;
        Some((first.0.clone(), *first.1))
    }

    /// Sets the driver's next turn from the period in its CSIDriver.
    fn schedule(&mut self, now: Instant, name: &str, period: Option<Duration>) {
        let turn = match period {
            Some(period) => DriverTurn { at: now + period.max(PERIOD_MIN), is_refresh: true },
            None => DriverTurn { at: now + READ_EVERY, is_refresh: false },
        };
        if let Some(known) = self.0.get_mut(name) {
            *known = turn;
        }
    }
}

/// Refreshes drivers until the registry ends.
pub async fn refresh(objects: Objects, mut drivers: Drivers, refresher: Refresher) {
    let mut turns = DriverTurns::default();
    loop {
        turns.follow(Instant::now(), drivers.snapshot().drivers.keys());
        let next = turns.next();
        let turn = async {
            match &next {
                Some((_, turn)) => tokio::time::sleep_until(turn.at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = drivers.changed() => match changed {
                Some(_) => continue,
                None => return,
            },
            () = turn => {}
        }
        let Some((name, turn)) = next else { continue };
        let period = match objects.driver_spec(&name).await {
            Ok(spec) => spec.limit_period_seconds.and_then(|seconds| u64::try_from(seconds).ok()),
            Err(why) => {
                tracing::debug!(driver = name, %why, "CSIDriver cannot be read");
                None
            }
        };
        if turn.is_refresh && period.is_some() {
            refresher.refresh(&name);
        }
        turns.schedule(Instant::now(), &name, period.map(Duration::from_secs));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csi_driver_is_scheduled_by_the_refresh_period_of_its_object() {
        let now = Instant::now();
        let names = ["a".to_owned(), "b".to_owned()];
        let mut turns = DriverTurns::default();
        turns.follow(now, names.iter());
        assert_eq!(turns.next(), Some(("a".to_owned(), DriverTurn { at: now, is_refresh: false })));
        turns.schedule(now, "a", Some(Duration::from_secs(60)));
        turns.schedule(now, "b", None);
        let next = turns.next().expect("a turn");
        let at = now + Duration::from_secs(60);
        assert_eq!(next, ("a".to_owned(), DriverTurn { at, is_refresh: true }));
        turns.schedule(now, "a", Some(Duration::from_secs(1)));
        assert_eq!(turns.next().expect("a turn").1.at, now + PERIOD_MIN);
        turns.follow(now, names[1..].iter());
        let at = now + READ_EVERY;
        assert_eq!(turns.next(), Some(("b".to_owned(), DriverTurn { at, is_refresh: false })));
        turns.follow(now, [].iter());
        assert_eq!(turns.next(), None);
    }
}
