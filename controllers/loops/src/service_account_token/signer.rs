//! Signs tokens of service accounts with the key of `--service-account-private-key-file`.
//!
//! Input: a private key in PEM (PKCS#1, SEC 1 or PKCS#8), and claims. Output: a JSON Web Token. RSA
//! signatures with 2,048 to 4,096 bits, and the curves P-256 and P-384; P-521 is refused, because
//! the library has no such signatures.
// k8s: pkg/serviceaccount/jwt.go JWTTokenGenerator

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::rsa;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, KeyPair as _, RSA_PKCS1_SHA256,
};
use serde_json::{Value, json};

use super::der;

/// Why tokens cannot be signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SigningKeyError {
    /// The file has no private key.
    #[error("data does not contain a valid RSA or ECDSA private key")]
    NoKey,
    /// The key is of a kind that cannot be used.
    #[error("the private key cannot be used: {0}")]
    Unsupported(String),
    /// The signature failed.
    #[error("the token could not be signed")]
    Sign,
}

/// Signs tokens.
pub struct TokenSigner {
    key: SigningKey,
    algorithm: &'static str,
    key_id: String,
    random: SystemRandom,
}

enum SigningKey {
    Rsa(rsa::KeyPair),
    Ecdsa(EcdsaKeyPair),
}

/// A curve: its object identifier, the signature, and its name in tokens.
struct Curve {
    oid: &'static [u8],
    signing: &'static EcdsaSigningAlgorithm,
    algorithm: &'static str,
}

const CURVES: [Curve; 2] = [
    Curve {
        oid: &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
        signing: &ECDSA_P256_SHA256_FIXED_SIGNING,
        algorithm: "ES256",
    },
    Curve {
        oid: &[0x2b, 0x81, 0x04, 0x00, 0x22],
        signing: &ECDSA_P384_SHA384_FIXED_SIGNING,
        algorithm: "ES384",
    },
];
/// The object identifier of RSA keys.
const RSA_OID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// The object identifier of keys on curves.
const EC_OID: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];

impl TokenSigner {
    /// Reads the first private key of a file; other blocks are skipped.
    ///
    /// # Errors
    /// When there is no key, or none that can be used.
    // k8s: staging/src/k8s.io/client-go/util/keyutil/key.go ParsePrivateKeyPEM
    pub fn from_pem(text: &str) -> Result<Self, SigningKeyError> {
        let mut failure = SigningKeyError::NoKey;
        for block in text.split("-----BEGIN ").skip(1) {
            let Some((label, rest)) = block.split_once("-----") else { continue };
            let body = rest.split("-----END ").next().unwrap_or_default();
            let body: String = body.split_whitespace().collect();
            let Ok(der) = STANDARD.decode(body) else { continue };
            let signer = match label {
                "RSA PRIVATE KEY" => Self::of_rsa(rsa::KeyPair::from_der(&der)),
                "EC PRIVATE KEY" => Self::of_sec1(&der),
                "PRIVATE KEY" => Self::of_pkcs8(&der),
                _ => continue,
            };
            match signer {
                Ok(signer) => return Ok(signer),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn of_rsa(
        key: Result<rsa::KeyPair, ring::error::KeyRejected>,
    ) -> Result<Self, SigningKeyError> {
        let key = key.map_err(|error| SigningKeyError::Unsupported(error.to_string()))?;
        let algorithm = [der::item(der::OID, RSA_OID), der::item(der::NULL, &[])].concat();
        let key_id = key_id(&algorithm, key.public().as_ref());
        let random = SystemRandom::new();
        Ok(Self { key: SigningKey::Rsa(key), algorithm: "RS256", key_id, random })
    }

    fn of_curve(curve: &Curve, key: EcdsaKeyPair) -> Self {
        let algorithm = [der::item(der::OID, EC_OID), der::item(der::OID, curve.oid)].concat();
        let key_id = key_id(&algorithm, key.public_key().as_ref());
        let random = SystemRandom::new();
        Self { key: SigningKey::Ecdsa(key), algorithm: curve.algorithm, key_id, random }
    }

    /// A key as RFC 5915 has it.
    fn of_sec1(text: &[u8]) -> Result<Self, SigningKeyError> {
        let key = der::read_sec1(text).ok_or(SigningKeyError::NoKey)?;
        let curve = CURVES.iter().find(|curve| curve.oid == key.curve);
        let Some(curve) = curve else {
            let message = "its curve is neither P-256 nor P-384".to_owned();
            return Err(SigningKeyError::Unsupported(message));
        };
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_private_key_and_public_key(
            curve.signing,
            key.private,
            key.public,
            &random,
        );
        let key = key.map_err(|error| SigningKeyError::Unsupported(error.to_string()))?;
        Ok(Self::of_curve(curve, key))
    }

    fn of_pkcs8(text: &[u8]) -> Result<Self, SigningKeyError> {
        for curve in &CURVES {
            let random = SystemRandom::new();
            if let Ok(key) = EcdsaKeyPair::from_pkcs8(curve.signing, text, &random) {
                return Ok(Self::of_curve(curve, key));
            }
        }
        Self::of_rsa(rsa::KeyPair::from_pkcs8(text))
    }

    /// The name of the key in tokens.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// The token with these claims.
    ///
    /// # Errors
    /// When the signature failed.
    pub fn sign(&self, claims: &Value) -> Result<String, SigningKeyError> {
        let header = json!({"alg": self.algorithm, "kid": self.key_id});
        let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", encoded(&header), encoded(claims));
        let signature = match &self.key {
            SigningKey::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &self.random, text.as_bytes(), &mut signature)
                    .map_err(|_| SigningKeyError::Sign)?;
                signature
            }
            SigningKey::Ecdsa(key) => key
                .sign(&self.random, text.as_bytes())
                .map_err(|_| SigningKeyError::Sign)?
                .as_ref()
                .to_vec(),
        };
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

impl fmt::Debug for TokenSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenSigner({}, {})", self.algorithm, self.key_id)
    }
}

/// The digest of a public key in the form of X.509.
// k8s: pkg/serviceaccount/jwt.go keyIDFromPublicKey
fn key_id(algorithm: &[u8], public: &[u8]) -> String {
    let bits = [&[0], public].concat();
    let parts = [der::item(der::SEQUENCE, algorithm), der::item(der::BIT_STRING, &bits)];
    let key = der::item(der::SEQUENCE, &parts.concat());
    URL_SAFE_NO_PAD.encode(digest(&SHA256, &key))
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    use super::*;

    fn claims() -> Value {
        json!({"iss": "kubernetes/serviceaccount",
            "kubernetes.io/serviceaccount/namespace": "n",
            "kubernetes.io/serviceaccount/secret.name": "s",
            "kubernetes.io/serviceaccount/service-account.name": "a",
            "kubernetes.io/serviceaccount/service-account.uid": "u",
            "sub": "system:serviceaccount:n:a"})
    }

    // The expected values are those of OpenSSL for the same key and text.
    #[test]
    fn rsa_token_matches_openssl() {
        let signer = TokenSigner::from_pem(include_str!("testdata/rsa.pem")).expect("a key");
        assert_eq!(signer.key_id(), "Favw8AFqPrWRHkGbC4GWx7tarYWssSxwGtYu_lUodGY");
        let token = signer.sign(&claims()).expect("a token");
        assert_eq!(token.rsplit('.').next(), Some(include_str!("testdata/rsa.sig")));
    }

    #[test]
    fn ecdsa_token_verifies_with_its_public_key() {
        let signer = TokenSigner::from_pem(include_str!("testdata/ec.pem")).expect("a key");
        assert_eq!(signer.key_id(), "tE8nAwUKkFgDkD09cegbEV2VqzwtAkl3D87vOK2CabQ");
        let token = signer.sign(&claims()).expect("a token");
        let (text, signature) = token.rsplit_once('.').expect("three parts");
        let signature = URL_SAFE_NO_PAD.decode(signature).expect("Base64");
        let SigningKey::Ecdsa(key) = &signer.key else { panic!("{signer:?}") };
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.public_key());
        assert!(public.verify(text.as_bytes(), &signature).is_ok());
    }

    #[test]
    fn file_without_a_usable_key_is_refused() {
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let broken = "-----BEGIN EC PRIVATE KEY-----\nMAMCAQE=\n-----END EC PRIVATE KEY-----\n";
        for text in ["", "no key", certificate, broken] {
            assert_eq!(TokenSigner::from_pem(text).err(), Some(SigningKeyError::NoKey));
        }
    }
}
