//! All fuzz targets in one program: `PINTLE_FUZZ` names the target to run.
#![no_main]

mod server;
#[path = "../targets.rs"]
mod targets;

use std::sync::LazyLock;

// For a file of the client of the runtime, which knows the messages by this name.
use pintle_cri_v1 as v1;

static CHOSEN: LazyLock<targets::Decoder> = LazyLock::new(|| {
    let name = std::env::var("PINTLE_FUZZ").unwrap_or_default();
    let found = targets::TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("PINTLE_FUZZ names no target: {name:?}")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    (*CHOSEN)(bytes);
});
