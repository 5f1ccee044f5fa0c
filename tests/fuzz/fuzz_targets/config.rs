//! Any bytes as a configuration file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    pintle_agent_config::fuzz_load(bytes);
});
