//! Records: their form, additions to them, and matching credentials.

use crate::image::pull_credential::{Coordinates, Credential, CredentialSource};
use crate::image::pull_record::{CredentialOwners, Intent, Match, PulledImage, file_name};
use pintle_cri_v1 as v1;
use serde_json::{Value, json};

const NOW: &str = "2026-01-02T03:04:05Z";

fn credential(password: &str, source: CredentialSource) -> Credential {
    let auth = v1::AuthConfig {
        username: "u".to_owned(),
        password: password.to_owned(),
        ..v1::AuthConfig::default()
    };
    Credential { auth, email: String::new(), source }
}

fn at(name: &str, uid: &str) -> Coordinates {
    Coordinates { namespace: "ns".to_owned(), name: name.to_owned(), uid: uid.to_owned() }
}

fn secret(name: &str, uid: &str, password: &str) -> Credential {
    credential(password, CredentialSource::Secret(at(name, uid)))
}

fn account(name: &str, uid: &str) -> Credential {
    credential("p", CredentialSource::ServiceAccount(at(name, uid)))
}

fn node() -> Credential {
    credential("p", CredentialSource::Node)
}

/// A record after pulls with these credentials, one after the other.
fn pulled(image: &str, with: &[Option<Credential>]) -> PulledImage {
    with.iter().fold(PulledImage::new("sha256:id", NOW), |record, credential| {
        let known = CredentialOwners::of_pull(credential.as_ref());
        record.with(image, &known, NOW).unwrap_or(record)
    })
}

fn json_of(record: &PulledImage) -> Value {
    serde_json::from_slice(&record.text()).expect("JSON")
}

// As in k8s: pkg/kubelet/images/pullmanager/testdata
#[test]
fn files_are_those_of_the_kubelet() {
    let intent = Intent::new("docker.io/testing/test:latest");
    let text = "{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\
                \"image\":\"docker.io/testing/test:latest\"}\n";
    assert_eq!(String::from_utf8(intent.text()).expect("text"), text);
    assert_eq!(Intent::read(text.as_bytes()), Some((intent.clone(), true)));
    let old = text.replace("v1beta1", "v1alpha1");
    assert_eq!(Intent::read(old.as_bytes()), Some((intent, false)));
    let name = "sha256-aef2af226629a35d5f3ef0fdbb29fdbebf038d0acd8850590e8c48e1e283aa56";
    assert_eq!(file_name("docker.io/testing/test:latest"), name);

    let record = pulled("docker.io/testing/test:1@sha256:0", &[Some(account("a", "1"))]);
    let text = "{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\
                \"lastUpdatedTime\":\"2026-01-02T03:04:05Z\",\"imageRef\":\"sha256:id\",\
                \"credentialMapping\":{\"docker.io/testing/test\":{\"kubernetesServiceAccounts\":\
                [{\"uid\":\"1\",\"namespace\":\"ns\",\"name\":\"a\"}]}}}\n";
    assert_eq!(String::from_utf8(record.text()).expect("text"), text);
    assert_eq!(PulledImage::read(text.as_bytes()), Some((record.clone(), true)));
    let old = text.replace("v1beta1", "v1alpha1");
    assert_eq!(PulledImage::read(old.as_bytes()), Some((record, false)));
    let bare = PulledImage::new("id", NOW);
    assert_eq!(json_of(&bare).get("credentialMapping"), None);
    for broken in ["", "{}", &text.replace("kind", "sort"), &text.replace("v1beta1", "v2")] {
        assert_eq!(PulledImage::read(broken.as_bytes()), None, "{broken}");
        assert_eq!(Intent::read(broken.as_bytes()), None, "{broken}");
    }
}

// k8s: pkg/kubelet/images/pullmanager/image_pull_manager_test.go TestPulledRecordMergeNewCreds
#[test]
fn pull_record_accumulates_credentials_until_all_node_pods_have_access() {
    let image = "reg/a:1";
    let mapping = |with: &[Option<Credential>]| {
        json_of(&pulled(image, with))["credentialMapping"]["reg/a"].take()
    };
    let s = |name: &str, uid: &str, password: &str| {
        let hash = secret(name, uid, password).hash();
        json!({"uid": uid, "namespace": "ns", "name": name, "credentialHash": hash})
    };
    let two = [Some(secret("b", "1", "p")), Some(secret("a", "2", "q"))];
    assert_eq!(mapping(&two), json!({"kubernetesSecrets": [s("a", "2", "q"), s("b", "1", "p")]}));
    // The same object has another content now.
    let changed = [Some(secret("b", "1", "p")), Some(secret("b", "1", "q"))];
    assert_eq!(mapping(&changed), json!({"kubernetesSecrets": [s("b", "1", "q")]}));
    let both = [Some(secret("b", "1", "p")), Some(account("b", "3")), Some(account("a", "4"))];
    let accounts = json!([{"uid": "4", "namespace": "ns", "name": "a"},
        {"uid": "3", "namespace": "ns", "name": "b"}]);
    let want = json!({"kubernetesSecrets": [s("b", "1", "p")],
        "kubernetesServiceAccounts": accounts});
    assert_eq!(mapping(&both), want);
    let everybody = json!({"nodePodsAccessible": true});
    for credential in [None, Some(node())] {
        let with = [Some(secret("b", "1", "p")), credential, Some(secret("c", "5", "p"))];
        assert_eq!(mapping(&with), everybody);
    }
    let record = pulled(image, &two);
    assert_eq!(
        record.with(image, &CredentialOwners::of_pull(two[0].as_ref()), NOW),
        None,
        "nothing new"
    );
    assert_eq!(record.with(image, &CredentialOwners::default(), NOW), None, "nothing at all");
    // Another name of the same image is another registry to ask.
    assert!(record.known("other/a").is_none() && record.known("reg/a@sha256:0").is_some());
}

// k8s: pkg/kubelet/images/pullmanager/image_pull_manager_test.go TestFileBasedImagePullManager_MustAttemptImagePull
#[test]
fn secret_matches_a_pull_record_by_content_hash_or_object_identity() {
    let record = pulled("reg/a:1", &[Some(secret("s", "1", "p")), Some(account("sa", "9"))]);
    let known = record.known("reg/a:1").expect("known");
    let learned =
        |credential: &Credential| Match::Learned(CredentialOwners::of_pull(Some(credential)));
    let (twin, changed) = (secret("other", "2", "p"), secret("s", "1", "q"));
    let table = [
        (vec![], Match::None),
        (vec![node()], Match::None),
        (vec![secret("s", "1", "p")], Match::Known),
        (vec![secret("s", "2", "q")], Match::None),
        (vec![secret("x", "3", "x"), twin.clone()], learned(&twin)),
        (vec![changed.clone()], learned(&changed)),
        (vec![account("sa", "9")], Match::Known),
        (vec![account("sa", "8")], Match::None),
        // A pod has one account.
        (vec![account("sa", "8"), account("sa", "9")], Match::None),
    ];
    for (credentials, want) in table {
        assert_eq!(known.compare(&credentials), want, "{credentials:?}");
    }
}

#[test]
fn secrets_beyond_the_limit_of_a_pull_record_are_compared_but_not_learned() {
    let mut many: Vec<_> = (0..99).map(|n| Some(secret(&format!("s{n}"), "1", "p"))).collect();
    let (twin, changed) = (secret("other", "2", "p"), secret("s0", "1", "q"));
    let record = pulled("reg/a", &many);
    let known = record.known("reg/a").expect("known");
    assert!(matches!(known.compare(std::slice::from_ref(&twin)), Match::Learned(_)));
    many.push(Some(secret("s99", "1", "p")));
    let record = pulled("reg/a", &many);
    let known = record.known("reg/a").expect("known");
    assert_eq!(known.compare(&[twin]), Match::Known);
    assert_eq!(known.compare(&[changed]), Match::None);
}

#[test]
fn pull_record_without_a_hash_never_matches_by_hash() {
    let text = format!(
        "{{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\
         \"lastUpdatedTime\":\"{NOW}\",\"imageRef\":\"id\",\"credentialMapping\":{{\"reg/a\":\
         {{\"kubernetesSecrets\":[{{\"uid\":\"1\",\"namespace\":\"ns\",\"name\":\"s\",\
         \"credentialHash\":\"\"}}]}}}}}}"
    );
    let (record, _) = PulledImage::read(text.as_bytes()).expect("a record");
    let known = record.known("reg/a").expect("known");
    assert_eq!(known.compare(&[secret("t", "1", "p")]), Match::None);
    assert!(matches!(known.compare(&[secret("s", "1", "p")]), Match::Learned(_)), "the object");
}
