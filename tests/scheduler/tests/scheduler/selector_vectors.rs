//! Random selectors of devices, evaluated by upstream's CEL and by ours.
//!
//! Upstream's allocator (`device_vectors`) is asked for one device whose selector is a random
//! well-typed expression. The match, or the error of the expression, must be equal. An expression
//! that upstream's compiler refuses cannot be stored: such expressions are counted, few, and not
//! compared. `PINTLE_VECTOR_CASES` sets the number of expressions, `PINTLE_SEED` the first seed.

use k8s_openapi::api::resource::v1::Device;
use pintle_scheduler_core::plugins::dynamicresources::alone;
use serde_json::{Value, json};

use crate::device_vectors::{DeviceVector, ask, number_of_cases};
use crate::generate::ChoiceDice;
use crate::vectors;

/// Expressions in CI.
const EXPRESSIONS: u64 = 3_000;
/// Expressions of a world.
const OF_WORLD: u64 = 100;
/// Differences that are worth printing.
const SHOWN: usize = 20;
/// How deep expressions are.
const DEPTH: usize = 4;
/// How many in a thousand may have another cost: ours does not know the types of some lists, and
/// with them the overload of `sort`, which has costs of its own.
const DEARER_MAX: usize = 5;
/// How many in a hundred upstream's compiler may refuse.
const REFUSED_MAX: usize = 15;

/// Puts an expression together. Names of variables are numbers of the whole numbers they stand for.
struct ExpressionWriter<'a> {
    dice: &'a mut ChoiceDice,
    names: usize,
}

/// An expression whose parts `$b`, `$i`, `$s`, `$d`, `$l` (of numbers), `$t` (of texts), `$q`, `$v`
/// are others of that type, as are `$T` (times), `$D` (durations), `$a` (addresses), `$c`
/// (networks), `$u` (URLs), `$f` (formats), `$z` (time zones); `$n` is a new name, `$B`, `$I`, `$S`
/// are parts that may use it.
type Shape = &'static str;

const BOOLS: [Shape; 78] = [
    "true",
    "ATTR.healthy",
    "ATTR.absent",
    "$i < $i",
    "$i <= $i",
    "$i == $i",
    "$i != $i",
    "$d < $d",
    "$d >= $i",
    "$s == $s",
    "$s < $s",
    "$i in $l",
    "$s in $t",
    "!($b)",
    "($b && $b)",
    "($b || $b)",
    "($b ? $b : $b)",
    "$l.all($n, $B)",
    "$l.exists($n, $B)",
    "$l.exists_one($n, $B)",
    "$l.all(k, $n, $B && k >= 0)",
    "$l.exists(k, $n, $B || k > 2)",
    "$s.contains($s)",
    "$s.startsWith($s)",
    "$s.endsWith($s)",
    "$s.matches('^[a-z]+[0-9]*')",
    "$l.isSorted()",
    "$t.isSorted()",
    "sets.contains($l, $l)",
    "sets.intersects($l, $l)",
    "sets.equivalent($l, $l)",
    "$q.isGreaterThan($q)",
    "$q.isLessThan($q)",
    "$q == $q",
    "$q.isInteger()",
    "isQuantity($s)",
    "$v.isGreaterThan($v)",
    "$v == $v",
    "isSemver($s)",
    "has(ATTR.model)",
    "has(ATTR.absent)",
    "ATTR.?absent.hasValue()",
    "$l == $l",
    "type($i) == int",
    "$T < $T",
    "$T == $T",
    "$T >= $T",
    "$D > $D",
    "$D == $D",
    "isIP($s)",
    "isIP($A)",
    "ip.isCanonical($A)",
    "$a == $a",
    "$a.isLoopback()",
    "$a.isUnspecified()",
    "$a.isLinkLocalMulticast()",
    "$a.isLinkLocalUnicast()",
    "$a.isGlobalUnicast()",
    "isCIDR($C)",
    "$c.containsIP($a)",
    "$c.containsIP($A)",
    "$c.containsCIDR($c)",
    "$c.containsCIDR($C)",
    "$c == $c",
    "$c.masked() == $c",
    "isURL($U)",
    "isURL($s)",
    "$u == $u",
    "'a' in $u.getQuery()",
    "$f.validate($N).hasValue()",
    "$f.validate($s).hasValue()",
    "format.named($s).hasValue()",
    "$f == $f",
    "$l.transformMap($n, x99, x99 + $I).all(k, v, k >= 0)",
    "type($T) == google.protobuf.Timestamp",
    "type($D) == google.protobuf.Duration",
    "type($a) == net.IP",
    "type($c) == net.CIDR",
];
const INTS: [Shape; 63] = [
    "0",
    "1",
    "-3",
    "7",
    "ATTR.cores",
    "ATTR.missing",
    "($i + $i)",
    "($i - $i)",
    "($i * $i)",
    "($i / $i)",
    "($i % $i)",
    "-($i)",
    "($b ? $i : $i)",
    "size($s)",
    "$s.size()",
    "size($l)",
    "$t.size()",
    "$s.indexOf($s)",
    "$s.indexOf($s, $i)",
    "$s.lastIndexOf($s)",
    "$l.indexOf($i)",
    "$l.lastIndexOf($i)",
    "$l.sum()",
    "$l.min()",
    "$l.max()",
    "$l[$i]",
    "$l[?$i].orValue($i)",
    "$l.first().orValue($i)",
    "$l.last().value()",
    "int($s)",
    "int($d)",
    "$q.asInteger()",
    "sign($q)",
    "$q.compareTo($q)",
    "$v.major()",
    "$v.compareTo($v)",
    "ATTR.?cores.orValue($i)",
    "cel.bind($n, $i, $I)",
    "$T.getFullYear()",
    "$T.getMonth($z)",
    "$T.getDate()",
    "$T.getDate($z)",
    "$T.getDayOfMonth($z)",
    "$T.getDayOfWeek($z)",
    "$T.getDayOfYear($z)",
    "$T.getHours($z)",
    "$T.getMinutes($z)",
    "$T.getSeconds()",
    "$T.getMilliseconds($z)",
    "int($T)",
    "int($D)",
    "$D.getHours()",
    "$D.getMinutes()",
    "$D.getSeconds()",
    "$D.getMilliseconds()",
    "$a.family()",
    "$c.prefixLength()",
    "size($u.getQuery())",
    "size([[1], $l].flatten(0))",
    "$l.transformMapEntry($n, x99, {x99: $I}).size()",
    "$l.transformList($n, x99, x99 + $I).sum()",
    "$l.transformList($n, x99, x99 > 1, $I).size()",
    "$l.transformMap($n, x99, x99 > 1, $I).size()",
];
const TEXTS: [Shape; 64] = [
    "''",
    "'a100'",
    "'abcabc'",
    "' x1 '",
    "'12'",
    "'äb'",
    "'1.2.3'",
    "ATTR.model",
    "ATTR.absent",
    "device.driver",
    "($s + $s)",
    "($b ? $s : $s)",
    "$s.charAt($i)",
    "$s.substring($i)",
    "$s.substring($i, $i)",
    "$s.replace($s, $s)",
    "$s.replace($s, $s, $i)",
    "$s.lowerAscii()",
    "$s.upperAscii()",
    "$s.trim()",
    "$s.find('[a-z]+')",
    "$t.join()",
    "$t.join('-')",
    "$t[$i]",
    "string($i)",
    "string($b)",
    "string($d)",
    "ATTR.?model.orValue($s)",
    "ATTR.?absent.orValue($s)",
    "cel.bind($n, $i, $S)",
    "string($T)",
    "string($D)",
    "string($a)",
    "string($c)",
    "string($c.ip())",
    "$u.getScheme()",
    "$u.getHost()",
    "$u.getHostname()",
    "$u.getPort()",
    "$u.getEscapedPath()",
    "$u.getQuery()['a'][0]",
    "$f.validate($N).value()[0]",
    "$f.validate($s).orValue(['fine']).join('; ')",
    "'%s|%s'.format([$s, $i])",
    "'%d %x %X %o %b'.format([$i, $i, $i, $i, $i])",
    "'%f %.2f'.format([$d, $d])",
    "'%e|%.1e'.format([$d, $d])",
    "'%.20e|%f|%e|%.1f'.format([$d, 'NaN', 'Infinity', '-Infinity'])",
    "'%s'.format([[double('Inf'), double('NaN'), $d]])",
    "'%s %s'.format([$l, $t])",
    "'%s'.format([[$T, timestamp(0)]])",
    "'%s'.format([[$D]])",
    "'%s'.format([{'k': $i, 'a': $i}])",
    "'%x|%s'.format([$s, $b])",
    "$s.format([$i])",
    "('%' + $s).format([$i])",
    "('%.' + $s).format([$d])",
    "('%%' + $s).format([])",
    "'%s %s %s'.format([$d, null, type($i)])",
    "'%s'.format([[$s, $s]])",
    "strings.quote($s)",
    "strings.quote('a\\n\\t\"' + $s)",
    "'%s'.format([$T])",
    "'%b'.format([$b])",
];
const DOUBLES: [Shape; 11] = [
    "0.5",
    "-2.25",
    "1e6",
    "double($i)",
    "($d + $d)",
    "($d * $d)",
    "($d / $d)",
    "$q.asApproximateFloat()",
    "double($s)",
    "1234567.891",
    "1.5e-7",
];
const LISTS: [Shape; 18] = [
    "[]",
    "[3, 1, 2]",
    "[1, 1]",
    "[$i, $i]",
    "$l.map($n, $I)",
    "$l.filter($n, $B)",
    "$l.map($n, $B, $I)",
    "($l + $l)",
    "lists.range(3)",
    "$l.reverse()",
    "$l.distinct()",
    "$l.sort()",
    "$l.slice($i, $i)",
    "[[1], $l].flatten()",
    "$l.sortBy($n, $I)",
    "$l.sortBy($n, -$I)",
    "$l.transformList($n, x99, $I)",
    "[[[1]], [$l]].flatten(2)",
];
const TEXT_LISTS: [Shape; 11] = [
    "['b', 'a']",
    "[$s]",
    "$s.split('b')",
    "$s.split('', $i)",
    "$s.findAll('[0-9]')",
    "$s.findAll('[a-z]', $i)",
    "$l.map($n, $S)",
    "$t.sort()",
    "$t.sortBy(e, size(e))",
    "$t.sortBy(e, e)",
    "$u.getQuery()['a']",
];
const QUANTITIES: [Shape; 8] = [
    "CAP.memory",
    "CAP.absent",
    "quantity('1500m')",
    "quantity('2Gi')",
    "quantity($s)",
    "$q.add($q)",
    "$q.sub($q)",
    "$q.add($i)",
];
const VERSIONS: [Shape; 5] = [
    "ATTR.firmware",
    "semver('1.2.3')",
    "semver('2.0.0-rc.1')",
    "semver('v1.10', true)",
    "semver($s)",
];

const TIMES: [Shape; 12] = [
    "timestamp('2024-02-29T12:34:56.789Z')",
    "timestamp('2023-12-31T23:59:59.000000001+02:00')",
    "timestamp('0001-01-01T00:00:00Z')",
    "timestamp('9999-12-31T23:59:59.999999999Z')",
    "timestamp($i)",
    "timestamp('20' + $s)",
    "timestamp('2024-0' + string($i) + '-15T01:02:03-07:30')",
    "timestamp('2023-02-2' + string($i) + 'T01:02:03.' + string($i) + 'Z')",
    "($T + $D)",
    "($T - $D)",
    "($D + $T)",
    "timestamp($T)",
];
const DURATIONS: [Shape; 12] = [
    "duration('1h2m3.5s')",
    "duration('-90m')",
    "duration('0')",
    "duration('1ns')",
    "duration(string($i) + 's')",
    "duration(string($d) + 'h')",
    "duration($s)",
    "($D + $D)",
    "($D - $D)",
    "($T - $T)",
    "duration('2562047h')",
    "duration($D)",
];
/// Names of time zones, and invalid ones.
const ZONES: [Shape; 9] = [
    "'UTC'",
    "''",
    "'+02:00'",
    "'-01:30'",
    "'05:45'",
    "'America/New_York'",
    "'Nowhere/Else'",
    "'../etc'",
    "(string($i) + ':' + $s)",
];
const ADDRESSES: [Shape; 5] = ["ip($A)", "ip('10.1.2.3')", "ip('fe80::1')", "$c.ip()", "ip($s)"];
const ADDRESS_TEXTS: [Shape; 24] = [
    "'127.0.0.1'",
    "'0.0.0.0'",
    "'255.255.255.255'",
    "'169.254.1.1'",
    "'224.0.0.1'",
    "'1.2.3'",
    "'1.2.3.4.5'",
    "'1.2.3.256'",
    "'01.2.3.4'",
    "'1..2.3'",
    "'1.2.3.4a'",
    "'::1'",
    "'::'",
    "'2001:DB8::0:1'",
    "'ff02::1'",
    "'::ffff:1.2.3.4'",
    "'fe80::1%eth0'",
    "'fe80::1%'",
    "'1:2:3:4:5:6:7:8:9'",
    "'1::2::3'",
    "'12345::'",
    "'1:2:3:4:5:6:7'",
    "'1:2:3:4:5:6:' + $A",
    "$s + ':' + $s",
];
const NETWORKS: [Shape; 5] =
    ["cidr($C)", "cidr('10.0.0.0/8')", "cidr('10.1.2.3/16')", "cidr('fe80::/10')", "$c.masked()"];
const NETWORK_TEXTS: [Shape; 10] = [
    "'10.0.0.0/8'",
    "'10.1.2.3/32'",
    "'0.0.0.0/0'",
    "'::/0'",
    "'10.0.0.0/33'",
    "'10.0.0.0/08'",
    "'10.0.0.0/'",
    "'fe80::1%a/64'",
    "$A + '/' + string($i)",
    "$A",
];
const URLS: [Shape; 4] = [
    "url($U)",
    "url('https://u:p@example.com:80/a/b?a=1&b=2&a=3')",
    "url('/a%2fb?a=x')",
    "url($s)",
];
const URL_TEXTS: [Shape; 26] = [
    "'http://example.com'",
    "'HTTP://[::1]:8080/x'",
    "'https://[fe80::1%25en0]/'",
    "'mailto:a@b'",
    "'http://a b/'",
    "'http://a:b/'",
    "'http://a:1:2/'",
    "'ftp://a:1:2/'",
    "'/path with space'",
    "'/p?a=%zz&b'",
    "'/%zz'",
    "'/%2'",
    "'*'",
    "'://x'",
    "'1http://x'",
    "'relative/path'",
    "'//host/path'",
    "'http://h/a;b:@!$(*)?a=b+c%20d'",
    "'http://u%40:p@h'",
    "'http://u ser@h'",
    "'http://[::1'",
    "'http://[1.2.3.4]/'",
    "'http://h%41/'",
    "'http://h/ä?a=ö#f%zz'",
    "'http://h' + $s",
    "'/' + $s + '?' + $s",
];
const FORMATS: [Shape; 14] = [
    "format.dns1123Label()",
    "format.dns1123Subdomain()",
    "format.dns1035Label()",
    "format.qualifiedName()",
    "format.dns1123LabelPrefix()",
    "format.dns1123SubdomainPrefix()",
    "format.dns1035LabelPrefix()",
    "format.labelValue()",
    "format.uri()",
    "format.uuid()",
    "format.byte()",
    "format.date()",
    "format.datetime()",
    "format.named('uri').value()",
];
/// Names of formats.
const NAMES: [Shape; 20] = [
    "'my-name'",
    "'my.name'",
    "'My_Name'",
    "'-a'",
    "'a-'",
    "'ab-'",
    "'123-abc'",
    "'example.com/Name'",
    "'a/b/c'",
    "'/b'",
    "'a/'",
    "'aGVsbG8='",
    "'aGVsbG8'",
    "'123e4567-e89b-12d3-a456-426614174000'",
    "'123e4567e89b12d3a456426614174000'",
    "'2021-02-29'",
    "'2024-02-29'",
    "'2021-01-01T00:00:00.5Z'",
    "'2021-01-01t24:00:00+01:00'",
    "$s + 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'",
];

impl ExpressionWriter<'_> {
    fn of(&mut self, kind: char, deep: usize) -> String {
        let shapes: &[Shape] = match kind {
            'b' | 'B' => &BOOLS,
            'i' | 'I' => &INTS,
            's' | 'S' => &TEXTS,
            'd' => &DOUBLES,
            'l' => &LISTS,
            't' => &TEXT_LISTS,
            'q' => &QUANTITIES,
            'T' => &TIMES,
            'D' => &DURATIONS,
            'z' => &ZONES,
            'a' => &ADDRESSES,
            'A' => &ADDRESS_TEXTS,
            'c' => &NETWORKS,
            'C' => &NETWORK_TEXTS,
            'u' => &URLS,
            'U' => &URL_TEXTS,
            'f' => &FORMATS,
            'N' => &NAMES,
            _ => &VERSIONS,
        };
        if self.names > 0 && (kind == 'i' || kind == 'I') && self.dice.chance(40) {
            return format!("x{}", self.dice.below(self.names));
        }
        let mut shape = shapes[self.dice.below(shapes.len())];
        // At the last level only shapes without parts.
        while deep == 0 && shape.contains('$') {
            shape = shapes[self.dice.below(shapes.len())];
        }
        self.filled(shape, deep.saturating_sub(1))
    }

    fn filled(&mut self, shape: &str, deep: usize) -> String {
        let names = self.names;
        let mut text = String::new();
        let mut chars = shape.chars();
        while let Some(c) = chars.next() {
            match (c, if c == '$' { chars.next() } else { None }) {
                ('$', Some('n')) => text += &format!("x{names}"),
                ('$', Some(kind)) => {
                    self.names = if "BIS".contains(kind) { names + 1 } else { names };
                    text += &self.of(kind, deep);
                    self.names = names;
                }
                _ => text.push(c),
            }
        }
        text
    }
}

fn expression(dice: &mut ChoiceDice) -> String {
    let text = ExpressionWriter { dice, names: 0 }.of('b', DEPTH);
    text.replace("ATTR", "device.attributes['d.example']")
        .replace("CAP", "device.capacity['d.example']")
}

fn device() -> Value {
    let attributes = json!({"model": {"string": "a100"}, "cores": {"int": 8},
        "healthy": {"bool": true}, "firmware": {"version": "1.2.3"}});
    json!({"name": "gpu", "attributes": attributes, "capacity": {"memory": {"value": "40Gi"}}})
}

fn world(seed: u64) -> Value {
    let mut dice = ChoiceDice::new(seed);
    let device = device();
    let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
    let claim = |text: String| {
        let exactly = json!({"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1,
            "selectors": [{"cel": {"expression": text}}]});
        json!([{"metadata": {"name": "c", "namespace": "ns", "uid": "c"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}])
    };
    let pods: Vec<Value> = (0..OF_WORLD).map(|_| claim(expression(&mut dice))).collect();
    json!({"seed": seed, "node": {"metadata": {"name": "n"}},
        "classes": [{"metadata": {"name": "any"}, "spec": {}}],
        "slices": [{"metadata": {"name": "s"}, "spec": {"driver": "d.example", "nodeName": "n",
            "pool": pool, "devices": [device]}}],
        "taken": [], "pods": pods, "answers": null})
}

#[test]
fn every_selector_evaluates_as_in_upstreams_cel() {
    let (count, first) = number_of_cases(EXPRESSIONS);
    let (mut fits, mut refused, mut failed, mut all) = (0, 0, 0, 0);
    let mut found = Vec::new();
    ask(first..first + count.div_ceil(OF_WORLD), world, |DeviceVector { claims, ours, theirs }| {
        all += 1;
        let error = theirs["error"].as_str().unwrap_or_default();
        // Ours need not fail where upstream's compiler has an internal error.
        if error.contains("CEL compile error") || error.contains("internal error") {
            refused += 1;
            return;
        }
        fits += usize::from(theirs["allocations"] != Value::Null);
        failed += usize::from(!error.is_empty());
        if ours != theirs {
            let text =
                &claims[0]["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]["cel"];
            let told = |answer: &Value| match answer["error"].as_str() {
                Some(error) => error.to_owned(),
                None if answer["allocations"] != Value::Null => "true".to_owned(),
                None => "false".to_owned(),
            };
            found.push(format!(
                "{}\n  ours   {}\n  theirs {}",
                text["expression"],
                told(ours),
                told(theirs)
            ));
        }
    });
    let differ = found.len();
    println!("{all} selectors: {fits} fit, {failed} fail, {refused} no CEL, {differ} differ");
    // The shortest say most.
    found.sort_by_key(String::len);
    found.truncate(SHOWN);
    assert!(found.is_empty(), "{differ} differ\n{}", found.join("\n"));
    assert!(refused * 100 <= all * REFUSED_MAX, "{refused} of {all} are no CEL");
    assert!(fits > 0 && failed > 0, "one kind of answer was never seen");
}

/// The device of all worlds and expressions about it, as `selector-vectors` reads them.
fn priced_world(seed: u64) -> Value {
    let mut dice = ChoiceDice::new(seed);
    let texts: Vec<String> = (0..OF_WORLD).map(|_| expression(&mut dice)).collect();
    json!({"seed": seed, "driver": "d.example", "device": device(), "expressions": texts,
        "answers": null})
}

/// Upstream's price decides which expressions have an answer at all, and so has to be the same.
/// What the API server's estimate refuses is not stored; it is compared all the same.
#[test]
fn every_selector_costs_as_much_as_in_upstreams_cel() {
    let (count, first) = number_of_cases(EXPRESSIONS);
    let (mut all, mut refused, mut found) = (0, 0, Vec::new());
    let seeds = first..first + count.div_ceil(OF_WORLD);
    vectors::ask("selector-vectors", seeds, priced_world, |line| {
        let world: Value = serde_json::from_str(line).expect("an answer");
        let device: Device = serde_json::from_value(world["device"].clone()).expect("a device");
        let texts = world["expressions"].as_array().expect("expressions");
        let answers = world["answers"].as_array().expect("answers");
        assert_eq!(texts.len(), answers.len());
        for (text, theirs) in texts.iter().zip(answers) {
            let text = text.as_str().unwrap_or_default();
            let error = theirs["error"].as_str().unwrap_or_default();
            all += 1;
            if theirs["compile"].is_string() || error.contains("internal error") {
                refused += 1;
                continue;
            }
            let ours = alone::selected(text, "d.example", &device).expect(text);
            let fits = if error.is_empty() { theirs["matches"].as_bool() } else { None };
            assert_eq!(ours.fits.clone().ok(), fits, "{text}");
            // A call with failing arguments may cost a few units more or less.
            let same = theirs["cost"] == ours.cost || fits.is_none();
            if !same {
                found.push(format!("{text}\n  ours   {ours:?}\n  theirs {theirs}"));
            }
        }
    });
    let differ = found.len();
    println!("{all} selectors: {refused} no CEL, {differ} differ in price");
    found.sort_by_key(String::len);
    found.truncate(SHOWN);
    let is_rare = differ * 1_000 <= all * DEARER_MAX;
    assert!(is_rare, "{differ} of {all} differ\n{}", found.join("\n"));
    assert!(refused * 100 <= all * REFUSED_MAX, "{refused} of {all} are no CEL");
}
