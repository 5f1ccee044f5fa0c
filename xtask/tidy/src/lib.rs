//! The part of the repository's tasks that compiles in seconds: `cargo tidy`, and running programs.
//!
//! A crate of its own, so that the first thing a change is checked with does not compile clusters,
//! images and nodes. The other tasks use it as a library.
//!
//! - `limits`: files, functions and words against the style's limits
//! - `layers`: deciding crates cannot act, and folders use each other in one direction
//! - `licences`: of all dependencies
//! - `names`: counts of names and signatures that only fall
//! - `shell`: running programs, one shape of error

#![forbid(unsafe_code)]

mod layers;
mod licences;
mod limits;
mod names;
pub mod shell;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

/// Checks dependencies and every Rust file that git knows; prints files over a limit.
pub fn run() -> Result<ExitCode> {
    layers::check()?;
    licences::check()?;
    names::check()?;
    limits::check()
}

/// The repository's top folder.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate lies in the repository").to_owned()
}
