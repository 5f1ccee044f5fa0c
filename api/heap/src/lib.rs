//! The memory of the daemons: mimalloc, set to return it soon, and the program's file (`code`).
//!
//! A daemon names this crate and calls `give_back_soon` first thing. mimalloc keeps freed memory
//! for a second, which is right for programs that compute: a daemon that mostly waits and now and
//! then reads a list of all pods pays for each of its bursts with resident memory.

#![deny(unsafe_code)] // allowed for calls into the allocator and about the program's pages

pub mod code;

use std::ffi::c_long;

/// How long empty pages stay with the process, in milliseconds: a burst that comes back within that
/// time finds them, and one that does not leaves its memory to the pods.
const PURGE_DELAY_MILLIS: c_long = 10;

/// `mi_option_purge_delay` of mimalloc's `mi_option_e`, which the bindings do not name.
const OPTION_PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Has freed memory given back to the system soon, unless `MIMALLOC_PURGE_DELAY` says otherwise.
/// For the beginning of `main`: no other thread may run yet.
#[allow(unsafe_code)]
pub fn give_back_soon() {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_some() {
        return;
    }
    // SAFETY: sets a number in a table of the allocator's, which is not synchronised: there is one
    // thread only, says the contract above. Any value is valid for this option.
    unsafe { libmimalloc_sys::mi_option_set(OPTION_PURGE_DELAY, PURGE_DELAY_MILLIS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The option's number is the allocator's own: its value from the environment is found there.
    #[test]
    #[allow(unsafe_code)]
    fn purge_delay_option_number_matches_the_allocator() {
        // SAFETY: reads a number.
        let get = || unsafe { libmimalloc_sys::mi_option_get(OPTION_PURGE_DELAY) };
        assert_eq!(get(), 1000, "mimalloc's default");
        give_back_soon();
        assert_eq!(get(), PURGE_DELAY_MILLIS);
    }
}
