//! Made-up selectors of devices, evaluated by upstream's CEL and by ours.
//!
//! Upstream's allocator (`device_vectors`) is asked for one device whose selector is an expression that
//! was put together by its types; whether the device fits, or what is wrong with the expression, has to
//! be equal. What upstream's compiler refuses nobody can store: such expressions are counted, few, and
//! not compared. `PINTLE_VECTOR_CASES` sets how many expressions, `PINTLE_SEED` where they begin.

use serde_json::{Value, json};

use crate::device_vectors::{Asked, ask, number_of_cases};
use crate::generate::Dice;

/// Expressions in CI.
const EXPRESSIONS: u64 = 3_000;
/// Expressions of a world.
const OF_WORLD: u64 = 100;
/// Differences that are worth printing.
const SHOWN: usize = 20;
/// How deep expressions are.
const DEPTH: usize = 4;
/// How many in a hundred upstream's compiler may refuse.
const REFUSED_MAX: usize = 15;

/// Puts an expression together. Names of variables are numbers of the whole numbers they stand for.
struct Writer<'a> {
    dice: &'a mut Dice,
    names: usize,
}

/// An expression whose parts `$b`, `$i`, `$s`, `$d`, `$l` (of numbers), `$t` (of texts), `$q`, `$v` are
/// others of that type; `$n` is a new name, `$B`, `$I`, `$S` are parts that may use it.
type Shape = &'static str;

const BOOLS: [Shape; 44] = [
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
];
const INTS: [Shape; 38] = [
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
];
const TEXTS: [Shape; 30] = [
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
];
const DOUBLES: [Shape; 9] = [
    "0.5",
    "-2.25",
    "1e6",
    "double($i)",
    "($d + $d)",
    "($d * $d)",
    "($d / $d)",
    "$q.asApproximateFloat()",
    "double($s)",
];
const LISTS: [Shape; 14] = [
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
];
const TEXT_LISTS: [Shape; 8] = [
    "['b', 'a']",
    "[$s]",
    "$s.split('b')",
    "$s.split('', $i)",
    "$s.findAll('[0-9]')",
    "$s.findAll('[a-z]', $i)",
    "$l.map($n, $S)",
    "$t.sort()",
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

impl Writer<'_> {
    fn of(&mut self, kind: char, deep: usize) -> String {
        let shapes: &[Shape] = match kind {
            'b' | 'B' => &BOOLS,
            'i' | 'I' => &INTS,
            's' | 'S' => &TEXTS,
            'd' => &DOUBLES,
            'l' => &LISTS,
            't' => &TEXT_LISTS,
            'q' => &QUANTITIES,
            _ => &VERSIONS,
        };
        if self.names > 0 && (kind == 'i' || kind == 'I') && self.dice.chance(40) {
            return format!("x{}", self.dice.below(self.names));
        }
        let mut shape = shapes[self.dice.below(shapes.len())];
        // At the end only what has no parts.
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
                    self.names = if kind.is_uppercase() { names + 1 } else { names };
                    text += &self.of(kind, deep);
                    self.names = names;
                }
                _ => text.push(c),
            }
        }
        text
    }
}

fn expression(dice: &mut Dice) -> String {
    let text = Writer { dice, names: 0 }.of('b', DEPTH);
    text.replace("ATTR", "device.attributes['d.example']")
        .replace("CAP", "device.capacity['d.example']")
}

fn world(seed: u64) -> Value {
    let mut dice = Dice::new(seed);
    let attributes = json!({"model": {"string": "a100"}, "cores": {"int": 8},
        "healthy": {"bool": true}, "firmware": {"version": "1.2.3"}});
    let device = json!({"name": "gpu", "attributes": attributes,
        "capacity": {"memory": {"value": "40Gi"}}});
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
fn every_selector_says_what_upstreams_cel_says() {
    let (count, first) = number_of_cases(EXPRESSIONS);
    let (mut fits, mut refused, mut failed, mut all) = (0, 0, 0, 0);
    let mut found = Vec::new();
    ask(first..first + count.div_ceil(OF_WORLD), world, |Asked { claims, ours, theirs }| {
        all += 1;
        let error = theirs["error"].as_str().unwrap_or_default();
        // Nor does anybody have to stumble where upstream does.
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
