//! The program's own file in memory: only the used part of it.
//!
//! A fault on a page of the file maps fifteen neighbours as well, and all of them count as resident
//! from then on, also those that only the start needed. `forget` drops them all from the process
//! (`MADV_DONTNEED`). They stay in the page cache, so that a page that is used again is back within
//! microseconds and without a disk; the others are the first that the kernel reclaims when memory
//! gets short. Touches only segments that no code can have written to: those with relocations are
//! copies.

use std::ffi::{c_int, c_void};
use std::ops::Range;

/// Segments smaller than this are not worth a call; the kernel's own (vDSO) is among them.
const SEGMENT_MIN: usize = 64 << 10;

/// Has the pages of code and constants count as unused until they are used again. Blocks for less
/// than a millisecond; other threads go on meanwhile.
#[allow(unsafe_code)]
pub fn forget() {
    for range in read_only_segments() {
        let start = std::ptr::without_provenance_mut::<c_void>(range.start);
        // SAFETY: the range lies within a segment of a loaded object that is never unmapped. It is a
        // private mapping of a file without write permission, so it equals the file, and reading it
        // afterwards gives the same bytes. An error changes nothing.
        unsafe { libc::madvise(start, range.len(), libc::MADV_DONTNEED) };
    }
}

/// Whole pages of the segments that the program and its libraries are loaded with and may not
/// write.
#[allow(unsafe_code)]
fn read_only_segments() -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    // SAFETY: the callback gets the vector that outlives the call, and no other code has it
    // meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(add_segments), (&raw mut all).cast()) };
    all
}

/// Adds those of one object.
#[allow(unsafe_code)]
unsafe extern "C" fn add_segments(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    all: *mut c_void,
) -> c_int {
    // SAFETY: `dl_iterate_phdr` hands out a valid description for the time of the call, with as many
    // headers as it says, and the pointer that it was given, which is that of `read_only_segments`.
    let (info, all) = unsafe { (&*info, &mut *all.cast::<Vec<Range<usize>>>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: as above.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    for header in loaded.filter(|header| header.p_flags & libc::PF_W == 0) {
        // The base is a difference, which is negative for an object that was linked higher than it
        // is loaded, as the vDSO of some kernels is.
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
        all.extend(whole_pages(start, header.p_memsz));
    }
    0
}

fn whole_pages(start: u64, len: u64) -> Option<Range<usize>> {
    const PAGE: usize = 64 << 10; // the largest of any architecture
    let (start, len) = (usize::try_from(start).ok()?, usize::try_from(len).ok()?);
    let end = start.checked_add(len)? / PAGE * PAGE;
    let range = start.checked_next_multiple_of(PAGE)?..end;
    (range.len() >= SEGMENT_MIN).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// KiB of files that count as resident in this process.
    fn resident() -> u64 {
        let status = fs::read_to_string("/proc/self/status").expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    #[test]
    fn segments_are_trimmed_to_whole_pages_or_dropped() {
        const K: u64 = 1 << 10;
        assert_eq!(whole_pages(0, 256 * K), Some(0..256 << 10));
        assert_eq!(whole_pages(4 * K, 256 * K), Some(64 << 10..256 << 10));
        assert_eq!(whole_pages(4 * K, 60 * K), None);
        assert_eq!(whole_pages(u64::MAX, 256 * K), None);
    }

    #[test]
    fn segment_of_an_object_that_is_loaded_below_its_own_addresses_is_found() {
        // SAFETY: a header is numbers alone.
        #[allow(unsafe_code)]
        let mut header: libc::Elf64_Phdr = unsafe { std::mem::zeroed() };
        (header.p_type, header.p_flags) = (libc::PT_LOAD, libc::PF_R | libc::PF_X);
        (header.p_vaddr, header.p_memsz) = (u64::MAX - (1 << 20) + 1, 256 << 10);
        // SAFETY: as above; a null name is not read.
        #[allow(unsafe_code)]
        let mut info: libc::dl_phdr_info = unsafe { std::mem::zeroed() };
        (info.dlpi_phdr, info.dlpi_phnum) = (&raw const header, 1);
        info.dlpi_addr = (1 << 20) + (1 << 20);
        let mut all: Vec<Range<usize>> = Vec::new();
        // SAFETY: the description has one header, and the pointer is that of a vector.
        #[allow(unsafe_code)]
        unsafe {
            add_segments(&raw mut info, 0, (&raw mut all).cast())
        };
        assert_eq!(all, vec![Range { start: 1 << 20, end: (1 << 20) + (256 << 10) }]);
    }

    #[test]
    fn forgotten_pages_are_released_and_read_the_same_again() {
        let segments = read_only_segments();
        let bytes: usize = segments.iter().map(Range::len).sum();
        assert!(bytes > 1 << 20, "code and constants of a test program: {segments:?}");
        let sum = || {
            let pages = segments.iter().flat_map(|range| range.clone().step_by(4096));
            // SAFETY: these addresses are readable for as long as the program runs.
            #[allow(unsafe_code)]
            pages
                .map(|at| u64::from(unsafe { *std::ptr::without_provenance::<u8>(at) }))
                .sum::<u64>()
        };
        let (first, full) = (sum(), resident());
        forget();
        let left = resident();
        assert!(left * 2 < full, "{left} KiB of {full}");
        assert_eq!(sum(), first);
        assert!(resident() > left);
    }
}
