//! Selectors and their results; invalid expressions.
//!
//! Cases are those that compile_test.go and the libraries' tests describe, in words of our own.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/cel/compile_test.go

use std::rc::Rc;

use pintle_sched_core::attempt_budget::AttemptBudget;

use super::*;

/// A device of the driver `dra.example.com`.
pub(super) fn device() -> Value {
    let empty = || Value::Map(Rc::new(Map::default()));
    let map = |map: Map| Value::Map(Rc::new(map));
    let version = SemanticVersion::parse("1.2.3").expect("a version");
    let own = Map::of([
        ("model", "a100".into()),
        ("cores", Value::Int(8)),
        ("healthy", true.into()),
        ("firmware", Value::Version(Rc::new(version))),
    ]);
    let other = Map::of([("rack", "r1".into())]);
    let memory = Value::Quantity(Quantity::parse("40Gi").expect("a quantity"));
    let attributes = Map::of([("dra.example.com", map(own)), ("pci.example.com", map(other))]);
    let capacity = Map::of([("dra.example.com", map(Map::of([("memory", memory)])))]);
    map(Map::of([
        ("driver", "dra.example.com".into()),
        ("allowMultipleAllocations", false.into()),
        ("attributes", map(attributes.or(empty()))),
        ("capacity", map(capacity.or(empty()))),
    ]))
}

fn answer(text: &str) -> Result<bool, String> {
    answer_in_time(text, &|| false).map_err(|why| match why {
        Unanswered::Late => "late".to_owned(),
        Unanswered::Exhausted(exhausted) => exhausted.to_string(),
        Unanswered::Error(error) => error.to_string(),
    })
}

fn answer_in_time(text: &str, is_late: &dyn Fn() -> bool) -> Result<bool, Unanswered> {
    let selector = Selector::compile(text, false).map_err(Unanswered::Error)?;
    let limits = EvaluationLimits { budget: &AttemptBudget::unlimited(), is_late };
    selector.matches(&device(), &Patterns::default(), limits)
}

/// Expands the abbreviations in the tables below.
fn full(text: &str) -> String {
    text.replace("ATTR", "device.attributes['dra.example.com']")
        .replace("CAP", "device.capacity['dra.example.com']")
}

#[test]
fn selector_expressions_evaluate_to_the_expected_bool() {
    for (text, want) in [
        ("true", true),
        ("-9223372036854775808 < 0 && --5 == 5", true),
        ("device.driver == 'dra.example.com'", true),
        ("device.driver != \"dra.example.com\"", false),
        ("device.driver in ['a', 'dra.example.com']", true),
        ("ATTR.model == 'a100' && ATTR.cores >= 8", true),
        ("ATTR.cores > 8 || ATTR.healthy", true),
        ("ATTR.healthy", true),
        ("!ATTR.healthy", false),
        ("ATTR.cores == 8.0 && ATTR.cores < 8.5 && ATTR.cores == 8u", true),
        ("ATTR.cores == 'eight'", false),
        ("ATTR.cores * 2 - 1 == 15 && ATTR.cores / 3 == 2 && ATTR.cores % 3 == 2", true),
        ("-ATTR.cores < -7 && --ATTR.cores == 8", true),
        ("device.attributes['pci.example.com'].rack == 'r1'", true),
        ("'pci.example.com' in device.attributes && !('x' in device.attributes)", true),
        ("has(ATTR.model) && !has(ATTR.absent)", true),
        ("has(device.attributes['no.such.domain'].model)", false),
        ("device.attributes['no.such.domain'].?model.orValue('none') == 'none'", true),
        ("ATTR.?model.orValue('none') == 'a100'", true),
        ("ATTR[?'absent'].hasValue()", false),
        ("ATTR.?model.optMap(m, m + 'x').value() == 'a100x'", true),
        ("ATTR.?absent.or(optional.of('b')).value() == 'b'", true),
        ("CAP.memory.isGreaterThan(quantity('39Gi'))", true),
        ("CAP.memory.isLessThan(quantity('40Gi'))", false),
        ("CAP.memory.compareTo(quantity('40960Mi')) == 0 && CAP.memory == quantity('40Gi')", true),
        ("CAP.memory.sub(quantity('39Gi')).asInteger() == 1073741824", true),
        ("quantity('1500m').isInteger() || isQuantity('one') || !isQuantity('1')", false),
        ("quantity('250m').asApproximateFloat() == 0.25 && sign(quantity('-1')) == -1", true),
        ("ATTR.firmware.isGreaterThan(semver('1.2.2')) && ATTR.firmware.major() == 1", true),
        ("ATTR.firmware.compareTo(semver('v1.10', true)) < 0", true),
        ("ATTR.firmware == semver('1.2.3') && isSemver('1.0.0') && !isSemver('1.0')", true),
        ("cel.bind(dra, ATTR, dra.model.startsWith('a') && dra.cores == 8)", true),
        ("['a100', 'h100'].exists(m, m == ATTR.model)", true),
        ("device.attributes.all(domain, domain.endsWith('.example.com'))", true),
        ("ATTR.exists_one(name, name == 'cores') && size(ATTR) == 4", true),
        ("[1, 2, 3].map(n, n * n).filter(n, n > 1) == [4, 9]", true),
        ("[1, 2, 3].map(n, n > 1, n * n).sum() == 13", true),
        ("{'a': 1}.all(k, v, k == 'a' && v == 1)", true),
        ("ATTR.model.matches('^[a-z][0-9]+$') && ATTR.model.size() == 4", true),
        ("ATTR.model.upperAscii().split('1').join('-') == 'A-00'", true),
        ("'abcabc'.indexOf('c') == 2 && 'abcabc'.lastIndexOf('a') == 3", true),
        ("'äbc'.substring(1) == 'bc' && 'äbc'.charAt(0) == 'ä' && ' x '.trim() == 'x'", true),
        ("sets.contains([1, 2], [2]) && !sets.intersects([1], [2])", true),
        ("int('7') + 1 == ATTR.cores && string(8) == '8' && double(1) == 1.0", true),
        ("ATTR.cores > 4 ? ATTR.healthy : false", true),
        ("type(ATTR.model) == string && type(1) == int", true),
        ("'\\u00e4\\x41\\101' == 'äAA' && r'\\n' == '\\\\n' && '''a'b''' == \"a'b\"", true),
        ("b'ab' == bytes('ab') && 0x10 == 16 && 1e3 == 1000.0 // the end", true),
        ("device.allowMultipleAllocations", false),
        // An unused bound expression may fail, and so may a lookup in an empty optional.
        ("cel.bind(x, ATTR.absent, true)", true),
        ("ATTR.absent in []", false),
        ("lists.range(3) == [0, 1, 2] && 'ab'.split('', 1) == ['ab']", true),
        ("'ab'.indexOf('a', 9) == -1 && 'ab'.indexOf('', 9) == 9 && string(1e6) == '1e+06'", true),
        ("quantity('2').isInteger() && !quantity('2000m').isInteger() && isQuantity('.')", true),
    ] {
        assert_eq!(answer(&full(text)), Ok(want), "{text}");
    }
}

#[test]
fn deciding_operand_absorbs_errors_of_other_operands() {
    for (text, want) in [
        ("ATTR.absent == 1 || true", true),
        ("true || ATTR.absent == 1", true),
        ("ATTR.absent == 1 && false", false),
        ("['absent', 'model'].exists(n, ATTR[n] == 'a100')", true),
        ("['absent', 'model'].all(n, ATTR[n] == 'b100')", false),
        ("false ? ATTR.absent : true", true),
    ] {
        assert_eq!(answer(&full(text)), Ok(want), "{text}");
    }
}

#[test]
fn errors_use_upstream_wording() {
    for (text, want) in [
        ("ATTR.absent == 1", "no such key: absent"),
        ("device.attributes['no.such.domain'].x", "no such key: x"),
        ("ATTR.absent == 1 || false", "no such key: absent"),
        ("ATTR.model < 1", "no such overload"),
        ("!ATTR.model", "no such overload"),
        ("1 / (ATTR.cores - 8) == 1", "division by zero"),
        ("ATTR.cores + 9223372036854775807 > 0", "integer overflow"),
        ("[1][ATTR.cores] == 1", "index out of bounds: 8"),
        ("ATTR.?absent.value()", "optional.none() dereference"),
        ("quantity(ATTR.model) == CAP.memory", "quantities must match the regular expression"),
        ("CAP.memory == CAP.memory.add(1)", "no such overload"),
        ("[1, 2].filter(n, ATTR[string(n)] == 'x') == []", "no such key: 2"),
        ("[1].slice(1, 0) == []", "cannot slice(1, 0), start index must be less than"),
        ("ATTR.model", "CEL result of type string could not be converted to bool: "),
    ] {
        let found = answer(&full(text)).expect_err(text).to_string();
        assert!(found.starts_with(want), "{text}: {found}");
    }
}

#[test]
fn invalid_expressions_are_rejected_at_compilation() {
    for (text, want) in [
        ("", "mismatched input"),
        ("device.driver ==", "mismatched input"),
        ("device.driver = 'a'", "mismatched input '='"),
        ("(true", "mismatched input"),
        ("'open", "unterminated string"),
        ("a.b", "undeclared reference to 'a'"),
        ("device.attribute['x'].y", "undefined field 'attribute'"),
        ("device.driver.first(1)", "undeclared reference to 'first'"),
        ("[1].exists(device.driver, true)", "argument must be a simple name"),
        ("has(device)", "invalid argument to has() macro"),
        ("1 + 1", "must evaluate to bool or the unknown type, not int"),
        ("device.driver", "must evaluate to bool or the unknown type, not string"),
        ("device.driver == 5", "found no matching overload for '=='"),
        ("package == 1", "reserved identifier: package"),
        ("#", "token recognition error at: '#'"),
        ("9223372036854775808 > 0", "invalid number '9223372036854775808'"),
        ("--9223372036854775808 < 0", "invalid number '9223372036854775808'"),
        (r"'\x+f' == ''", "unable to unescape string"),
    ] {
        let found = Selector::compile(text, false).expect_err(text).to_string();
        assert!(found.contains(want), "{text}: {found}");
    }
}

#[test]
fn expression_depth_size_and_cost_are_limited() {
    let deep = format!("{}true{}", "(".repeat(5000), ")".repeat(5000));
    assert!(
        Selector::compile(&deep, false).expect_err("deep").to_string().contains("recursion limit")
    );
    let long = format!("1{} > 0", " + 1".repeat(2000));
    assert!(
        Selector::compile(&long, false).expect_err("long").to_string().contains("recursion limit")
    );
    let wide = format!("true{}", " && true".repeat(1000));
    assert_eq!(answer(&wide), Ok(true));
    let huge = format!("'{}' == ''", "x".repeat(TEXT_BYTES_MAX));
    assert!(Selector::compile(&huge, false).expect_err("huge").to_string().contains("bytes"));
    let ten = "[0,1,2,3,4,5,6,7,8,9]";
    let many = format!(
        "{ten}.all(a, {ten}.all(b, {ten}.all(c, {ten}.all(d, {ten}.all(e, {ten}.all(f, \
         a + b + c + d + e + f >= 0))))))"
    );
    let found = answer(&many).expect_err("many");
    assert_eq!(found, "operation cancelled: actual cost limit exceeded");
    let nested = format!("{}true{}", "(".repeat(DEPTH_MAX - 1), ")".repeat(DEPTH_MAX - 1));
    assert_eq!(answer(&nested), Ok(true));
    let grows = "cel.bind(a, 'xxxxxxxxxxxxxxxxxxxx', ".repeat(30) + "true" + &")".repeat(30);
    assert_eq!(answer(&grows), Ok(true));
    let doubled = (0..40).fold("'x'".to_owned(), |text, _| format!("cel.bind(a, {text}, a + a)"));
    let found = answer(&format!("{doubled} == ''")).expect_err("doubled");
    assert_eq!(found, "operation cancelled: text length limit exceeded");
}

#[test]
fn times_addresses_formats_and_lists_are_known() {
    for text in [
        "timestamp('2024-02-29T23:30:00-01:00').getDate() == 1",
        "timestamp('2024-07-01T00:30:00Z').getHours('-05:30') == 19",
        "string(timestamp('2024-02-28T23:00:00.5+02:00') + duration('48h')) \
            == '2024-03-01T23:00:00.5+02:00'",
        "timestamp('2024-01-02T00:00:00Z') - timestamp(1704067200) == duration('24h')",
        "string(duration('1h0.25s')) == '3600.25s' && duration('90m').getHours() == 1",
        "cidr('10.1.2.3/16').masked() == cidr('10.1.0.0/16') && ip('::1').family() == 6",
        "cidr('fe80::/10').containsIP('fe80::1') && !isIP('::ffff:1.2.3.4')",
        "url('http://[::1]:80/a%2fb?x=1&x=2').getQuery()['x'] == ['1', '2']",
        "!format.dns1123Label().validate('a-b').hasValue() && format.named('x') == optional.none()",
        "'%s %d %x %.1f'.format([['a'], 7, 255, 1234.5]) == '[\"a\"] 7 ff 1,234.5'",
        "['bb', 'a'].sortBy(e, size(e)) == ['a', 'bb'] && [1, 2].transformMap(k, v, v + k)[1] == 3",
        "type(ip('::1')) == net.IP && strings.quote('a\"') == '\"a\\\\\"\"'",
    ] {
        assert_eq!(answer(text), Ok(true), "{text}");
    }
    for (text, error) in [
        ("ip(device.driver + '/') == ip('::1')", "unexpected character"),
        ("timestamp(device.driver) == timestamp(0)", "type conversion error from 'string'"),
        ("timestamp(0).getHours('no/where') == 0", "unknown time zone no/where"),
        ("duration('2562047h') + duration('1h') > duration('0')", "integer overflow"),
        ("url('http://' + device.driver + ':x/') == url('/')", "invalid port \":x\" after host"),
        (
            "[1].transformMapEntry(k, v, {k: v, k + 1: v})[0] == 1 && '%q'.format([1]) == ''",
            "unrecognized formatting clause \"q\"",
        ),
    ] {
        let found = answer(text).expect_err(text).to_string();
        assert!(found.contains(error), "{text}: {found}");
    }
}

#[test]
fn late_evaluation_has_no_answer_even_under_a_short_circuit() {
    let long = "lists.range(100).all(a, lists.range(100).all(b, a + b >= 0))";
    for text in [
        long.to_owned(),
        format!("{long} || true"),
        format!("cel.bind(a, {long}, a || !a)"),
        format!("[1].exists(n, {long}) || [1].map(n, {long}) == [true]"),
    ] {
        assert_eq!(answer_in_time(&text, &|| false), Ok(true), "{text}");
        assert_eq!(answer_in_time(&text, &|| true), Err(Unanswered::Late), "{text}");
    }
    assert_eq!(answer_in_time("true", &|| true), Ok(true));
}

#[test]
fn a_pattern_is_compiled_once() {
    let looks = std::cell::Cell::new(0);
    let is_late = || {
        looks.set(looks.get() + 1);
        false
    };
    let count = |text: &str| {
        looks.set(0);
        assert_eq!(answer_in_time(text, &is_late), Ok(true), "{text}");
        looks.get()
    };
    // Compiling checks the clock, and so does each search.
    let others = "lists.range(100).all(a, 'x'.matches('x|' + string(a)))";
    assert!(count(others) >= 200);
    let same = "lists.range(100).all(a, 'x'.matches(r'^\\w{1,2}$') && 'x'.find('x') == 'x')";
    assert!((200..220).contains(&count(same)));
}

#[test]
fn operations_slower_than_reading_their_input_cost_more() {
    let limit = Err("operation cancelled: actual cost limit exceeded".to_owned());
    assert_eq!(answer("sets.contains(lists.range(10000), lists.range(10000))"), limit);
    assert_eq!(answer("lists.range(10000).distinct() == []"), limit);
    assert_eq!(answer("sets.contains(lists.range(500), lists.range(500))"), Ok(true));
    let long = "lists.range(10000).map(n, 'x').join()";
    assert_eq!(answer(&format!("{long}.matches('{}')", "x?".repeat(2_000))), limit);
    assert_eq!(answer(&format!("{long}.matches('^x+$')")), Ok(true));
}

#[test]
fn replace_and_join_over_the_length_limit_fail_without_building_the_text() {
    let long = "lists.range(100000).map(n, 'x').join()";
    let limit = Err("operation cancelled: text length limit exceeded".to_owned());
    // Ten billion bytes each.
    for text in ["t.replace('', t) == ''", "t.split('').join(t) == ''"] {
        assert_eq!(answer(&format!("cel.bind(t, {long}, {text})")), limit, "{text}");
    }
    for text in [
        "'abab'.replace('b', 'cc') == 'accacc' && 'abab'.replace('b', 'cc', 1) == 'accab'",
        "'ab'.replace('', 'x') == 'xaxbx' && 'ab'.replace('a', '', -1) == 'b'",
        "['a', 'b'].join('--') == 'a--b' && [].join('x') == ''",
    ] {
        assert_eq!(answer(text), Ok(true), "{text}");
    }
}

#[test]
fn places_are_counted_in_characters_from_either_end() {
    for text in [
        "'äbäbä'.indexOf('ä', 1) == 2 && 'äbäbä'.indexOf('bä', 2) == 3",
        "'äbäbä'.lastIndexOf('ä', 3) == 2 && 'äbäbä'.lastIndexOf('äbä', 1) == 0",
        "'äbäbä'.lastIndexOf('ä') == 4 && 'aé'.lastIndexOf('b', 0) == -1",
        "'ab'.indexOf('c') == -1 && 'ab'.lastIndexOf('b', 5) == -1 && 'ab'.indexOf('b', 2) == -1",
        // A search that restarted at each position would take minutes.
        "cel.bind(a, lists.range(100000).map(n, 'x').join(), \
            a.indexOf(a.substring(50000) + 'y') == -1 && a.lastIndexOf(a.substring(50000)) == 50000)",
    ] {
        assert_eq!(answer(text), Ok(true), "{text}");
    }
}
