//! Credentials and retries of pulls, and access of pods to pulled images.

mod docker_config;
pub mod keyring;
pub mod pull_credential;
pub mod pull_record;
pub mod registry_match;
