//! This program's version, and the build id that its linker gave it.
//!
//! Input: the running program's own file. Output: `0.1.0+30b352c0c7c5`, the version with the
//! beginning of the build id behind it, as semantic versions have it. Two builds of one version may
//! decide differently; the build id distinguishes their records. Reads the file's head and its
//! notes, which may block. Bounds: `HEADERS_MAX`, `NOTES_BYTES_MAX`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Program headers that are read, and bytes of notes in one of them.
const HEADERS_MAX: u64 = 64;
const NOTES_BYTES_MAX: u64 = 64 << 10;
/// Bytes of a build id that are shown.
const SHOWN_BYTES: usize = 6;
/// Places in an ELF file of 64 bits: where its program headers are, their length and count.
const ELF_BYTES: usize = 64;
const HEADER_BYTES: usize = 56;
/// A program header's kind.
const PT_NOTE: u32 = 4;
/// A note's type, and its name.
const NT_GNU_BUILD_ID: u32 = 3;
const GNU: &[u8] = b"GNU\0";

/// This program's version and build; the version alone where the linker gave no build id. Blocks.
pub fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let build = File::open("/proc/self/exe").ok().and_then(|file| build_id(&file));
    build.map_or_else(|| version.to_owned(), |build| format!("{version}+{build}"))
}

fn build_id(file: &File) -> Option<String> {
    let mut head = [0; ELF_BYTES];
    file.read_exact_at(&mut head, 0).ok()?;
    // Of 64 bits and little-endian, as all that this is built for.
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (at, length, count) = (word64(&head, 32)?, word16(&head, 54)?, word16(&head, 56)?);
    (0..count.min(HEADERS_MAX)).find_map(|number| {
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, at.checked_add(number * length)?).ok()?;
        if word32(&header, 0)? != PT_NOTE {
            return None;
        }
        let length = word64(&header, 32)?.min(NOTES_BYTES_MAX);
        let mut notes = vec![0; usize::try_from(length).ok()?];
        file.read_exact_at(&mut notes, word64(&header, 8)?).ok()?;
        in_notes(&notes)
    })
}

fn in_notes(mut notes: &[u8]) -> Option<String> {
    loop {
        let size = |at| word32(notes, at).and_then(|size| usize::try_from(size).ok());
        let (name, text, kind) = (size(0)?, size(4)?, word32(notes, 8)?);
        let begin = 12_usize.checked_add(name.checked_next_multiple_of(4)?)?;
        let end = begin.checked_add(text)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..12_usize.checked_add(name)?)? == GNU {
            let id = notes.get(begin..end)?;
            return Some(id.iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect());
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
}

fn word16(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A note: name, type, text.
    fn note(name: &[u8], kind: u32, text: &[u8]) -> Vec<u8> {
        let length = |of: &[u8]| u32::try_from(of.len()).expect("short").to_le_bytes();
        let mut note = [length(name), length(text), kind.to_le_bytes()].concat();
        for part in [name, text] {
            note.extend_from_slice(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn the_build_id_stands_behind_the_version() {
        let id = [0x30, 0xb3, 0x52, 0xc0, 0xc7, 0xc5, 0xd7, 0x7f, 0x04];
        let property = note(GNU, 5, &[1; 16]);
        let other = note(b"theirs\0", NT_GNU_BUILD_ID, &[2; 5]);
        let ours = note(GNU, NT_GNU_BUILD_ID, &id);
        let all = [property.clone(), other.clone(), ours].concat();
        assert_eq!(in_notes(&all).as_deref(), Some("30b352c0c7c5"));
        assert_eq!(in_notes(&[property, other].concat()), None);
    }

    #[test]
    fn program_has_a_build_id_and_a_script_has_none() {
        let version = version();
        let (number, build) = version.split_once('+').expect("the linker gives a build id");
        assert_eq!(number, env!("CARGO_PKG_VERSION"));
        assert_eq!(build.len(), 2 * SHOWN_BYTES);
        let mut script = tempfile::tempfile().expect("a file");
        std::io::Write::write_all(&mut script, &[b'#'; 200]).expect("written");
        assert_eq!(build_id(&script), None);
    }

    proptest! {
        #[test]
        fn any_notes_are_read_or_passed_over(notes in proptest::collection::vec(0_u8..8, 0..200)) {
            let _ = in_notes(&notes);
        }
    }
}
