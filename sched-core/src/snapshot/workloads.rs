//! Namespaces, and the workloads that define default topology spread by their selectors.
//!
//! Input: API objects, or the names of removed ones. Output: tables for the compiler. Owner: the
//! writer of the cluster. Bounds: an event of a workload touches its own entry; one of a namespace
//! the classes of its pods. Programs are never dropped for it: the next pod compiles by the current
//! tables, and equal pods share a program with equal content.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, ReplicationController, Service};

use super::cluster::Cluster;
use super::objects::own_key;
use super::sweep::mark_selector;
use crate::intern::{FastMap, Str};
use crate::selector::Selector;
use crate::snapshot::template::Asked;

/// Workloads by namespace and name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners {
    pub(crate) services: FastMap<Str, BTreeMap<Str, BTreeMap<String, String>>>,
    pub(crate) controllers: FastMap<(Str, Str), BTreeMap<String, String>>,
    pub(crate) replica_sets: FastMap<(Str, Str), Selector>,
    pub(crate) stateful_sets: FastMap<(Str, Str), Selector>,
    /// Own labels that some selector ever mentioned, by position in `OWN_KEYS`.
    pub(crate) own_asked: Asked,
    /// Time of the last change of a workload in a namespace, by `clock`; since the last sweep.
    changes: FastMap<Str, u64>,
    clock: u64,
}

impl Owners {
    /// Returns the time of the last change of a workload in a namespace.
    pub(crate) fn changed(&self, namespace: Str) -> u64 {
        self.changes.get(&namespace).copied().unwrap_or_default()
    }

    /// Drops the times, after all templates were dropped.
    pub(super) fn forget_changes(&mut self) {
        self.changes.clear();
    }

    fn change(&mut self, namespace: Str) {
        self.clock += 1;
        self.changes.insert(namespace, self.clock);
    }

    /// A selector mentions these keys. A workload need not select the first pod of a template, so
    /// that compiling alone does not find out.
    fn ask<'a>(&mut self, keys: impl Iterator<Item = &'a str>) {
        keys.filter_map(own_key).for_each(|at| self.own_asked[usize::from(at)] = true);
    }

    /// Calls `mark` with every string that is referred to.
    pub(super) fn words(&self, mark: &mut impl FnMut(Str)) {
        for (namespace, services) in &self.services {
            mark(*namespace);
            services.keys().for_each(|name| mark(*name));
        }
        let sets = self.replica_sets.iter().chain(&self.stateful_sets);
        for ((namespace, name), selector) in sets {
            mark(*namespace);
            mark(*name);
            mark_selector(selector, mark);
        }
        for (namespace, name) in self.controllers.keys() {
            mark(*namespace);
            mark(*name);
        }
    }
}

impl Cluster {
    /// Adds or changes a namespace.
    pub fn set_namespace(&mut self, namespace: &Namespace) {
        let Some(name) = namespace.metadata.name.as_deref() else { return };
        let name = self.interner.intern(name);
        let labels = self.interner.intern_labels(namespace.metadata.labels.iter().flatten());
        if self.namespaces.insert(name, labels) == Some(labels) {
            return;
        }
        self.templates.clear();
        self.select_anew(name);
    }

    /// Removes a namespace object: its namespace then has no labels.
    pub fn remove_namespace(&mut self, name: &str) {
        if let Some(name) = self.interner.find(name)
            && self.namespaces.remove(&name).is_some()
        {
            self.templates.clear();
            self.select_anew(name);
        }
    }

    /// Computes which terms select the classes of a namespace after its labels changed.
    fn select_anew(&mut self, namespace: Str) {
        for class in 0..self.classes.len() as u32 {
            if self.classes[class as usize].namespace != Some(namespace) {
                continue;
            }
            let terms = self.terms_selecting(class);
            if *self.view.counts.class_terms.get(class) != terms {
                *self.view.counts.class_terms.get_mut(class) = terms;
                self.view.counts.terms_version += 1;
                self.view.epoch += 1;
            }
        }
    }

    /// Adds or changes a service.
    pub fn set_service(&mut self, service: &Service) {
        let Some((namespace, name)) = self.identity(&service.metadata) else { return };
        let selector = service.spec.as_ref().and_then(|s| s.selector.clone());
        self.owners.ask(selector.iter().flatten().map(|(key, _)| key.as_str()));
        let services = self.owners.services.entry(namespace).or_default();
        let before = match selector.clone() {
            Some(selector) => services.insert(name, selector),
            None => services.remove(&name),
        };
        if before != selector {
            self.owners.change(namespace);
        }
    }

    /// Removes a service.
    pub fn remove_service(&mut self, namespace: &str, name: &str) {
        let Some((namespace, name)) = self.known(namespace, name) else { return };
        if let Some(services) = self.owners.services.get_mut(&namespace) {
            services.remove(&name);
            if services.is_empty() {
                self.owners.services.remove(&namespace);
            }
            self.owners.change(namespace);
        }
    }

    /// Adds or changes a replication controller.
    pub fn set_replication_controller(&mut self, controller: &ReplicationController) {
        let Some(key) = self.identity(&controller.metadata) else { return };
        let selector = controller.spec.as_ref().and_then(|s| s.selector.clone());
        let selector = selector.unwrap_or_default();
        self.owners.ask(selector.keys().map(String::as_str));
        if self.owners.controllers.insert(key, selector.clone()) != Some(selector) {
            self.owners.change(key.0);
        }
    }

    /// Removes a replication controller.
    pub fn remove_replication_controller(&mut self, namespace: &str, name: &str) {
        if let Some(key) = self.known(namespace, name)
            && self.owners.controllers.remove(&key).is_some()
        {
            self.owners.change(key.0);
        }
    }

    /// Adds or changes a replica set; one with an invalid selector selects nothing.
    pub fn set_replica_set(&mut self, set: &ReplicaSet) {
        let Some(key) = self.identity(&set.metadata) else { return };
        let selector = set.spec.as_ref().map(|s| &s.selector);
        let selector = Selector::from_api(selector, &mut self.interner);
        let selector = selector.unwrap_or(Selector::Nothing);
        if self.owners.replica_sets.get(&key) != Some(&selector) {
            self.ask(&selector);
            self.owners.change(key.0);
            self.owners.replica_sets.insert(key, selector);
        }
    }

    /// Removes a replica set.
    pub fn remove_replica_set(&mut self, namespace: &str, name: &str) {
        if let Some(key) = self.known(namespace, name)
            && self.owners.replica_sets.remove(&key).is_some()
        {
            self.owners.change(key.0);
        }
    }

    /// Adds or changes a stateful set; one with an invalid selector selects nothing.
    pub fn set_stateful_set(&mut self, set: &StatefulSet) {
        let Some(key) = self.identity(&set.metadata) else { return };
        let selector = set.spec.as_ref().map(|s| &s.selector);
        let selector = Selector::from_api(selector, &mut self.interner);
        let selector = selector.unwrap_or(Selector::Nothing);
        if self.owners.stateful_sets.get(&key) != Some(&selector) {
            self.ask(&selector);
            self.owners.change(key.0);
            self.owners.stateful_sets.insert(key, selector);
        }
    }

    /// Removes a stateful set.
    pub fn remove_stateful_set(&mut self, namespace: &str, name: &str) {
        if let Some(key) = self.known(namespace, name)
            && self.owners.stateful_sets.remove(&key).is_some()
        {
            self.owners.change(key.0);
        }
    }

    fn ask(&mut self, selector: &Selector) {
        if let Selector::All(requirements) = selector {
            self.owners.ask(requirements.iter().map(|r| self.interner.text(r.key)));
        }
    }

    fn known(&self, namespace: &str, name: &str) -> Option<(Str, Str)> {
        Some((self.interner.find(namespace)?, self.interner.find(name)?))
    }

    fn identity(
        &mut self,
        metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    ) -> Option<(Str, Str)> {
        let name = self.interner.intern(metadata.name.as_deref()?);
        let namespace = metadata.namespace.as_deref().unwrap_or("default");
        Some((self.interner.intern(namespace), name))
    }
}
