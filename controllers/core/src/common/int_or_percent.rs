//! Limits that are a number or a percentage of a total.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/intstr/intstr.go

use serde_json::Value;

/// How a share of a total is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the next larger number.
    Up,
    /// To the next smaller number.
    Down,
}

/// A value that is neither a number nor a percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid value for IntOrString: {0}")]
pub struct NoIntOrPercent(pub Value);

/// The number that a limit means.
///
/// # Errors
/// When it is neither a number nor a percentage.
// k8s: intstr.go GetScaledValueFromIntOrPercent
pub fn scaled(limit: &Value, total: i64, rounding: Rounding) -> Result<i64, NoIntOrPercent> {
    if let Some(number) = limit.as_i64() {
        return Ok(number);
    }
    let percent = limit.as_str().and_then(|text| text.strip_suffix('%'));
    let percent = percent.and_then(|number| number.parse::<i64>().ok());
    let product = percent.ok_or_else(|| NoIntOrPercent(limit.clone()))?.saturating_mul(total);
    let down = product.div_euclid(100);
    let is_exact = product.rem_euclid(100) == 0;
    Ok(if rounding == Rounding::Up && !is_exact { down + 1 } else { down })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn percentage_is_rounded_as_asked() {
        for (limit, total, up, down) in [
            (json!(3), 10, 3, 3),
            (json!("30%"), 10, 3, 3),
            (json!("25%"), 10, 3, 2),
            (json!("1%"), 10, 1, 0),
            (json!("0%"), 10, 0, 0),
            (json!("100%"), 0, 0, 0),
        ] {
            assert_eq!(scaled(&limit, total, Rounding::Up), Ok(up), "{limit}");
            assert_eq!(scaled(&limit, total, Rounding::Down), Ok(down), "{limit}");
        }
        for limit in [json!("3"), json!("a%"), json!(null)] {
            assert_eq!(scaled(&limit, 1, Rounding::Up), Err(NoIntOrPercent(limit.clone())));
        }
    }
}
