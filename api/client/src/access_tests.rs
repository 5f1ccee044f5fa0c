//! Errors of kubeconfigs that cannot be used, and access made of those that can.

use super::*;

const GOOD: &str = "apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: 'https://api.test:6443/', insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: t}}]
";

fn read(text: &str) -> Result<Access, ConnectError> {
    read_for(text, None)
}

fn read_for(text: &str, server: Option<&str>) -> Result<Access, ConnectError> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("config");
    std::fs::write(&path, text).expect("written");
    Access::read_for(&path, server)
}

#[test]
fn kubeconfig_yields_server_namespace_and_credentials() {
    let access = read(GOOD).expect("usable");
    assert_eq!(access.server.to_string(), "https://api.test:6443/");
    assert!(access.has_identity());
    assert_eq!(access.namespace, "default");
    assert!(matches!(access.secret, Secret::Token(token) if token == "t"));
}

#[test]
fn server_without_tls_never_gets_credentials_of_the_kubeconfig() {
    // Also where the file speaks of certificates: the address alone decides.
    for (address, want) in [
        ("api.test:6443", "http://api.test:6443/"),
        ("http://api.test/a?b=c#d", "http://api.test/a"),
    ] {
        let access = read(&GOOD.replace("https://api.test:6443/", address)).expect("usable");
        assert_eq!(access.server.to_string(), want);
        assert!(!access.has_identity() && !access.trusts_anyone(), "{address}");
    }
}

#[test]
fn other_server_replaces_address_and_name_of_the_file() {
    let named = GOOD.replace("verify: true", "verify: true, tls-server-name: x");
    let access = read(&named).expect("usable");
    assert_eq!(access.server_name.as_deref(), Some("x"));
    for (address, want) in [
        ("https://10.0.0.1:6443", "https://10.0.0.1:6443/"),
        ("http://10.0.0.1/", "http://10.0.0.1/"),
        ("[fd00::1]:6443", "http://[fd00::1]:6443/"),
    ] {
        // With and without an address in the file.
        for text in [named.clone(), GOOD.replace("server: 'https://api.test:6443/', ", "")] {
            let other = read_for(&text, Some(address)).expect("usable");
            assert_eq!(
                (other.server.to_string().as_str(), other.server_name.clone()),
                (want, None)
            );
            assert_eq!(other.has_identity(), want.starts_with("https"), "{address}");
        }
    }
    assert!(read_for(&named, Some("ftp://x")).is_err());
    let nobody = Access::anonymous(Path::new("--master"), "127.0.0.1:8080").expect("usable");
    assert_eq!(nobody.server.to_string(), "http://127.0.0.1:8080/");
    assert!(!nobody.has_identity());
}

#[test]
fn credentials_are_chosen_as_client_go_chooses_them() {
    let user = |user: &str| read(&GOOD.replace("token: t", user)).expect(user).secret;
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: x}";
    assert!(matches!(user(exec), Secret::Plugin(_)));
    assert!(matches!(user(&format!("token: t, {exec}")), Secret::Token(token) if token == "t"));
    assert!(matches!(user(&format!("username: u, {exec}")), Secret::Basic(both) if both == "dTo="));
    assert!(matches!(user("password: p"), Secret::None), "a password of no user");
    assert!(matches!(user("client-key: /none"), Secret::None), "a key of no certificate");
    let file = user("token: t, tokenFile: none");
    let Secret::File { path, fallback } = file else { panic!("a file is named") };
    assert!(path.is_absolute() && path.ends_with("none") && fallback.as_deref() == Some("t"));
    let unknown = read(&GOOD.replace("user: u}", "user: x}")).expect("anonymous");
    assert!(!unknown.has_identity());
}

#[test]
fn every_problem_names_file_field_and_remedy() {
    let changed = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        match read(&GOOD.replace(from, to)) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{to} was accepted"),
        }
    };
    for (from, to, want) in [
        ("current-context: c", "", "current-context: it is not set; name one of contexts"),
        ("current-context: c", "current-context: x", "there is no context \"x\""),
        ("cluster: k, user", "cluster: x, user", "there is no cluster \"x\""),
        ("https://api.test:6443/", "", "server: it is not set; write it as https://HOST:PORT"),
        ("https://api.test:6443/", "ftp://x", "has no http or https scheme"),
        ("https://api.test:6443/", "ftp://u:secret@x", "\"ftp://u:xxxxx@x\" has no http"),
        ("token: t", "client-certificate-data: '*'", "users[0].user.client-certificate-data: the"),
        ("token: t", "token: t, username: u", "token: there is also a username"),
        ("token: t", "as-uid: u", "as: it is not set, but what belongs to it is"),
        ("token: t", "client-certificate-data: aGk=", "client-key: there is a client certif"),
        ("token: t", "client-certificate: /none, client-key: /none", "/none: No such file"),
        ("token: t", "tokenFile: /none", "tokenFile: /none: No such file"),
        ("token: t", "auth-provider: {name: gcp}", "\"gcp\" is gone from Kubernetes; use exec"),
        (
            "token: t",
            "exec: {apiVersion: v9, command: x, interactiveMode: Never}",
            "exec.apiVersion: \"v9\"",
        ),
        (
            "insecure-skip-tls-verify: true",
            "certificate-authority-data: aGk=",
            "certificate-authority: there is no certificate in it; give the PEM certificates",
        ),
        (
            "insecure-skip-tls-verify: true",
            "certificate-authority: /none",
            "certificate-authority: /none: No such file",
        ),
        (
            "insecure-skip-tls-verify: true",
            "insecure-skip-tls-verify: true, certificate-authority-data: aGk=",
            "insecure-skip-tls-verify: there is also a certificate-authority; set one of them",
        ),
        (
            "insecure-skip-tls-verify: true",
            "insecure-skip-tls-verify: true, proxy-url: 'ftp://x'",
            "proxy-url: the scheme \"ftp\" is not known; use http://",
        ),
    ] {
        let said = changed(from, to);
        assert!(said.contains(want), "{to}: {said}");
        assert!(said.starts_with("kubeconfig /"), "{said}");
    }
    let none = Access::read(Path::new("/none")).err().expect("no file").to_string();
    assert!(none.contains("kubeconfig /none") && none.contains("No such file"), "{none}");
    let garbled = read("a: [").err().expect("no YAML").to_string();
    assert!(garbled.contains("line 2") && garbled.contains("kubectl --kubeconfig"), "{garbled}");
    assert_eq!(garbled.lines().count(), 1, "one sentence: {garbled}");
}

#[test]
fn in_cluster_access_reads_service_account_token_and_ca() {
    let dir = tempfile::tempdir().expect("a folder");
    let error = |host: &str| match Access::of_account(dir.path(), host, "443") {
        Err(error) => error.to_string(),
        Ok(_) => panic!("there is no account"),
    };
    assert!(error("10.0.0.1").contains("token: No such file"), "{}", error("10.0.0.1"));
    std::fs::write(dir.path().join("token"), "t").expect("written");
    assert!(error("10.0.0.1").contains("ca.crt: No such file"), "{}", error("10.0.0.1"));
    let authority = rcgen::generate_simple_self_signed(["api".to_owned()]).expect("made");
    std::fs::write(dir.path().join("ca.crt"), authority.cert.pem()).expect("written");
    for (host, server) in [("10.0.0.1", "https://10.0.0.1/"), ("fd00::1", "https://[fd00::1]/")] {
        let access = Access::of_account(dir.path(), host, "443").expect("usable");
        let shown = access.server.to_string().replace(":443", "");
        assert_eq!(shown, server);
        assert!(matches!(&access.secret, Secret::File { path, .. } if path.ends_with("token")));
    }
}
