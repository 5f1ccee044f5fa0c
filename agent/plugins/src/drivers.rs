//! The CSI drivers that are registered on this node, as shared snapshots.
//!
//! Input: what the registry publishes. Output: snapshots, cheap to take, and what changed between
//! two of them. A late reader misses only intermediate states: a driver that was unregistered and
//! registered again in between has another `registration` and counts as registered. Bound: one
//! driver a socket.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::csi::{Capabilities, Node, NodeFacts};

/// A registered driver.
#[derive(Clone, Debug)]
pub struct RegisteredDriver {
    /// Its name.
    pub name: String,
    /// Counts registrations on this node: another number is another socket, or a newer one.
    pub registration: u64,
    /// What it says about the node.
    pub facts: NodeFacts,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Its service.
    pub node: Node,
}

/// A socket of an unregistered plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unregistered {
    /// The registration socket.
    pub socket: PathBuf,
    /// Why not, in words for people; `None` while the plugin is being asked for the first time.
    pub problem: Option<String>,
}

/// All that is known about plugins.
#[derive(Clone, Debug, Default)]
pub struct Plugins {
    /// Registered drivers by name.
    pub drivers: BTreeMap<String, Arc<RegisteredDriver>>,
    /// Sockets of unregistered plugins.
    pub unregistered: Vec<Unregistered>,
}

/// A difference between two snapshots.
#[derive(Clone, Debug)]
pub enum DriverChange {
    /// A driver was registered, perhaps in the place of another of that name.
    Registered(Arc<RegisteredDriver>),
    /// The driver says something else about itself.
    Updated(Arc<RegisteredDriver>),
    /// No driver has that name any more.
    Gone(String),
}

/// What changed from one snapshot to another, by name.
pub fn changes(before: &Plugins, after: &Plugins) -> Vec<DriverChange> {
    let gone = before.drivers.keys().filter(|name| !after.drivers.contains_key(*name));
    let mut changes: Vec<_> = gone.cloned().map(DriverChange::Gone).collect();
    for (name, driver) in &after.drivers {
        match before.drivers.get(name) {
            Some(known) if known.registration == driver.registration => {
                let is_same =
                    known.facts == driver.facts && known.capabilities == driver.capabilities;
                if !is_same {
                    changes.push(DriverChange::Updated(Arc::clone(driver)));
                }
            }
            _ => changes.push(DriverChange::Registered(Arc::clone(driver))),
        }
    }
    changes
}

/// Reads what is registered.
#[derive(Clone, Debug)]
pub struct Drivers {
    plugins: watch::Receiver<Arc<Plugins>>,
}

impl Drivers {
    pub(crate) fn new(plugins: watch::Receiver<Arc<Plugins>>) -> Self {
        Self { plugins }
    }

    /// None are registered, and none will be: for an agent without the folder, and for tests.
    pub fn none() -> Self {
        Self { plugins: watch::channel(Arc::default()).1 }
    }

    /// A driver by its name.
    pub fn find(&self, name: &str) -> Option<Arc<RegisteredDriver>> {
        self.plugins.borrow().drivers.get(name).cloned()
    }

    /// All that is known now.
    pub fn snapshot(&self) -> Arc<Plugins> {
        Arc::clone(&self.plugins.borrow())
    }

    /// Waits for another state than this reader has seen; `None` when there will be none.
    pub async fn changed(&mut self) -> Option<Arc<Plugins>> {
        self.plugins.changed().await.ok()?;
        Some(Arc::clone(&self.plugins.borrow_and_update()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn plugins(drivers: &[(&str, u64, i32)]) -> Plugins {
        let driver = |(name, registration, limit): &(&str, u64, i32)| {
            let driver = RegisteredDriver {
                name: (*name).to_owned(),
                registration: *registration,
                facts: NodeFacts { max_volumes: Some(*limit), ..NodeFacts::default() },
                capabilities: Capabilities::default(),
                node: Node::new(Path::new("/x")),
            };
            ((*name).to_owned(), Arc::new(driver))
        };
        Plugins { drivers: drivers.iter().map(driver).collect(), unregistered: Vec::new() }
    }

    #[test]
    fn changes_report_removed_new_reregistered_and_updated_drivers() {
        let before = plugins(&[("a", 1, 5), ("b", 2, 5), ("c", 3, 5), ("d", 4, 5)]);
        let after = plugins(&[("b", 2, 5), ("c", 5, 5), ("d", 4, 6), ("e", 6, 5)]);
        let shown = |change: &DriverChange| match change {
            DriverChange::Registered(driver) => format!("+{}", driver.name),
            DriverChange::Updated(driver) => format!("~{}", driver.name),
            DriverChange::Gone(name) => format!("-{name}"),
        };
        let shown: Vec<_> = changes(&before, &after).iter().map(shown).collect();
        assert_eq!(shown, ["-a", "+c", "~d", "+e"]);
    }

    #[tokio::test]
    async fn a_reader_without_a_registry_has_none_and_hears_of_no_change() {
        let mut drivers = Drivers::none();
        assert!(drivers.find("a").is_none() && drivers.snapshot().drivers.is_empty());
        assert!(drivers.changed().await.is_none());
    }
}
