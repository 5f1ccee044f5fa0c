//! Any bytes as a line of a container's log; its time, too.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(line) = pintle_agent::runtime::log_line::parse(bytes) {
        line.timestamp();
    }
});
