//! Keys and certificates that kubeconfigs name, and their folder.
//!
//! Output: files with the names that `generate` uses, made once a run; the same in base64. Their
//! content differs from run to run; their validity does not.

use std::fs;
use std::sync::LazyLock;

use k8s_openapi::ByteString;
use serde_json::{Value, json};

struct Material {
    /// In cargo's folder, since a static is never dropped; each run has its own.
    folder: tempfile::TempDir,
    certificate: Value,
    key: Value,
}

static MATERIAL: LazyLock<Material> = LazyLock::new(|| {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let pair = rcgen::generate_simple_self_signed(["a.example".to_owned()]).expect("a pair");
    let (certificate, key) = (pair.cert.pem(), pair.signing_key.serialize_pem());
    let files = [
        ("ca.crt", certificate.as_str()),
        ("client.crt", &certificate),
        ("client.key", &key),
        ("token", "secret\n"),
        ("empty", " \n"),
    ];
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("written");
    }
    let encoded = |text: &str| json!(ByteString(text.into()));
    Material { certificate: encoded(&certificate), key: encoded(&key), folder }
});

/// The folder, with the files in it.
pub(crate) fn folder() -> &'static str {
    MATERIAL.folder.path().to_str().expect("a path of letters")
}

/// A certificate in base64.
pub(crate) fn certificate() -> &'static Value {
    &MATERIAL.certificate
}

/// Its key in base64.
pub(crate) fn key() -> &'static Value {
    &MATERIAL.key
}
