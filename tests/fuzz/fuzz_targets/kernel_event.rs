//! Any bytes as a record of the kernel's ring buffer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(event) = pintle_ebpf::decode(bytes) {
        assert!(!format!("{event:?}").is_empty());
    }
});
