//! Numbers that users give as they are or as a percentage, such as `maxSurge`.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/intstr/intstr.go

use serde_json::Value;

/// Which way a percentage becomes a whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the next larger one.
    Up,
    /// To the next smaller one.
    Down,
}

/// A value that is neither a number nor a percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid value for IntOrString: {0}")]
pub struct ScaledError(pub String);

/// The number that a value means when 100 % is `total`; absent means 0.
///
/// # Errors
/// When it is neither a number nor a percentage.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/intstr/intstr.go GetScaledValueFromIntOrPercent
pub fn scaled(value: &Value, total: i32, rounding: Rounding) -> Result<i32, ScaledError> {
    if value.is_null() {
        return Ok(0);
    }
    if let Some(number) = value.as_i64() {
        return i32::try_from(number).map_err(|_| ScaledError(value.to_string()));
    }
    let percent = value.as_str().and_then(|text| text.strip_suffix('%'));
    let percent = percent.and_then(|digits| digits.parse::<i32>().ok());
    let Some(percent) = percent else { return Err(ScaledError(value.to_string())) };
    let hundredths = i64::from(percent) * i64::from(total);
    let whole = match rounding {
        Rounding::Up => -(-hundredths).div_euclid(100),
        Rounding::Down => hundredths.div_euclid(100),
    };
    // Upstream cuts what does not fit into 32 bits.
    Ok(whole as i32)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn percentage_is_rounded_as_asked_for() {
        for (value, total, up, down) in [
            (json!(3), 10, 3, 3),
            (json!("25%"), 10, 3, 2),
            (json!("25%"), 4, 1, 1),
            (json!("1%"), 2, 1, 0),
            (json!("0%"), 10, 0, 0),
            (json!("100%"), 7, 7, 7),
            (json!("150%"), 3, 5, 4),
            (Value::Null, 10, 0, 0),
        ] {
            assert_eq!(scaled(&value, total, Rounding::Up), Ok(up), "{value} of {total}");
            assert_eq!(scaled(&value, total, Rounding::Down), Ok(down), "{value} of {total}");
        }
        for value in [json!("3"), json!("a%"), json!(true), json!(1_i64 << 40)] {
            assert!(scaled(&value, 1, Rounding::Up).is_err(), "{value}");
        }
    }
}
