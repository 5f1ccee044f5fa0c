//! Tables of payloads: keys, paths, modes, and what is refused.

use std::cell::Cell;

use k8s_openapi::api::core::v1::KeyToPath;
use proptest::prelude::*;

use super::super::payload::*;
use super::*;

struct ContentStore;

impl ContentSource for ContentStore {
    async fn certificate(&self, _: &CertificateRequest) -> Result<Credentials, ContentError> {
        Ok(Credentials { key: "K".to_owned(), chain: "C".to_owned() })
    }

    async fn config_map(&self, _: &str, name: &str) -> Result<KeyValues, ContentError> {
        match name {
            "cm" => Ok([("a", "A"), ("b", "B")]
                .map(|(k, v)| (k.to_owned(), v.as_bytes().into()))
                .into()),
            "down" => Err(ContentError::Failed("the API server is down".to_owned())),
            _ => Err(ContentError::NotFound { kind: "configmap", name: name.to_owned() }),
        }
    }

    async fn secret(&self, ns: &str, name: &str) -> Result<KeyValues, ContentError> {
        match name {
            "sec" => self.config_map(ns, "cm").await,
            _ => Err(ContentError::NotFound { kind: "secret", name: name.to_owned() }),
        }
    }

    async fn token(&self, request: &TokenRequest) -> Result<String, ContentError> {
        Ok(format!("{}/{}", request.audience, request.expiration_seconds))
    }
}

fn collected(sources: &PayloadSources) -> Result<Payload, LayoutError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    runtime.block_on(fetch(sources, &ContentStore)).lay_out(sources)
}

fn sources(list: Vec<PayloadSource>) -> PayloadSources {
    let namespace = "default".to_owned();
    PayloadSources { namespace, default_mode: 0o644, list, owner: None, has_group: false }
}

fn keys(name: &str, items: &[(&str, &str, Option<i32>)], optional: bool) -> Keys {
    let item = |(key, path, mode): &(&str, &str, Option<i32>)| KeyToPath {
        key: (*key).to_owned(),
        path: (*path).to_owned(),
        mode: *mode,
    };
    Keys { name: name.to_owned(), items: items.iter().map(item).collect(), optional }
}

/// `path:mode=data` of each file.
fn shown(payload: &Payload) -> Vec<String> {
    let show = |(path, file): (&String, &PayloadFile)| {
        let owner = file.owner.map(|uid| format!(" of {uid}")).unwrap_or_default();
        format!("{path}:{:o}={}{owner}", file.mode, String::from_utf8_lossy(&file.data))
    };
    payload.iter().map(show).collect()
}

#[test]
fn keys_items_modes_and_optional_references_follow_the_api() {
    let cm = PayloadSource::ConfigMap;
    let table = [
        (cm(keys("cm", &[], false)), Ok(vec!["a:644=A", "b:644=B"])),
        (cm(keys("cm", &[("b", "d/./x", Some(0o400))], false)), Ok(vec!["d/x:400=B"])),
        (cm(keys("cm", &[("b", "x", None), ("c", "y", None)], true)), Ok(vec!["x:644=B"])),
        (
            cm(keys("cm", &[("c", "y", None)], false)),
            Err("configmap references non-existent config key: c"),
        ),
        (cm(keys("none", &[], true)), Ok(vec![])),
        (cm(keys("none", &[], false)), Err("configmap \"none\" not found")),
        (cm(keys("down", &[], true)), Err("the API server is down")),
        (
            PayloadSource::Secret(keys("sec", &[("c", "y", None)], false)),
            Err("references non-existent secret key: c"),
        ),
        (PayloadSource::Secret(keys("none", &[], false)), Err("secret \"none\" not found")),
    ];
    for (source, expected) in table {
        let found = collected(&sources(vec![source.clone()]));
        let found = found.map(|payload| shown(&payload)).map_err(|error| error.to_string());
        let expected = expected.map(|files| files.into_iter().map(str::to_owned).collect());
        assert_eq!(found, expected.map_err(str::to_owned), "{source:?}");
    }
}

#[test]
fn later_projected_sources_win_and_all_failures_are_reported() {
    let field = |path: &str, data: &str| PayloadSource::Field {
        path: path.to_owned(),
        mode: Some(0o600),
        data: Ok(data.as_bytes().into()),
    };
    let both = sources(vec![PayloadSource::ConfigMap(keys("cm", &[], false)), field("a", "mine")]);
    assert_eq!(shown(&collected(&both).expect("collected")), ["a:600=mine", "b:644=B"]);
    let failing = sources(vec![
        PayloadSource::Secret(keys("x", &[], false)),
        PayloadSource::TrustBundle(TrustRequest {
            path: "ca".to_owned(),
            name: Some("b".to_owned()),
            signer: None,
            labels: None,
            optional: true,
        }),
    ]);
    let error = collected(&failing).expect_err("two failures");
    let want = "[secret \"x\" not found, ClusterTrustBundle projection is not supported in static \
                kubelet mode]";
    assert_eq!(error.to_string(), want);
}

#[test]
fn a_token_is_private_to_the_user_and_the_group_of_the_pod() {
    let token = PayloadSource::Token(TokenRequest {
        path: "token".to_owned(),
        audience: "vault".to_owned(),
        expiration_seconds: 600,
    });
    let mut of = sources(vec![token]);
    assert_eq!(shown(&collected(&of).expect("collected")), ["token:644=vault/600"]);
    of.has_group = true;
    assert_eq!(shown(&collected(&of).expect("collected")), ["token:600=vault/600"]);
    of.owner = Some(1000);
    assert_eq!(shown(&collected(&of).expect("collected")), ["token:600=vault/600 of 1000"]);
}

#[test]
fn certificate_and_key_are_projected_into_the_requested_files() {
    let path = |path: &str| Some(path.to_owned());
    let request = CertificateRequest {
        bundle_path: path("b"),
        key_path: path("d/k"),
        chain_path: path(""),
        ..CertificateRequest::default()
    };
    let mut of = sources(vec![PayloadSource::Certificate(request)]);
    assert_eq!(shown(&collected(&of).expect("collected")), ["b:644=KC", "d/k:644=K"]);
    of.has_group = true;
    assert_eq!(shown(&collected(&of).expect("collected")), ["b:600=KC", "d/k:600=K"]);
}

/// One object of one large value, and the number of reads.
struct CountedObject(Cell<usize>);

impl ContentSource for CountedObject {
    async fn config_map(&self, _: &str, _: &str) -> Result<KeyValues, ContentError> {
        self.0.set(self.0.get() + 1);
        Ok(KeyValues::from([("k".to_owned(), vec![b'x'; 1 << 20].into())]))
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<KeyValues, ContentError> {
        self.config_map(namespace, name).await
    }

    async fn token(&self, _: &TokenRequest) -> Result<String, ContentError> {
        unreachable!("no token is wanted")
    }

    async fn trust_bundle(&self, _: &TrustRequest) -> Result<Vec<u8>, ContentError> {
        self.0.set(self.0.get() + 1);
        Ok(vec![b'y'; 1 << 20])
    }
}

#[test]
fn object_of_many_sources_in_a_volume_is_fetched_and_held_once() {
    let of = |n: usize| {
        let path = |what: &str| format!("{what}{n}");
        let bundle = TrustRequest {
            path: path("ca"),
            name: Some("b".to_owned()),
            signer: None,
            labels: None,
            optional: false,
        };
        [
            PayloadSource::ConfigMap(keys("o", &[("k", &path("cm"), None)], false)),
            PayloadSource::Secret(keys("o", &[("k", &path("s"), None)], false)),
            PayloadSource::TrustBundle(bundle),
        ]
    };
    let sources = sources((0..1000).flat_map(of).collect());
    let content = CountedObject(Cell::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    let fetched = runtime.block_on(fetch(&sources, &content));
    assert_eq!((content.0.get(), fetched.bytes), (3, 3 << 20));
    let payload = fetched.lay_out(&sources).expect("laid out");
    assert_eq!(payload.len(), 3000);
    for what in ["cm", "s", "ca"] {
        let data = |n: usize| &payload[&format!("{what}{n}")].data;
        assert!((1..1000).all(|n| Arc::ptr_eq(data(0), data(n))), "{what}");
    }
}

#[test]
fn paths_that_leave_the_volume_or_collide_are_refused() {
    let file = PayloadFile { data: Arc::default(), mode: 0o644, owner: None };
    let long = "x".repeat(256);
    let table = [
        ("a", true),
        ("a/b", true),
        ("a..b", true),
        ("a/..b", true),
        ("", false),
        ("/a", false),
        ("..", false),
        ("a/../b", false),
        ("..a", false),
        ("..data", false),
        (long.as_str(), false),
        ("a\0b", false),
    ];
    for (path, allowed) in table {
        let payload = Payload::from([(path.to_owned(), file.clone())]);
        assert_eq!(checked(payload).is_ok(), allowed, "{path:?}");
    }
    let both = ["a", "a/b"].map(|path| (path.to_owned(), file.clone()));
    assert!(checked(both.into()).is_err(), "a file cannot be a directory");
}

proptest! {
    #[test]
    fn an_accepted_path_stays_below_the_volume(path in "[./ab\\x00]{0,12}") {
        let file = PayloadFile { data: Arc::default(), mode: 0o644, owner: None };
        if checked(Payload::from([(path.clone(), file)])).is_ok() {
            prop_assert!(!path.starts_with('/') && !path.is_empty());
            prop_assert!(path.split('/').all(|part| part != ".."));
            prop_assert!(!path.starts_with(".."));
        }
    }
}
