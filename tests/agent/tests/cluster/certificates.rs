//! Certificates that are wrong, late or new: the agent's own, and those of servers and clients.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use pintle_testbed::cluster::{AGENT, NODE, TestCluster};
use pintle_testbed::{LONG, until};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, date_time_ymd};
use serde_json::{Value, json};

use crate::work::Bystander;

/// A pair for the node, in files of a folder of its own.
struct Pair(tempfile::TempDir);

impl Pair {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder that the node sees too"))
    }

    fn cert(&self) -> PathBuf {
        self.0.path().join("node.crt")
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("node.key")
    }

    /// Puts a certificate there that an authority of the cluster signs, until the given year.
    fn issue(&self, test: &TestCluster, authority: &str, until_year: i32) {
        let layout = test.cluster().layout();
        let key = fs::read_to_string(layout.pki(&format!("{authority}.key"))).expect("a key");
        let mut named = CertificateParams::default();
        named.distinguished_name = rcgen::DistinguishedName::new();
        named.distinguished_name.push(DnType::CommonName, authority);
        let issuer = Issuer::new(named, KeyPair::from_pem(&key).expect("a key"));
        let mut wanted = CertificateParams::default();
        wanted.distinguished_name = rcgen::DistinguishedName::new();
        wanted.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        wanted.distinguished_name.push(DnType::CommonName, format!("system:node:{NODE}"));
        wanted.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        wanted.not_before = date_time_ymd(2020, 1, 1);
        wanted.not_after = date_time_ymd(until_year, 1, 1);
        let own = KeyPair::generate().expect("a key");
        let cert = wanted.signed_by(&own, &issuer).expect("signed");
        fs::write(self.key(), own.serialize_pem()).expect("written");
        fs::write(self.cert(), cert.pem()).expect("written");
    }

    fn kubeconfig(&self, test: &TestCluster) -> Value {
        let mut kubeconfig = test.kubeconfig();
        let user = json!({"client-certificate": self.cert(), "client-key": self.key()});
        kubeconfig["users"][0]["user"] = user;
        kubeconfig
    }
}

/// Waits until the agent's log has the words, written after `from` bytes of it.
fn says(test: &TestCluster, from: usize, words: &str) {
    let log = test.cluster().layout().log(AGENT);
    until(LONG, &format!("the agent says {words:?}"), || {
        let text = fs::read(&log)?;
        let text = String::from_utf8_lossy(text.get(from..).unwrap_or_default()).into_owned();
        ensure!(text.contains(words), "{}", xtask::shell::tail(&text, 12));
        Ok(())
    });
}

fn log_bytes(test: &TestCluster) -> usize {
    let log = fs::metadata(test.cluster().layout().log(AGENT)).expect("a log");
    usize::try_from(log.len()).expect("it fits")
}

#[test]
fn a_client_certificate_that_is_no_good_stops_no_pod_and_is_replaced_without_a_restart() {
    let test = TestCluster::take();
    let bystander = Bystander::start(&test, "bystander");
    // As upstream it continues and tries again: only the test could issue a better certificate.
    for (authority, until_year) in [("ca", 2021), ("front", 2090)] {
        let (pair, from) = (Pair::new(), log_bytes(&test));
        pair.issue(&test, authority, until_year);
        test.use_kubeconfig(&pair.kubeconfig(&test));
        says(&test, from, "Unauthorized");
        let pid = test.agent_pid();
        pair.issue(&test, "ca", 2090);
        test.heard_of();
        assert_eq!(test.agent_pid(), pid, "it is the same agent");
        bystander.check(&test);
    }
}

#[test]
fn untrusted_server_certificate_is_logged_and_the_connection_is_retried() {
    let test = TestCluster::take();
    let bystander = Bystander::start(&test, "bystander");
    let pki = |file: &str| test.cluster().layout().pki(file);
    let own = tempfile::tempdir().expect("a folder that the node sees too");
    let authority = own.path().join("ca.crt");
    fs::copy(pki("front.crt"), &authority).expect("copied");
    let mut other = test.kubeconfig();
    other["clusters"][0]["cluster"]["certificate-authority"] = json!(authority);
    let from = log_bytes(&test);
    test.use_kubeconfig(&other);
    says(&test, from, "UnknownIssuer");
    let pid = test.agent_pid();
    // The file is read again when it changes.
    fs::copy(pki("ca.crt"), &authority).expect("copied");
    test.heard_of();
    assert_eq!(test.agent_pid(), pid, "it is the same agent");

    let mut name = test.kubeconfig();
    name["clusters"][0]["cluster"]["tls-server-name"] = json!("other.example");
    let from = log_bytes(&test);
    test.use_kubeconfig(&name);
    says(&test, from, "other.example");
    test.use_own_kubeconfig();
    test.heard_of();
    bystander.check(&test);
}

/// Starts the agent with this kubeconfig and returns its exit code and the last thing it said.
fn ends(test: &TestCluster, kubeconfig: &str) -> Result<(Option<i32>, String)> {
    fs::write(test.cluster().layout().kubeconfig(NODE), kubeconfig)?;
    let mut cmd = test.cluster().agent_command(NODE)?;
    let child = cmd.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut child = Killed(Some(child));
    until(LONG, "the agent ends", || {
        let child = child.0.as_mut().context("a child")?;
        child.try_wait()?.context("it still runs")
    });
    let out = child.0.take().context("a child")?.wait_with_output()?;
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Ok((out.status.code(), said.trim().lines().next_back().unwrap_or_default().to_owned()))
}

/// Ended with the value, if it still runs.
struct Killed(Option<Child>);

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn unusable_kubeconfig_makes_the_agent_exit_1_and_name_the_faulty_field() {
    let test = TestCluster::take();
    let bystander = Bystander::start(&test, "bystander");
    test.cluster().stop(AGENT).expect("the agent stops");
    let user = |field: &str, value: Value| {
        let mut kubeconfig = test.kubeconfig();
        kubeconfig["users"][0]["user"][field] = value;
        kubeconfig.to_string()
    };
    let cluster = |field: &str, value: Value| {
        let mut kubeconfig = test.kubeconfig();
        kubeconfig["clusters"][0]["cluster"][field] = value;
        kubeconfig.to_string()
    };
    let garbled = tempfile::NamedTempFile::new().expect("a file");
    fs::write(&garbled, "no certificate").expect("written");
    let other_key = test.cluster().layout().pki("admin.key");
    let cases = [
        (user("client-certificate", json!("/none.crt")), "client-certificate", "/none.crt"),
        (user("client-key", json!("/none.key")), "client-key", "/none.key"),
        (user("client-key", json!(other_key)), "client-certificate", "key"),
        (user("client-certificate", json!(garbled.path())), "client-certificate", "PEM"),
        (
            cluster("certificate-authority", json!("/none.crt")),
            "certificate-authority",
            "/none.crt",
        ),
        (
            cluster("certificate-authority", json!(garbled.path())),
            "certificate-authority",
            "no certificate in it",
        ),
        (cluster("server", json!("")), "server", "not set"),
        ("{".to_owned(), "kubeconfig", "n1.kubeconfig"),
    ];
    for (kubeconfig, field, words) in cases {
        let (code, said) = ends(&test, &kubeconfig).expect("it can be started");
        assert_eq!(code, Some(1), "{field}: {said}");
        assert!(said.contains(field) && said.contains(words), "{field}, {words}: {said}");
    }
    test.use_own_kubeconfig();
    bystander.check(&test);
}
