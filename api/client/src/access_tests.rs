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
    read_for(text, None)
}

fn read_for(text: &str, server: Option<&str>) -> Result<Access, ConnectError> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("config");
    std::fs::write(&path, text).expect("written");
    Access::read_for(&path, server)
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
fn an_address_without_a_scheme_is_one_of_tls_where_certificates_are_spoken_of() {
    let authority = rcgen::generate_simple_self_signed(["api".to_owned()]).expect("made");
    let authority =
        format!("certificate-authority-data: {}", STANDARD.encode(authority.cert.pem()));
    let secure = "https://api.test:6443/";
    for (trust, want) in [
        ("insecure-skip-tls-verify: true", secure),
        (&*authority, secure),
        ("tls-server-name: x", "http://api.test:6443/"),
    ] {
        let text = GOOD.replace("https://api.test:6443/", "api.test:6443");
        let text = text.replace("insecure-skip-tls-verify: true", trust);
        assert_eq!(read(&text).expect("usable").server.to_string(), want, "{trust}");
    }
}

#[test]
fn another_server_is_asked_as_the_first_one_would_be() {
    let named = GOOD.replace("verify: true", "verify: true, tls-server-name: x");
    let access = read(&named).expect("usable");
    assert_eq!(access.server_name.as_deref(), Some("x"));
    for (address, want) in [
        ("10.0.0.1:6443", "https://10.0.0.1:6443/"),
        ("http://10.0.0.1/", "http://10.0.0.1/"),
        ("[fd00::1]:6443", "https://[fd00::1]:6443/"),
    ] {
        // Whatever the file says of its own, or nothing.
        for text in [named.clone(), GOOD.replace("server: 'https://api.test:6443/', ", "")] {
            let other = read_for(&text, Some(address)).expect("usable");
            assert_eq!((other.server.to_string().as_str(), other.server_name), (want, None));
            assert!(matches!(other.secret, Secret::Token(token) if token == "t"));
        }
    }
    assert!(read_for(&named, Some("ftp://x")).is_err());
    let nobody = Access::anonymous(Path::new("--master"), "127.0.0.1:8080").expect("usable");
    assert_eq!(nobody.server.to_string(), "http://127.0.0.1:8080/");
    assert!(!nobody.has_identity());
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
        ("https://api.test:6443/", "ftp://u:secret@x", "\"ftp://u:xxxxx@x\" has no http"),
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
