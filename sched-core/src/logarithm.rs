//! The natural logarithm as Go computes it on amd64.
//!
//! Input: a number of domains. Output: ln(n + 2) with the same last bit as upstream's.
//! Owner: pure functions; the first values are kept in a table.
//! Why not `f64::ln`: the platform's logarithm is rounded better than Go's, and a difference in the
//! last bit moves a score when the sum lands on a half.
// k8s: podtopologyspread/scoring.go topologyNormalizingWeight, on Go's math.Log

use std::sync::LazyLock;

/// Weights computed once.
const TABLE: usize = 1 << 14;

static WEIGHTS: LazyLock<Vec<f64>> =
    LazyLock::new(|| (0..TABLE).map(|n| ln((n + 2) as f64)).collect());

/// ln(n + 2).
#[must_use]
pub fn weight(domains: usize) -> f64 {
    WEIGHTS.get(domains).copied().unwrap_or_else(|| ln((domains + 2) as f64))
}

/// The fdlibm logarithm of a finite number of at least 1: argument reduced to [sqrt(1/2), sqrt(2)),
/// a polynomial of degree 14 in s = f / (2 + f), every step a plain double operation.
fn ln(x: f64) -> f64 {
    const LN2_HI: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN2_LO: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
    const L1: f64 = f64::from_bits(0x3fe5_5555_5555_5593);
    const L2: f64 = f64::from_bits(0x3fd9_9999_9997_fa04);
    const L3: f64 = f64::from_bits(0x3fd2_4924_9422_9359);
    const L4: f64 = f64::from_bits(0x3fcc_71c5_1d8e_78af);
    const L5: f64 = f64::from_bits(0x3fc7_4664_96cb_03de);
    const L6: f64 = f64::from_bits(0x3fc3_9a09_d078_c69f);
    const L7: f64 = f64::from_bits(0x3fc2_f112_df3e_5244);
    // x = f1 * 2^k with f1 in [1/2, 1).
    let bits = x.to_bits();
    let mut k = (bits >> 52) as i64 - 1022;
    let mut f1 = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 0x3fe0_0000_0000_0000);
    if f1 < std::f64::consts::FRAC_1_SQRT_2 {
        f1 *= 2.0;
        k -= 1;
    }
    let f = f1 - 1.0;
    let k = k as f64;
    let s = f / (2.0 + f);
    let s2 = s * s;
    let s4 = s2 * s2;
    let t1 = s2 * (L1 + s4 * (L3 + s4 * (L5 + s4 * L7)));
    let t2 = s4 * (L2 + s4 * (L4 + s4 * L6));
    let r = t1 + t2;
    let half_square = 0.5 * f * f;
    k * LN2_HI - ((half_square - (s * (half_square + r) + k * LN2_LO)) - f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_of_three_has_the_recorded_bits_and_all_values_are_within_one_ulp() {
        assert_eq!(weight(1).to_bits(), 0x3ff1_93ea_7aad_030a);
        let mut differing = 0;
        for n in 0..20_000 {
            let (ours, exact) = (weight(n).to_bits(), ((n + 2) as f64).ln().to_bits());
            assert!(ours.abs_diff(exact) <= 1, "{n}");
            differing += usize::from(ours != exact);
        }
        // In the recordings the last bit of 199 values differs from the exact rounding.
        assert!((150..=250).contains(&differing), "{differing}");
    }
}
