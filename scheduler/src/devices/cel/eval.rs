//! The value of an expression for one device.
//!
//! Input: a checked tree, a device. Output: a value, or why there is none. Owner: one evaluation.
//! Bounds: every node costs a step, texts and lists their size; `COST_MAX` steps are all. The clock is
//! looked at each `STEPS_UNSEEN` of them.
// k8s: vendor/github.com/google/cel-go/interpreter/{interpretable,attributes,runtimecost}.go

use std::cell::OnceCell;
use std::rc::Rc;

use super::check::TYPES;
use super::parse::{Fold, Node, Tree};
use super::value::{Key, Map, Value};
use super::{COST_MAX, Patterns, Unanswered, functions, texts};

/// Steps between two looks at the time.
const STEPS_UNSEEN: u64 = 1_024;

/// A value, or why there is none.
pub(super) type Evaluated = Result<Value, String>;

/// The value of a tree.
///
/// # Errors
/// When it has none for this device, or none in time.
pub(super) fn evaluate(
    tree: &Tree,
    device: &Value,
    patterns: &Patterns,
    is_late: &dyn Fn() -> bool,
) -> Result<Value, Unanswered> {
    let names = Names { name: "device", is: Is::Value(device.clone()), outer: None };
    let mut evaluation = Evaluation { cost: 0, unseen: 0, was_late: false, patterns, is_late };
    let found = evaluation.of(tree, &names);
    if evaluation.was_late { Err(Unanswered::Late) } else { found.map_err(Unanswered::Error) }
}

/// What names mean, innermost first.
struct Names<'a> {
    name: &'a str,
    is: Is<'a>,
    outer: Option<&'a Names<'a>>,
}

/// What a name means.
enum Is<'a> {
    Value(Value),
    /// What is bound to it, evaluated among these names once somebody asks, whatever comes of it.
    Bound {
        to: &'a Tree,
        names: &'a Names<'a>,
        found: OnceCell<Evaluated>,
    },
}

impl<'a> Names<'a> {
    fn find(&self, name: &str) -> Option<&Is<'a>> {
        if self.name == name {
            return Some(&self.is);
        }
        self.outer.and_then(|outer| outer.find(name))
    }
}

/// One evaluation.
struct Evaluation<'a> {
    cost: u64,
    /// Steps since the last look at the time.
    unseen: u64,
    /// It took too long: it has cost all that it may.
    was_late: bool,
    patterns: &'a Patterns,
    is_late: &'a dyn Fn() -> bool,
}

pub(super) fn no_overload() -> String {
    "no such overload".to_owned()
}

/// Whether it is a list without anything in it as it is written.
// k8s: vendor/github.com/google/cel-go/interpreter/optimizations.go maybeOptimizeSetMembership
fn is_empty(tree: &Tree) -> bool {
    matches!(&tree.node, Node::List(parts) if parts.is_empty())
}

/// How much it costs to read a value once.
fn size(value: &Value) -> u64 {
    match value {
        Value::Str(text) => text.len() as u64 / 10,
        Value::Bytes(bytes) => bytes.len() as u64 / 10,
        Value::List(all) => all.len() as u64,
        Value::Map(map) => map.entries.len() as u64,
        _ => 0,
    }
}

/// What a function of these costs: of most, to read them.
fn price(name: &str, values: &[Value]) -> u64 {
    match (name, values) {
        ("matches" | "find" | "findAll", [Value::Str(text), Value::Str(pattern), ..]) => {
            let (text, pattern) = (text.len() as u64, pattern.len() as u64);
            (text + 1).div_ceil(10).saturating_mul(pattern.div_ceil(4))
        }
        ("distinct", [all]) => size(all).saturating_mul(size(all)).saturating_mul(2),
        (_, [a, b]) if name.starts_with("sets.") => size(a).saturating_mul(size(b)),
        // k8s: vendor/github.com/google/cel-go/ext/lists.go trackListFlatten
        ("flatten", [of, Value::Int(levels)]) => {
            size(of).saturating_add(size(of).saturating_mul(levels.unsigned_abs()))
        }
        _ => values.iter().map(size).sum(),
    }
}

impl Evaluation<'_> {
    /// Counts steps; one that is late has none left.
    fn pay(&mut self, steps: u64) -> Result<(), String> {
        self.cost = self.cost.saturating_add(steps);
        self.unseen = self.unseen.saturating_add(steps);
        if self.unseen >= STEPS_UNSEEN {
            self.unseen = 0;
            self.was_late |= (self.is_late)();
            self.cost = if self.was_late { u64::MAX } else { self.cost };
        }
        match self.cost > COST_MAX {
            true => Err("operation cancelled: actual cost limit exceeded".to_owned()),
            false => Ok(()),
        }
    }

    fn of(&mut self, tree: &Tree, names: &Names) -> Evaluated {
        self.pay(1)?;
        match &tree.node {
            Node::Literal(value) => Ok(value.clone()),
            Node::Name(name) => self.named(name, names),
            Node::Field { of, name, optional } => {
                let of = self.of(of, names)?;
                select(&of, &Value::Str(Rc::clone(name)), *optional)
            }
            Node::Has { of, name } => {
                let of = self.of(of, names)?;
                Ok(find(&of, &Value::Str(Rc::clone(name)))?.is_some().into())
            }
            Node::Index { of, at, optional } => {
                let of = self.of(of, names)?;
                let at = self.of(at, names)?;
                select(&of, &at, *optional)
            }
            Node::Call { name, target, args } => self.call(name, target.as_deref(), args, names),
            // Nothing is in there, whatever it is.
            Node::Operator { sign: "in", sides } if is_empty(&sides[1]) => Ok(Value::Bool(false)),
            Node::Operator { sign, sides } => {
                let left = self.of(&sides[0], names)?;
                let right = self.of(&sides[1], names)?;
                self.pay(size(&left) + size(&right))?;
                functions::operate(sign, &left, &right)
            }
            Node::Not(inner) => match self.of(inner, names)? {
                Value::Bool(b) => Ok(Value::Bool(!b)),
                _ => Err(no_overload()),
            },
            Node::Minus(inner) => functions::negate(&self.of(inner, names)?),
            Node::And(parts) => self.until(parts, names, false),
            Node::Or(parts) => self.until(parts, names, true),
            Node::If(parts) => match self.of(&parts[0], names)? {
                Value::Bool(true) => self.of(&parts[1], names),
                Value::Bool(false) => self.of(&parts[2], names),
                _ => Err(no_overload()),
            },
            Node::List(parts) => {
                let all: Result<Vec<Value>, String> =
                    parts.iter().map(|part| self.of(part, names)).collect();
                Ok(Value::List(all?.into()))
            }
            Node::Map(entries) => self.map(entries, names),
            Node::Bind { name, value, body } => {
                let is = Is::Bound { to: value, names, found: OnceCell::new() };
                self.of(body, &Names { name, is, outer: Some(names) })
            }
            Node::Fold { kind, over, names: own, bodies } => {
                let over = self.of(over, names)?;
                self.fold(*kind, &over, own, bodies, names)
            }
        }
    }

    /// Parts in any order: one that decides makes up for the errors of the others.
    // k8s: vendor/github.com/google/cel-go/interpreter/interpretable.go evalOr, evalAnd
    fn until(&mut self, parts: &[Tree], names: &Names, decides: bool) -> Evaluated {
        let mut failed = None;
        for part in parts {
            match self.of(part, names) {
                Ok(Value::Bool(b)) if b == decides => return Ok(Value::Bool(decides)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failed = failed.or_else(|| Some(no_overload())),
                Err(_) if self.cost > COST_MAX => {
                    return Err(self.pay(0).err().unwrap_or_default());
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(Value::Bool(!decides)), Err)
    }

    fn named(&mut self, name: &str, names: &Names) -> Evaluated {
        match names.find(name) {
            Some(Is::Value(value)) => Ok(value.clone()),
            Some(Is::Bound { to, names, found }) => match found.get() {
                Some(found) => found.clone(),
                None => {
                    let value = self.of(to, names);
                    found.get_or_init(|| value).clone()
                }
            },
            None => {
                let kind = TYPES.into_iter().find(|kind| *kind == name);
                kind.map(Value::Type).ok_or_else(|| format!("no such attribute(s): {name}"))
            }
        }
    }

    fn map(&mut self, entries: &[(Tree, Tree)], names: &Names) -> Evaluated {
        let mut map = Map::default();
        for (key, value) in entries {
            let key = self.of(key, names)?;
            let key = Key::of(&key).ok_or("unsupported key type")?;
            let value = self.of(value, names)?;
            if map.entries.insert(key, value).is_some() {
                return Err("Failed with repeated key".to_owned());
            }
        }
        Ok(Value::Map(Rc::new(map)))
    }

    fn call(
        &mut self,
        name: &str,
        target: Option<&Tree>,
        args: &[Tree],
        names: &Names,
    ) -> Evaluated {
        let mut values = Vec::with_capacity(args.len() + 1);
        for arg in target.into_iter().chain(args) {
            // Of `a.orValue(b)`, b is looked at only where a has nothing.
            if let [Value::Optional(Some(value))] = &values[..] {
                match name {
                    "orValue" => return Ok(Value::clone(value)),
                    "or" => return Ok(values.swap_remove(0)),
                    _ => {}
                }
            }
            values.push(self.of(arg, names)?);
        }
        self.pay(price(name, &values))?;
        // There may be less memory than a result takes that nobody could pay for.
        let bytes = texts::bytes_of(name, &values);
        self.pay(bytes.unwrap_or(0) / 10)?;
        let result = match (name, &values[..]) {
            (
                "matches" | "find" | "findAll",
                [Value::Str(text), Value::Str(pattern), most @ ..],
            ) => {
                if !self.patterns.has(pattern) {
                    // To compile one takes as long as many steps.
                    self.unseen = STEPS_UNSEEN;
                    self.pay(0)?;
                }
                texts::search(name, text, &*self.patterns.compiled(pattern)?, most)?
            }
            _ => functions::call(name, target.is_some(), &values)?,
        };
        self.pay(if bytes.is_none() { size(&result) } else { 0 })?;
        Ok(result)
    }

    fn fold(
        &mut self,
        kind: Fold,
        over: &Value,
        own: &[Rc<str>],
        bodies: &[Tree],
        names: &Names,
    ) -> Evaluated {
        let entries = entries(kind, over, own.len())?;
        let mut result = Folded::default();
        for (key, value) in entries {
            self.pay(1)?;
            let entry = key.clone();
            let first = Names { name: &own[0], is: Is::Value(key), outer: Some(names) };
            let second = value.zip(own.get(1)).map(|(value, name)| Names {
                name,
                is: Is::Value(value),
                outer: Some(&first),
            });
            let inner = second.as_ref().unwrap_or(&first);
            let [mapped @ .., last] = bodies else { return Err(no_overload()) };
            // The middle one of three chooses.
            let chosen = match mapped.first() {
                Some(filter) => self.of(filter, inner).and_then(|value| truth(&value)),
                None => Ok(true),
            };
            match chosen {
                Ok(true) => {
                    if let Some(answer) = result.add(kind, self.of(last, inner), &entry)? {
                        return Ok(answer);
                    }
                }
                Ok(false) => {}
                Err(error) => result.failed = Some(error),
            }
            if self.cost > COST_MAX {
                self.pay(0)?;
            }
        }
        result.end(kind)
    }
}

/// What a fold has found so far.
#[derive(Default)]
struct Folded {
    failed: Option<String>,
    count: usize,
    list: Vec<Value>,
    keys: Vec<Value>,
    map: Map,
}

impl Folded {
    /// Takes what one entry gives; the answer, where that decides.
    fn add(
        &mut self,
        kind: Fold,
        found: Evaluated,
        entry: &Value,
    ) -> Result<Option<Value>, String> {
        match kind {
            Fold::All | Fold::Exists => {
                let decides = kind == Fold::Exists;
                match found.and_then(|value| truth(&value)) {
                    Ok(answer) if answer == decides => return Ok(Some(Value::Bool(decides))),
                    Ok(_) => {}
                    Err(error) => self.failed = self.failed.take().or(Some(error)),
                }
            }
            // Of conditions the last error counts, of values the first: that is how upstream's loop
            // hands on what it has.
            Fold::ExistsOne | Fold::Filter => match found.and_then(|value| truth(&value)) {
                Ok(true) => {
                    self.count += 1;
                    self.list.push(entry.clone());
                }
                Ok(false) => {}
                Err(error) => self.failed = Some(error),
            },
            Fold::Map | Fold::TransformList => match found {
                Ok(value) => self.list.push(value),
                Err(error) => self.failed = self.failed.take().or(Some(error)),
            },
            Fold::SortBy => match found {
                Ok(value) => {
                    self.list.push(entry.clone());
                    self.keys.push(value);
                }
                Err(error) => self.failed = self.failed.take().or(Some(error)),
            },
            Fold::TransformMap | Fold::TransformEntry if self.failed.is_none() => {
                let added = found.and_then(|found| self.insert(kind, entry, found));
                self.failed = added.err();
            }
            Fold::TransformMap | Fold::TransformEntry => {}
            Fold::OptMap => return Ok(Some(Value::Optional(Some(Rc::new(found?))))),
            Fold::OptFlatMap => return found.map(Some),
        }
        Ok(None)
    }

    /// Takes a value under its key, or entries that are there once.
    fn insert(&mut self, kind: Fold, entry: &Value, found: Value) -> Result<(), String> {
        let entries = match (kind, &found) {
            (Fold::TransformMap, _) => {
                vec![(Key::of(entry).ok_or("unsupported key type")?, found)]
            }
            (_, Value::Map(map)) => {
                map.entries.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
            }
            _ => return Err(no_overload()),
        };
        for (key, value) in entries {
            if self.map.entries.contains_key(&key) {
                let key = functions::convert("string", &key.value());
                let key = if let Ok(Value::Str(key)) = key { key } else { "".into() };
                return Err(format!("insert failed: key {key} already exists"));
            }
            self.map.entries.insert(key, value);
        }
        Ok(())
    }

    fn end(self, kind: Fold) -> Evaluated {
        if let Some(error) = self.failed {
            return Err(error);
        }
        Ok(match kind {
            Fold::All | Fold::Exists => Value::Bool(kind == Fold::All),
            Fold::ExistsOne => Value::Bool(self.count == 1),
            Fold::Filter | Fold::Map | Fold::TransformList => Value::List(self.list.into()),
            Fold::TransformMap | Fold::TransformEntry => Value::Map(Rc::new(self.map)),
            Fold::SortBy => return functions::sort_by(&self.list, &self.keys),
            Fold::OptMap | Fold::OptFlatMap => Value::Optional(None),
        })
    }
}

fn truth(value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(b) => Ok(*b),
        _ => Err(no_overload()),
    }
}

type Entries = Vec<(Value, Option<Value>)>;

/// What a fold goes over: the values of a list, the keys of a map, both where two are wanted.
fn entries(kind: Fold, over: &Value, names: usize) -> Result<Entries, String> {
    let is_optional = matches!(kind, Fold::OptMap | Fold::OptFlatMap);
    Ok(match over {
        Value::Optional(value) if is_optional => {
            value.iter().map(|value| (Value::clone(value), None)).collect()
        }
        _ if is_optional => return Err(no_overload()),
        Value::List(all) if names == 2 => {
            let numbered = |(at, value): (usize, &Value)| {
                (Value::Int(i64::try_from(at).unwrap_or(i64::MAX)), Some(value.clone()))
            };
            all.iter().enumerate().map(numbered).collect()
        }
        Value::List(all) => all.iter().map(|value| (value.clone(), None)).collect(),
        Value::Map(map) => {
            map.entries.iter().map(|(key, value)| (key.value(), Some(value.clone()))).collect()
        }
        _ => return Err(format!("got '{}', expected iterable type", over.go_type())),
    })
}

/// What a value has under a key.
fn find(of: &Value, key: &Value) -> Result<Option<Value>, String> {
    match of {
        Value::Map(map) => Ok(map.find(key)),
        Value::List(all) => {
            let Some(Key::Number(at)) = Key::of(key) else {
                return Err(format!("unsupported index type '{}' in list", key.kind()));
            };
            Ok(usize::try_from(at).ok().and_then(|at| all.get(at)).cloned())
        }
        Value::Optional(None) => Ok(None),
        Value::Optional(Some(value)) => find(value, key),
        _ => Ok(None),
    }
}

fn select(of: &Value, key: &Value, optional: bool) -> Evaluated {
    let found = find(of, key)?;
    // What is looked up in an optional value is optional itself.
    if optional || matches!(of, Value::Optional(_)) {
        return Ok(Value::Optional(found.map(Rc::new)));
    }
    found.ok_or_else(|| match (of, key) {
        (Value::List(_), Value::Int(at)) => format!("index out of bounds: {at}"),
        (_, Value::Str(name)) => format!("no such key: {name}"),
        (_, Value::Int(at)) => format!("no such key: {at}"),
        _ => "no such key".to_owned(),
    })
}
