//! A container's environment: variables from the spec, from objects, files, services and fields.

pub mod downward;
pub mod expand;
pub mod file;
pub mod services;
pub mod variables;
