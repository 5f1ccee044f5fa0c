//! Any bytes as a manifest from a file and as a list from a URL.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    pintle_agent_core::source::fuzz_manifest(bytes);
});
