//! Service accounts: each active namespace has the account `default`.
//!
//! Reads namespaces and service accounts. Writes: creations of service accounts. Pods cannot be
//! created in a namespace before its account is there.
// k8s: pkg/controller/serviceaccount/serviceaccounts_controller.go

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{Kind, NAMESPACES, SERVICE_ACCOUNTS};
use pintle_api_types::request::Request;
use pintle_controllers_core::frame::{
    Controller, Now, SyncOutcome, Transcript, TranscriptStop, Wakes,
};
use pintle_controllers_core::tables::{Change, Tables};
use serde_json::json;

/// The controller.
#[derive(Debug)]
pub struct ServiceAccounts {
    /// Syncs at once; upstream always has one.
    pub workers: usize,
    /// The names of the accounts of each namespace.
    pub names: Vec<String>,
}

impl Default for ServiceAccounts {
    // k8s: serviceaccounts_controller.go DefaultServiceAccountsControllerOptions
    fn default() -> Self {
        Self { workers: 1, names: vec!["default".to_owned()] }
    }
}

/// An active namespace that lacks accounts.
#[derive(Debug)]
pub struct MissingAccounts {
    namespace: String,
    missing: Vec<String>,
}

impl Controller for ServiceAccounts {
    type Key = ObjectKey;
    type Snapshot = MissingAccounts;
    type Note = ();

    const NAME: &'static str = "serviceaccount-controller";

    fn key_of(object: &ObjectKey) -> Option<ObjectKey> {
        Some(object.clone())
    }

    fn kinds(&self) -> Vec<Kind> {
        vec![NAMESPACES, SERVICE_ACCOUNTS]
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn handle_change(&mut self, change: &Change, _: &Tables, _: Now, wake: &mut Wakes<ObjectKey>) {
        match change {
            Change::Namespace(delta) => {
                if let Some(namespace) = &delta.new {
                    wake.now(namespace.metadata.key());
                }
            }
            Change::ServiceAccount(delta) if delta.new.is_none() => {
                wake.now(ObjectKey::new("", &delta.object().metadata.namespace));
            }
            _ => {}
        }
    }

    fn snapshot(&mut self, key: &ObjectKey, tables: &Tables, _: Now) -> Option<MissingAccounts> {
        tables.namespaces.get(key).filter(|namespace| namespace.is_active())?;
        let is_missing = |name: &&String| {
            tables.service_accounts.get(&ObjectKey::new(key.name(), name)).is_none()
        };
        let missing: Vec<_> = self.names.iter().filter(is_missing).cloned().collect();
        (!missing.is_empty()).then(|| MissingAccounts { namespace: key.name().to_owned(), missing })
    }

    fn sync(
        snapshot: &MissingAccounts,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        let create = |name: &String| Request::Create {
            kind: SERVICE_ACCOUNTS,
            namespace: snapshot.namespace.clone(),
            below: None,
            body: json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": name, "namespace": snapshot.namespace}}),
        };
        let answers = transcript.send_all(snapshot.missing.iter().map(create).collect())?;
        let mut failures = Vec::new();
        for (name, answer) in snapshot.missing.iter().zip(answers) {
            match answer {
                Err(error) if error.is_already_exists() || error.is_namespace_terminating() => {}
                Err(error) => failures.push(error.message),
                Ok(_) => transcript.because(format!("created the missing service account {name}")),
            }
        }
        match failures.is_empty() {
            true => Ok(SyncOutcome::done()),
            false => Err(TranscriptStop::failed(failures.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use pintle_api_types::request::{Answer, ApiError};
    use pintle_controllers_core::frame::{Driven, drive};
    use pintle_controllers_core::kept::KeptObject;
    use pintle_controllers_core::tables::{Decoded, WatchEvent};
    use serde_json::Value;

    use super::*;
    use crate::testing::{applied, at, set};

    fn namespace(phase: &str) -> WatchEvent {
        let value = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
            "status": {"phase": phase}});
        set(Decoded::typed(NAMESPACES, &value.to_string()))
    }

    fn account(name: &str) -> WatchEvent {
        let value = json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": "2"}});
        set(Decoded::typed(SERVICE_ACCOUNTS, &value.to_string()))
    }

    fn synced(events: Vec<WatchEvent>, answer: Answer) -> Option<Driven<()>> {
        let tables = applied(events);
        let mut controller =
            ServiceAccounts { names: vec!["default".into(), "other".into()], workers: 1 };
        let snapshot = controller.snapshot(&ObjectKey::new("", "n"), &tables, at(0))?;
        Some(drive::<ServiceAccounts>(&snapshot, at(0).wall, |_| answer.clone()))
    }

    fn created(driven: Option<Driven<()>>) -> Vec<String> {
        let requests = driven.map(|driven| driven.requests).unwrap_or_default();
        let name = |request: Request| match request {
            Request::Create { body, .. } => body["metadata"]["name"].to_string(),
            other => panic!("{other:?}"),
        };
        requests.into_iter().map(name).collect()
    }

    // k8s: serviceaccounts_controller_test.go TestServiceAccountCreation
    #[test]
    fn active_namespace_gets_the_accounts_that_it_lacks() {
        let quoted = |names: &[&str]| names.iter().map(|n| format!("{n:?}")).collect::<Vec<_>>();
        for (events, expected) in [
            (vec![namespace("Active")], vec!["default", "other"]),
            (vec![namespace("Active"), account("other")], vec!["default"]),
            (vec![namespace("Active"), account("default"), account("other")], vec![]),
            (vec![namespace("Terminating")], vec![]),
            (vec![], vec![]),
        ] {
            assert_eq!(created(synced(events, Ok(Value::Null))), quoted(&expected));
        }
    }

    #[test]
    fn creation_fails_for_errors_other_than_termination_and_presence() {
        let error = |reason: &str, cause: &str| ApiError {
            reason: reason.into(),
            causes: vec![cause.into()],
            ..ApiError::default()
        };
        for (error, is_failure) in [
            (error("AlreadyExists", ""), false),
            (error("Forbidden", "NamespaceTerminating"), false),
            (error("Forbidden", ""), true),
        ] {
            let driven = synced(vec![namespace("Active")], Err(error)).expect("accounts lack");
            assert_eq!(driven.outcome.is_err(), is_failure);
        }
    }

    #[test]
    fn deletion_of_an_account_wakes_its_namespace() {
        let tables = Tables::default();
        let text = json!({"metadata": {"name": "default", "namespace": "n"}}).to_string();
        let gone = std::rc::Rc::new(KeptObject::decode(&text).expect("a good account"));
        let change = Change::ServiceAccount(pintle_controllers_core::tables::Delta {
            old: Some(gone),
            new: None,
        });
        let mut wakes = Wakes::default();
        ServiceAccounts::default().handle_change(&change, &tables, at(0), &mut wakes);
        let keys: Vec<_> = wakes.waits().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["n"]);
    }
}
