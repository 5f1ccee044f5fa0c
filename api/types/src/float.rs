//! Floating-point numbers as Go writes them.
//!
//! Input: a number. Output: its shortest text. Owner: a pure function. Metrics, and texts that CEL
//! makes of numbers, are compared with upstream's by their bytes.

/// A number as Go writes it in metrics: the shortest text that reads as the same number, with an
/// exponent from a million on and below a ten thousandth.
// k8s: github.com/prometheus/common/expfmt/text_create.go writeFloat
pub fn go_float(number: f64) -> String {
    if !number.is_finite() {
        return match number {
            n if n.is_nan() => "NaN".to_owned(),
            n if n > 0.0 => "+Inf".to_owned(),
            _ => "-Inf".to_owned(),
        };
    }
    let text = format!("{number:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    match exponent.parse::<i32>() {
        Ok(exponent @ -4..6) if exponent != 0 => number.to_string(),
        Ok(0) | Err(_) => digits.to_owned(),
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::go_float;

    #[test]
    fn numbers_are_written_as_go_writes_them() {
        for (number, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (5e-9, "5e-09"),
            (123_456.0, "123456"),
            (999_999.5, "999999.5"),
            (1e6, "1e+06"),
            (134_217_728.0, "1.34217728e+08"),
            (3e18, "3e+18"),
            (1e100, "1e+100"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(go_float(number), text);
        }
    }
}
