//! The keys and certificates of a cluster, and a kubeconfig for each user of its API.
//!
//! Made by `openssl`, once per cluster: a CA for the API, another for the front proxy (which
//! aggregated API servers trust), the key that signs service account tokens, and a certificate per
//! component. Elliptic keys, because two dozen RSA keys would take seconds.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use super::layout::{API_SERVICE, CONTROL, Layout};
use crate::shell::capture;

/// How long certificates are valid; no test cluster lives as long.
const DAYS: &str = "30";
/// Users of the API besides the nodes: name, and the certificate subject that gives their rights.
const USERS: [(&str, &str); 6] = [
    ("admin", "/O=system:masters/CN=admin"),
    ("controllers", "/CN=system:kube-controller-manager"),
    ("scheduler", "/CN=system:kube-scheduler"),
    ("proxy", "/CN=system:kube-proxy"),
    ("metrics-server", "/CN=system:metrics-server"),
    ("shadow", "/CN=pintle-shadow"),
];

/// Makes everything that is missing for a cluster with these nodes.
pub(super) fn ensure(layout: &Layout, nodes: &[String]) -> Result<()> {
    let done = layout.pki("done");
    if done.exists() {
        return Ok(());
    }
    let dir = layout.pki("");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    authority(&dir, "ca")?;
    authority(&dir, "front")?;
    let mut key = openssl(&dir);
    // Not `genpkey`: the API server wants a key in the older form, with an EC header.
    key.args(["ecparam", "-name", "prime256v1", "-genkey", "-noout"]);
    capture(key.args(["-out", "accounts.key"]))?;
    certificate(&dir, "apiserver", "ca", "/CN=kube-apiserver", &api_names())?;
    certificate(&dir, "apiserver-kubelet", "ca", "/O=system:masters/CN=apiserver", "")?;
    certificate(&dir, "front-client", "front", "/CN=front-proxy", "")?;
    let nodes = nodes.iter().map(|n| (n.as_str(), format!("/O=system:nodes/CN=system:node:{n}")));
    let users = USERS.iter().map(|(user, subject)| (*user, (*subject).to_owned()));
    for (user, subject) in users.chain(nodes) {
        certificate(&dir, user, "ca", &subject, "")?;
        fs::write(layout.kubeconfig(user), kubeconfig(layout, user))?;
    }
    Ok(fs::write(done, "")?)
}

/// All names under which the API server is called.
fn api_names() -> String {
    let names = ["", ".default", ".default.svc", ".default.svc.cluster.local"];
    let names = names.map(|suffix| format!("DNS:kubernetes{suffix}"));
    format!("{},IP:{API_SERVICE},IP:{CONTROL},IP:127.0.0.1", names.join(","))
}

fn authority(dir: &Path, name: &str) -> Result<()> {
    let mut cmd = request(dir, name, &format!("/CN={name}"));
    cmd.args(["-addext", "basicConstraints=critical,CA:TRUE"]);
    cmd.args(["-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"]);
    capture(&mut cmd).map(drop)
}

fn certificate(dir: &Path, name: &str, ca: &str, subject: &str, alt_names: &str) -> Result<()> {
    let mut cmd = request(dir, name, subject);
    cmd.args(["-CA", &format!("{ca}.crt"), "-CAkey", &format!("{ca}.key")]);
    cmd.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    cmd.args(["-addext", "extendedKeyUsage=clientAuth,serverAuth"]);
    if !alt_names.is_empty() {
        cmd.args(["-addext", &format!("subjectAltName={alt_names}")]);
    }
    capture(&mut cmd).map(drop)
}

/// A new key and a certificate for it; without an authority it is signed by itself.
fn request(dir: &Path, name: &str, subject: &str) -> Command {
    let mut cmd = openssl(dir);
    // Without a configuration the extensions are those that the caller names, and no others.
    cmd.args(["req", "-x509", "-nodes", "-config", "/dev/null", "-days", DAYS]);
    cmd.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    cmd.args(["-subj", subject]);
    cmd.args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.crt")]);
    cmd
}

fn openssl(dir: &Path) -> Command {
    let mut cmd = Command::new("openssl");
    cmd.current_dir(dir);
    cmd
}

/// A kubeconfig, as JSON, which is YAML too.
fn kubeconfig(layout: &Layout, user: &str) -> String {
    let pki = |file: String| layout.pki(&file);
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "pintle", "cluster": {
            "server": format!("https://{CONTROL}:6443"),
            "certificate-authority": pki("ca.crt".to_owned()),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate": pki(format!("{user}.crt")),
            "client-key": pki(format!("{user}.key")),
        }}],
        "contexts": [{"name": "pintle", "context": {"cluster": "pintle", "user": user}}],
        "current-context": "pintle",
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_signed_by_their_authority_and_name_the_api_server() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let layout = Layout::in_folder("t", dir.path());
        ensure(&layout, &["n1".to_owned()]).expect("made");
        for (name, ca) in [("apiserver", "ca"), ("n1", "ca"), ("front-client", "front")] {
            let mut verify = openssl(&layout.pki(""));
            verify.args(["verify", "-CAfile", &format!("{ca}.crt"), &format!("{name}.crt")]);
            capture(&mut verify).expect("the chain holds");
        }
        let mut show = openssl(&layout.pki(""));
        show.args(["x509", "-in", "apiserver.crt", "-noout", "-ext", "subjectAltName"]);
        let names = capture(&mut show).expect("readable");
        assert!(names.contains("IP Address:10.96.0.1"), "{names}");
        let config = fs::read_to_string(layout.kubeconfig("n1")).expect("a kubeconfig");
        assert!(config.contains("n1.key"), "{config}");
    }
}
