//! Hashes in the names that upstream's controllers make: FNV sums, written in a safe alphabet.
//!
//! Input: a pod template as JSON, or the bytes of a revision. Output: the pod-template-hash of
//! Deployments and DaemonSets, and the hash in the names of ControllerRevisions. The printed text,
//! several times as long as the JSON, is hashed piece by piece and never held whole.

use std::fmt;

use serde_json::Value;

use super::print::print_typed;
use super::types::GoStruct;

/// FNV's offset and prime for 32 bits.
const OFFSET: u32 = 2_166_136_261;
const PRIME: u32 = 16_777_619;
/// Letters and digits that make no words.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/rand/rand.go
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// FNV-1a of what is written.
struct Fnv1a(u32);

impl Fnv1a {
    fn add(&mut self, bytes: &[u8]) {
        self.0 =
            bytes.iter().fold(self.0, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(PRIME));
    }
}

impl fmt::Write for Fnv1a {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}

/// The pod-template-hash of a template, which is also the hash of a DaemonSet's revision.
// k8s: pkg/controller/controller_utils.go ComputeHash
pub fn pod_template_hash(template: &Value, collision_count: Option<i32>) -> String {
    let mut sum = Fnv1a(OFFSET);
    let of = GoStruct::named("core/v1.PodTemplateSpec");
    print_typed("v1.PodTemplateSpec", of, Some(template), &mut sum).expect("a sum takes any text");
    if let Some(count) = collision_count {
        sum.add(&count.to_le_bytes());
        sum.add(&[0; 4]);
    }
    safe_text(sum.0)
}

/// The hash in the name of a ControllerRevision with this data. `probe` is the collision count.
// k8s: pkg/controller/history/controller_history.go HashControllerRevision
pub fn controller_revision_hash(data: &[u8], probe: Option<i32>) -> String {
    let probe = probe.map(|count| count.to_string()).unwrap_or_default();
    let bytes = data.iter().chain(probe.as_bytes());
    // FNV-1, not 1a: the product comes first.
    safe_text(bytes.fold(OFFSET, |sum, byte| sum.wrapping_mul(PRIME) ^ u32::from(*byte)))
}

/// A sum in decimal, each digit a letter of the alphabet.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/rand/rand.go SafeEncodeString
fn safe_text(sum: u32) -> String {
    let digits = sum.to_string();
    digits.bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sums_are_written_in_the_safe_alphabet() {
        assert_eq!(safe_text(1_234_567_890), "56789bcdf4");
        assert_eq!(safe_text(0), "4");
    }

    #[test]
    fn a_collision_count_of_zero_counts() {
        let template = json!({"spec": {"containers": []}});
        let hashes = [None, Some(0), Some(1)].map(|count| pod_template_hash(&template, count));
        assert_ne!(hashes[0], hashes[1]);
        assert_ne!(hashes[1], hashes[2]);
    }
}
