//! What is said about kubeconfigs that cannot be used, and what is made of those that can.

use super::*;

const GOOD: &str = "apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: 'https://api.test:6443/', insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: t}}]
";

fn read(text: &str) -> Result<Access, ConnectError> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("config");
    std::fs::write(&path, text).expect("written");
    Access::read(&path)
}

#[test]
fn a_good_file_says_where_and_who() {
    let access = read(GOOD).expect("usable");
    assert_eq!(access.server.to_string(), "https://api.test:6443/");
    assert!(access.has_identity());
    assert_eq!(access.namespace, "default");
    assert!(matches!(access.secret, Secret::Token(token) if token == "t"));
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
        ("user: u}", "user: x}", "there is no user \"x\""),
        ("https://api.test:6443/", "", "server: it is not set; write it as https://HOST:PORT"),
        ("https://api.test:6443/", "ftp://x", "has no http or https scheme"),
        ("token: t", "client-certificate-data: '*'", "client-certificate-data: Invalid"),
        ("token: t", "client-certificate-data: aGk=", "client-key: there is a client certif"),
        ("token: t", "client-certificate: /none, client-key: /none", "/none: No such file"),
        ("token: t", "tokenFile: /none", "tokenFile: /none: No such file"),
        ("token: t", "auth-provider: {name: gcp}", "\"gcp\" is gone from Kubernetes; use exec"),
        ("token: t", "exec: {apiVersion: v9, command: x}", "exec.apiVersion: \"v9\""),
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
    assert!(garbled.contains("line 1") && garbled.contains("kubectl --kubeconfig"), "{garbled}");
    assert_eq!(garbled.lines().count(), 1, "one sentence: {garbled}");
}

#[test]
fn a_pod_has_its_account() {
    let dir = tempfile::tempdir().expect("a folder");
    let error = |host: &str| match Access::of_account(dir.path(), host, "443") {
        Err(error) => error.to_string(),
        Ok(_) => panic!("there is no account"),
    };
    assert!(error("10.0.0.1").contains("ca.crt: No such file"), "{}", error("10.0.0.1"));
    let authority = rcgen::generate_simple_self_signed(["api".to_owned()]).expect("made");
    std::fs::write(dir.path().join("ca.crt"), authority.cert.pem()).expect("written");
    assert!(error("10.0.0.1").contains("token: No such file"), "{}", error("10.0.0.1"));
    std::fs::write(dir.path().join("token"), "t").expect("written");
    for (host, server) in [("10.0.0.1", "https://10.0.0.1/"), ("fd00::1", "https://[fd00::1]/")] {
        let access = Access::of_account(dir.path(), host, "443").expect("usable");
        let shown = access.server.to_string().replace(":443", "");
        assert_eq!(shown, server);
        assert!(matches!(&access.secret, Secret::File(path) if path.ends_with("token")));
    }
}
