//! Debug output of registry credentials: shows which secrets are set, never their values. Generated
//! code derives Debug for every message but this one (see build.rs), so a request that is logged or
//! shown by `explain` cannot leak a password.

use std::fmt;

use crate::AuthConfig;

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = |value: &str| if value.is_empty() { "" } else { "<redacted>" };
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("password", &secret(&self.password))
            .field("auth", &secret(&self.auth))
            .field("server_address", &self.server_address)
            .field("identity_token", &secret(&self.identity_token))
            .field("registry_token", &secret(&self.registry_token))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::{AuthConfig, PullImageRequest};

    #[test]
    fn debug_output_of_a_pull_shows_the_user_but_no_secret() {
        let auth = AuthConfig {
            username: "someone".into(),
            password: "s3cret-a".into(),
            auth: "s3cret-b".into(),
            server_address: "registry.example".into(),
            identity_token: "s3cret-c".into(),
            registry_token: "s3cret-d".into(),
        };
        let shown = format!("{:?}", PullImageRequest { auth: Some(auth), ..Default::default() });
        assert!(shown.contains("someone") && shown.contains("registry.example"), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
