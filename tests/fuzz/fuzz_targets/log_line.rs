//! Any bytes as a line of a container's log; its time, too.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(line) = pintle_agent_core::logs::line::parse(bytes) {
        line.timestamp();
    }
});
