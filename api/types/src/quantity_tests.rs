//! Quantities: texts, roundings and canonical forms as Kubernetes has them.

use super::*;
use proptest::prelude::*;

fn canonical(text: &str) -> String {
    Amount::parse(text).map_or_else(|| "refused".to_owned(), Amount::canonical)
}

#[test]
fn a_quantity_is_stored_as_the_api_server_stores_it() {
    for (text, want) in [
        ("0.1", "100m"),
        ("0.5", "500m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("100m", "100m"),
        ("2", "2"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1048576Ki", "1Gi"),
        ("64Mi", "64Mi"),
        ("512Ki", "512Ki"),
        ("0.5Ki", "512"),
        ("1000", "1k"),
        ("1e3", "1e3"),
        ("12e6", "12e6"),
        ("1E", "1E"),
        ("0", "0"),
        ("0Mi", "0"),
        ("1.0000000001", "1000000001n"),
        ("-0.5", "-500m"),
        ("+1", "1"),
        (".5", "500m"),
        ("5.", "5"),
        ("9007199254740988Ki", "9007199254740988Ki"),
        // Amounts that powers of 1024 cannot express are written in powers of 1000.
        ("7.7Gi", "8267812044800m"),
        ("1.0001Ki", "1024102400u"),
        ("0.0001Ki", "102400u"),
        ("3.1Ki", "3174400m"),
        ("-0.3Ki", "-307200m"),
        ("-1.5Gi", "-1536Mi"),
        ("1.5Ki", "1536"),
        ("1023.5Ki", "1048064"),
        ("2000Mi", "2000Mi"),
        ("100E", "100E"),
        ("99999999999999999999", "99999999999999999999"),
        ("16Ei", "9223372036854775807"),
        ("-16Ei", "-9223372036854775807"),
        ("1e+5", "100e3"),
        ("1E1", "10"),
        ("0.5e0", "500e-3"),
        ("12E-1", "1200e-3"),
        ("1000e3", "1e6"),
        ("1e-100", "1e-9"),
        ("-0.1n", "-1n"),
    ] {
        assert_eq!(canonical(text), want, "{text}");
    }
}

#[test]
fn invalid_quantities_are_rejected() {
    for text in ["", "m", "1x", "1 Gi", "1gi", "1Kib", "--1", "1e", "1.2.3", "Gi", "1k5", "0x10"] {
        assert_eq!(Amount::parse(text), None, "{text}");
    }
    for text in ["-", ".", "x", "1K", "Ki", "1KiB", "e5", "1e1.5", "1e-", "+-1", "10%", "1e999"] {
        assert_eq!(Amount::parse(text), None, "{text}");
        let error = text.parse::<Amount>().expect_err(text).to_string();
        assert_eq!(error, format!("{text:?} is not a quantity such as 500m, 2 or 100Mi"));
    }
    assert_eq!(Amount::parse(&"1".repeat(TEXT_BYTES_MAX + 1)), None);
}

#[test]
fn parsed_amounts_round_away_from_zero() {
    // The values that Kubernetes gives these texts, or the largest where its 64 bits overflow.
    for (text, millis, units) in [
        ("0", 0, 0),
        ("1", 1_000, 1),
        ("100m", 100, 1),
        ("250m", 250, 1),
        ("1.5", 1_500, 2),
        ("-1.5", -1_500, -2),
        ("-0.5", -500, -1),
        ("1n", 1, 1),
        ("0.1n", 1, 1),
        ("-0.1n", -1, -1),
        ("100u", 1, 1),
        ("0.0000000001", 1, 1),
        ("1.0000000000000000001", 1_001, 2),
        ("1Ki", 1_024_000, 1_024),
        ("10Mi", (10 << 20) * 1_000, 10 << 20),
        ("1.5Gi", (3 << 29) * 1_000, 3 << 29),
        ("7.7Gi", 8_267_812_044_800, 8_267_812_045),
        ("8267812044800m", 8_267_812_044_800, 8_267_812_045),
        ("1e3", 1_000_000, 1_000),
        ("1E3", 1_000_000, 1_000),
        ("12e6", 12_000_000_000, 12_000_000),
        ("5E-3", 5, 1),
        ("12E-1", 1_200, 2),
        ("1E", i64::MAX, 1_000_000_000_000_000_000),
        ("2E", i64::MAX, 2_000_000_000_000_000_000),
        ("+2k", 2_000_000, 2_000),
        (".5k", 500_000, 500),
        (".5", 500, 1),
        ("5.", 5_000, 5),
        ("16Ei", i64::MAX, i64::MAX),
        ("1e64", i64::MAX, i64::MAX),
        ("1.23456789012345678901234567890123456Ei", i64::MAX, 1_423_359_869_420_436_338),
        ("0.00000000000000000000000000000000000000000000000000000000000000000000001", 1, 1),
        ("0.0001", 1, 1),
        ("1500m", 1500, 2),
        ("1m", 1, 1),
        ("128Mi", 134_217_728_000, 134_217_728),
        ("100E", i64::MAX, i64::MAX),
    ] {
        let amount = Amount::parse(text).expect("a quantity");
        assert_eq!((amount.millis(), amount.units()), (millis, units), "{text}");
    }
}

#[test]
fn a_sum_keeps_the_notation_of_its_first_term() {
    let sum = |a: &str, b: &str| {
        (Amount::parse(a).expect("a") + Amount::parse(b).expect("b")).canonical()
    };
    assert_eq!(sum("1Gi", "1000"), "1073742824");
    assert_eq!(sum("512Mi", "512Mi"), "1Gi");
    assert_eq!(sum("0", "64Mi"), "64Mi");
    assert_eq!(sum("250m", "750m"), "1");
}

#[test]
fn product_keeps_the_notation_of_the_multiplicand() {
    let times = |a: &str, b: &str| {
        Amount::parse(a).expect("a").times(Amount::parse(b).expect("b")).canonical()
    };
    for (amount, factor, want) in [
        ("4Gi", "1.5", "6Gi"),
        ("3", "500m", "1500m"),
        ("3M", "2Ki", "6144M"),
        ("1Ki", "500m", "512"),
        ("2e3", "2", "4e3"),
        ("0", "5Gi", "0"),
        ("1n", "1m", "1n"),
        ("-1n", "1m", "-1n"),
        ("8E", "8E", "10000000000E"),
        // Where a part is multiplied with what only just is a number.
        ("1500m", "1000000000E", "1500000000E"),
    ] {
        assert_eq!(times(amount, factor), want, "{amount} times {factor}");
    }
    let text = "9223372036854775807";
    assert_eq!(times(text, "1"), text);
    assert_eq!(times("1500m", "2E"), "3E");
}

#[test]
fn fractions_are_summed_before_they_are_rounded() {
    let third = Amount::parse("333m").expect("quantity");
    assert_eq!((third + third + third).units(), 1);
    assert_eq!(third.units() * 3, 3);
}

#[test]
fn list_with_an_invalid_quantity_names_its_resource() {
    let list = |cpu: &str| {
        let quantities = [("cpu", cpu), ("memory", "1Gi")];
        quantities.map(|(name, text)| (name.to_owned(), ApiQuantity(text.to_owned()))).into()
    };
    let read = read_list(Some(&list("250m"))).expect("quantities");
    assert_eq!((read["cpu"].millis(), read["memory"].units()), (250, 1 << 30));
    assert_eq!(read_list(Some(&list("lots"))).expect_err("no quantity").0, "cpu");
    assert_eq!(read_list(None), Ok(Amounts::new()));
}

#[test]
fn quantity_is_displayed_as_written_and_json_numbers_are_accepted() {
    for (json, shown) in [("\"0.5Gi\"", "0.5Gi"), ("2", "2"), ("-1", "-1"), ("1.5", "1.5")] {
        let quantity: Quantity = serde_json::from_str(json).expect(json);
        assert_eq!((quantity.as_str(), quantity.to_string()), (shown, shown.to_owned()));
    }
    assert!(serde_json::from_str::<Quantity>("\"5MB\"").is_err());
    assert_eq!(Quantity::default().amount(), Amount::ZERO);
}

proptest! {
    #[test]
    fn parsing_never_panics(text in "\\PC{0,70}") {
        let _ = Amount::parse(&text).map(Amount::canonical);
    }

    #[test]
    fn canonical_text_is_a_fixed_point(
        number in 0u64..u64::MAX, fraction in 0u32..1_000_000, suffix in "[numkMGTPE]?|[KMGTP]i"
    ) {
        let text = format!("{number}.{fraction}{suffix}");
        let amount = Amount::parse(&text).expect("a quantity");
        let again = Amount::parse(&amount.canonical()).expect("canonical");
        prop_assert_eq!(again.canonical(), amount.canonical());
        prop_assert!(again >= amount);
    }

    #[test]
    fn whole_numbers_are_exact(units in any::<i64>()) {
        prop_assert_eq!(units.to_string().parse::<Amount>().map(Amount::units), Ok(units));
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[-+0-9.eEmKMGi]{0,40}|.{0,20}") {
        let _ = text.parse::<Amount>().map(|amount| (amount + amount).minus(amount).canonical());
    }

    /// Long division by hand: every digit counts, however small it is.
    #[test]
    fn binary_fractions_are_exact(fraction in "[0-9]{1,9}", bits in 1_u32..=6) {
        let suffix = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][bits as usize - 1];
        let amount = Amount::parse(&format!("0.{fraction}{suffix}")).expect("a quantity");
        let power = 10_i128.pow(u32::try_from(fraction.len()).expect("short"));
        let scaled = fraction.parse::<i128>().expect("digits") * (NANO << (10 * bits));
        prop_assert_eq!(amount.nanos, scaled / power + i128::from(scaled % power != 0));
    }
}

#[test]
fn floats_are_those_of_upstreams_metrics() {
    for (text, float) in [
        ("0", 0.0),
        ("100m", 0.1),
        ("300m", 0.3),
        ("1500m", 1.5),
        ("0.3", 0.3),
        ("7u", 7e-6),
        ("5n", 5e-9),
        ("2", 2.0),
        ("64Mi", 67_108_864.0),
        ("1536Mi", 1_610_612_736.0),
        ("3E", 3e18),
        ("-250m", -0.25),
    ] {
        assert_eq!(Amount::parse(text).map(Amount::approximate), Some(float), "{text}");
    }
}

#[test]
fn small_canonical_texts_are_stored_as_they_were_written() {
    for text in ["+1", "1Gi", "100m", "5.", "12e-3"] {
        assert!(is_stored_as_written(text), "{text}");
    }
    for text in
        ["0.5", "1.5", "1E2", "12e-1", "1024Mi", "1000", "1.5Gi", "0", "123456789012345678901"]
    {
        assert!(!is_stored_as_written(text), "{text}");
    }
}
