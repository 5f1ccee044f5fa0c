//! What a pull is tried with, how often, and who may use what was pulled.

mod docker_config;
pub mod keyring;
pub mod pull_credential;
pub mod pull_record;
pub mod registry_match;
