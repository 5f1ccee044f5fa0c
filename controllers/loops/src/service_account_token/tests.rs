//! Syncs of accounts and secrets.
// k8s: pkg/controller/serviceaccount/tokens_controller_test.go TestTokenCreation

use pintle_api_types::request::Answer;
use pintle_controllers_core::frame::{Driven, drive};
use pintle_controllers_core::tables::{Decoded, WatchEvent};

use super::*;
use crate::testing::{applied, at, set};

const CA: &str = "CA Data";

fn account(references: &[&str]) -> Value {
    let references: Vec<_> = references.iter().map(|name| json!({"name": name})).collect();
    json!({"metadata": {"name": "default", "namespace": "n", "uid": "12345",
        "resourceVersion": "1"}, "secrets": references})
}

fn secret(data: Value) -> Value {
    let annotations = json!({NAME_ANNOTATION: "default", UID_ANNOTATION: "12345"});
    json!({"metadata": {"name": "token-secret", "namespace": "n", "uid": "23456",
        "resourceVersion": "7", "annotations": annotations},
        "type": "kubernetes.io/service-account-token", "data": data})
}

fn full() -> Value {
    json!({"token": STANDARD.encode("ABC"), "ca.crt": STANDARD.encode(CA),
        "namespace": STANDARD.encode("n")})
}

fn without(field: &str) -> Value {
    let mut data = full();
    data.as_object_mut().expect("a map").remove(field);
    data
}

/// A controller, what it knows, and what is there.
#[derive(Default)]
struct TokenCluster {
    known: Vec<WatchEvent>,
    account: Option<Value>,
    secret: Option<Value>,
    conflicts: usize,
}

impl TokenCluster {
    fn known_account(mut self) -> Self {
        let account = account(&[]).to_string();
        self.known.push(set(Decoded::typed(SERVICE_ACCOUNTS, &account)));
        self
    }

    fn known_secret(mut self, secret: &Value) -> Self {
        self.known.push(set(Decoded::typed(TOKEN_SECRETS, &secret.to_string())));
        self.secret = Some(secret.clone());
        self
    }

    fn answer(&mut self, request: &Request) -> Answer {
        let gone = || ApiError { code: 404, reason: "NotFound".into(), ..ApiError::default() };
        match request {
            Request::Read { target, .. } if target.kind == SERVICE_ACCOUNTS => {
                self.account.clone().ok_or_else(gone)
            }
            Request::Read { .. } => self.secret.clone().ok_or_else(gone),
            Request::Replace { .. } if self.conflicts > 0 => {
                self.conflicts -= 1;
                Err(ApiError { code: 409, reason: "Conflict".into(), ..ApiError::default() })
            }
            Request::Replace { body, .. } => Ok(body.clone()),
            Request::Delete { .. } => Ok(Value::Null),
            other => panic!("{other:?}"),
        }
    }

    fn sync(mut self, key: &TokenKey) -> Driven<()> {
        let tables = applied(std::mem::take(&mut self.known));
        let Some(work) = controller().snapshot(key, &tables, at(0)) else {
            return Driven {
                failed_notes: Vec::new(),
                outcome: Ok(SyncOutcome::done()),
                requests: Vec::new(),
                events: Vec::new(),
                reasons: Vec::new(),
            };
        };
        drive::<ServiceAccountTokens>(&work, at(0).wall, |request| self.answer(request))
    }
}

fn controller() -> ServiceAccountTokens {
    let signer = TokenSigner::from_pem(include_str!("testdata/ec.pem")).expect("a key");
    ServiceAccountTokens { workers: 1, signer: Rc::new(signer), root_ca: CA.as_bytes().into() }
}

fn account_key() -> TokenKey {
    TokenKey::Account { key: ObjectKey::new("n", "default"), uid: Uid::of("12345") }
}

fn secret_key_of(secret: &Value) -> TokenKey {
    secret_key(&KeptObject::<TokenSecret>::of_value(secret).expect("a good secret"))
}

fn verbs(driven: &Driven<()>) -> Vec<String> {
    let verb = |request: &Request| match request {
        Request::Read { target, .. } => format!("get {}", target.key),
        Request::Replace { target, .. } => format!("update {}", target.key),
        Request::Delete { target, options } => {
            format!("delete {} {}", target.key, options.uid.as_deref().unwrap_or_default())
        }
        other => format!("{other:?}"),
    };
    driven.requests.iter().map(verb).collect()
}

#[test]
fn secrets_of_a_deleted_account_are_deleted() {
    let cluster = TokenCluster::default().known_secret(&secret(full()));
    assert_eq!(verbs(&cluster.sync(&account_key())), ["delete n/token-secret 23456"]);
    let cluster = TokenCluster::default().known_account().known_secret(&secret(full()));
    assert!(verbs(&cluster.sync(&account_key())).is_empty());
    let mut other = secret(full());
    other["metadata"]["annotations"][UID_ANNOTATION] = "other".into();
    let cluster = TokenCluster::default().known_secret(&other);
    assert!(verbs(&cluster.sync(&account_key())).is_empty());
}

#[test]
fn secret_without_an_account_is_deleted_after_a_live_read() {
    let secret = secret(full());
    let cluster = TokenCluster::default().known_secret(&secret);
    let driven = cluster.sync(&secret_key_of(&secret));
    assert_eq!(verbs(&driven), ["get n/default", "delete n/token-secret 23456"]);
    let mut cluster = TokenCluster::default().known_secret(&secret);
    cluster.account = Some(account(&[]));
    assert_eq!(verbs(&cluster.sync(&secret_key_of(&secret))), ["get n/default"]);
}

#[test]
fn missing_or_wrong_fields_of_a_token_secret_are_filled_in() {
    let mut other_ca = full();
    other_ca["ca.crt"] = STANDARD.encode("mismatched").into();
    for (data, field) in [
        (without("token"), "token"),
        (without("ca.crt"), "ca.crt"),
        (other_ca, "ca.crt"),
        (without("namespace"), "namespace"),
        (Value::Null, "token"),
    ] {
        let secret = secret(data);
        let cluster = TokenCluster::default().known_account().known_secret(&secret);
        let driven = cluster.sync(&secret_key_of(&secret));
        assert!(driven.outcome.is_ok());
        let [Request::Read { .. }, Request::Replace { body, .. }] = &*driven.requests else {
            panic!("{:?}", driven.requests)
        };
        assert_eq!(body["data"]["ca.crt"], STANDARD.encode(CA));
        assert_eq!(body["data"]["namespace"], STANDARD.encode("n"));
        let token = body["data"]["token"].as_str().expect("a token");
        let is_signed = token != STANDARD.encode("ABC");
        assert_eq!(is_signed, field == "token");
        assert_eq!(body["type"], "kubernetes.io/service-account-token");
    }
}

#[test]
fn complete_secret_is_left_alone_also_with_a_custom_namespace() {
    let mut custom = full();
    custom["namespace"] = STANDARD.encode("custom").into();
    for data in [full(), custom] {
        let secret = secret(data);
        let cluster = TokenCluster::default().known_account().known_secret(&secret);
        assert!(verbs(&cluster.sync(&secret_key_of(&secret))).is_empty());
    }
}

#[test]
fn secret_that_changed_meanwhile_is_left_to_the_watch() {
    let known = secret(without("token"));
    let mut cluster = TokenCluster::default().known_account().known_secret(&known);
    let mut newer = known.clone();
    newer["metadata"]["resourceVersion"] = "8".into();
    cluster.secret = Some(newer);
    assert_eq!(verbs(&cluster.sync(&secret_key_of(&known))), ["get n/token-secret"]);
}

#[test]
fn reference_to_a_deleted_secret_is_removed() {
    for (references, conflicts, updates) in
        [(&["a", "token-secret"][..], 0, 1), (&["token-secret"], 2, 3), (&["a"], 0, 0)]
    {
        let mut cluster = TokenCluster::default().known_account();
        cluster.account = Some(account(references));
        cluster.conflicts = conflicts;
        let driven = cluster.sync(&secret_key_of(&secret(full())));
        let bodies: Vec<_> = driven
            .requests
            .iter()
            .filter_map(|request| match request {
                Request::Replace { body, .. } => Some(body),
                _ => None,
            })
            .collect();
        assert_eq!(bodies.len(), updates);
        let is_named = |body: &&&Value| body["secrets"].to_string().contains("token-secret");
        assert_eq!(bodies.iter().filter(is_named).count(), 0);
    }
}

#[test]
fn token_names_the_account_and_the_secret() {
    let secret = secret(without("token"));
    let cluster = TokenCluster::default().known_account().known_secret(&secret);
    let driven = cluster.sync(&secret_key_of(&secret));
    let Some(Request::Replace { body, .. }) = driven.requests.last() else { panic!("no update") };
    let token = STANDARD.decode(body["data"]["token"].as_str().unwrap_or_default());
    let token = String::from_utf8(token.expect("Base64")).expect("text");
    let claims = token.split('.').nth(1).expect("three parts");
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims);
    let claims: Value = serde_json::from_slice(&claims.expect("Base64")).expect("JSON");
    assert_eq!(claims["sub"], "system:serviceaccount:n:default");
    assert_eq!(claims["kubernetes.io/serviceaccount/secret.name"], "token-secret");
    assert_eq!(claims["kubernetes.io/serviceaccount/service-account.uid"], "12345");
    assert!(claims.get("exp").is_none());
}

#[test]
fn account_and_secret_changes_wake_their_keys() {
    let mut tables = Tables::default();
    let mut wakes = Wakes::default();
    let mut nameless = secret(full());
    nameless["metadata"] = json!({"name": "x", "namespace": "n", "uid": "x"});
    let events = TokenCluster::default().known_account().known_secret(&secret(full()));
    for event in events.known_secret(&nameless).known {
        for change in tables.apply(event) {
            controller().handle_change(&change, &tables, at(0), &mut wakes);
        }
    }
    let keys: Vec<_> = wakes.waits().map(|(key, _)| key).collect();
    assert_eq!(keys, [&account_key(), &secret_key_of(&secret(full()))]);
}
