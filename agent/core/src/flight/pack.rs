//! JSON of a frame, deflated: a pod of a state takes a fifth of its JSON.
//!
//! As text in base64, because frames are JSON throughout, so that no bytes of them look like a
//! batch. Pure. Bounds: the output has at most `FRAME_BYTES_MAX`.

use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};

use super::segment::FRAME_BYTES_MAX;

/// See the module's header.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Packed(String);

impl Packed {
    pub(super) fn of(json: &[u8]) -> Self {
        let mut packer = ZlibEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(json).expect("memory takes all");
        Self(STANDARD_NO_PAD.encode(packer.finish().expect("memory takes all")))
    }

    /// The decompressed JSON; `None` if the bytes are not a valid packed frame, or if it is too
    /// long.
    pub(super) fn json(&self) -> Option<Vec<u8>> {
        let packed = STANDARD_NO_PAD.decode(&self.0).ok()?;
        let mut json = Vec::new();
        let most = FRAME_BYTES_MAX as u64 + 1;
        ZlibDecoder::new(packed.as_slice()).take(most).read_to_end(&mut json).ok()?;
        (json.len() <= FRAME_BYTES_MAX).then_some(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_round_trips_and_rejects_bombs_and_broken_input() {
        let json = br#"{"a":"a text that comes again and again, again and again"}"#.repeat(9);
        let packed = Packed::of(&json);
        assert!(packed.0.len() < json.len() / 4);
        assert_eq!(packed.json().as_deref(), Some(json.as_slice()));
        assert_eq!(Packed::of(&vec![b' '; FRAME_BYTES_MAX + 1]).json(), None);
        for broken in ["", "=", "QUJD", &packed.0[..packed.0.len() / 2]] {
            assert_eq!(Packed(broken.to_owned()).json(), None, "{broken}");
        }
    }
}
