//! Macros over the entries of a list or a map.
//!
//! Input: entries, and the results of their bodies. Output: a value. Owner: one macro call. Bounds:
//! those of the account; a list is charged before it is copied.
// k8s: vendor/github.com/google/cel-go/{parser/macro.go,ext/{comprehensions,lists}.go,cel/library.go}

use std::rc::Rc;

use super::account::{Account, Paid};
use super::cost;
use super::error::CelError;
use super::eval::{Evaluated, no_overload};
use super::functions;
use super::lists;
use super::parse::{ExprNode, Fold, Tree};
use super::value::{Map, MapKey, Value};

/// Upstream's cost of loops in addition to their bodies, in its units.
pub(super) struct Prices {
    /// The macro.
    pub(super) kind: Fold,
    /// Before any entry.
    pub(super) once: u64,
    /// Cost of the loop condition, for each entry.
    pub(super) each: u64,
    /// Cost of the loop step.
    pub(super) step: u64,
    /// Cost of a chosen entry, or of the final check that none is.
    pub(super) chosen: u64,
    /// Cost of an entry that the body accepts.
    pub(super) kept: u64,
    /// The result.
    pub(super) end: u64,
    /// True if the checker knows what the last body gives.
    pub(super) typed: bool,
}

impl Prices {
    pub(super) fn of(kind: Fold, bodies: &[Tree], typed: bool) -> Self {
        let is_literal =
            bodies.last().is_some_and(|body| matches!(body.node, ExprNode::Literal(_)));
        // `result + [body]`; a list of literals is created once.
        let added = 2 + if is_literal { 0 } else { cost::LIST };
        let plain = Self { kind, once: 0, each: 0, step: 0, chosen: 0, kept: 0, end: 1, typed };
        match kind {
            Fold::All => Self { each: 2, step: 1, ..plain },
            Fold::Exists => Self { each: 3, step: 1, ..plain },
            Fold::ExistsOne => Self { kept: 2, end: 2, ..plain },
            Fold::Filter => Self { kept: 3 + cost::LIST, ..plain },
            Fold::Map | Fold::TransformList => Self { chosen: added, ..plain },
            Fold::SortBy => Self { once: 2, chosen: added, ..plain },
            Fold::TransformMap => Self { chosen: 3, ..plain },
            Fold::TransformEntry => Self { chosen: 2, ..plain },
            Fold::OptMap => Self { once: 1, chosen: 1, end: 0, ..plain },
            Fold::OptFlatMap => Self { once: 1, end: 0, ..plain },
        }
    }
}

/// State of a fold.
pub(super) struct Folded<'a> {
    kind: Fold,
    typed: bool,
    account: &'a Account<'a>,
    answer: Option<Evaluated>,
    failed: Option<CelError>,
    count: usize,
    list: Vec<Value>,
    keys: Vec<Value>,
    map: Map,
}

impl<'a> Folded<'a> {
    pub(super) fn new(kind: Fold, typed: bool, account: &'a Account<'a>) -> Self {
        let (list, keys, map) = (Vec::new(), Vec::new(), Map::default());
        Self { kind, typed, account, answer: None, failed: None, count: 0, list, keys, map }
    }

    /// Is the result known without the remaining entries?
    pub(super) fn is_decided(&self) -> bool {
        self.answer.is_some()
    }

    /// Records the error of a condition: of conditions the last one counts, of values the first.
    pub(super) fn fail(&mut self, error: CelError) {
        self.failed = Some(error);
    }

    /// Records the result of one entry.
    pub(super) fn add(&mut self, found: Evaluated, entry: &Value, kept: u64) -> Paid {
        match self.kind {
            Fold::All | Fold::Exists => {
                let decides = self.kind == Fold::Exists;
                match found.and_then(|value| truth(&value)) {
                    Ok(answer) if answer == decides => {
                        self.answer = Some(Ok(Value::Bool(decides)));
                    }
                    Ok(_) => {}
                    Err(error) => self.failed = self.failed.take().or(Some(error)),
                }
            }
            Fold::ExistsOne | Fold::Filter => match found.and_then(|value| truth(&value)) {
                Ok(true) => {
                    self.account.charge(kept)?;
                    self.count += 1;
                    self.push(entry.clone())?;
                }
                Ok(false) => {}
                Err(error) => self.failed = Some(error),
            },
            Fold::Map | Fold::TransformList => match found {
                Ok(value) => self.push(value)?,
                Err(error) => self.failed = self.failed.take().or(Some(error)),
            },
            Fold::SortBy => match found {
                Ok(value) => {
                    self.push(entry.clone())?;
                    self.account.list(1)?;
                    self.keys.push(value);
                }
                Err(error) => self.failed = self.failed.take().or(Some(error)),
            },
            Fold::TransformMap | Fold::TransformEntry if self.failed.is_none() => {
                let added = found.and_then(|found| self.insert(entry, found));
                self.failed = added.err();
            }
            Fold::TransformMap | Fold::TransformEntry => {}
            Fold::OptMap => {
                self.answer = Some(found.map(|value| Value::Optional(Some(Rc::new(value)))));
            }
            Fold::OptFlatMap => self.answer = Some(found),
        }
        Ok(())
    }

    fn push(&mut self, value: Value) -> Paid {
        self.account.list(1)?;
        self.list.push(value);
        Ok(())
    }

    /// Records a value under its key, or single entries.
    fn insert(&mut self, entry: &Value, found: Value) -> Paid {
        let entries = match (self.kind, &found) {
            (Fold::TransformMap, _) => {
                vec![(MapKey::of(entry).ok_or(CelError::from("unsupported key type"))?, found)]
            }
            (_, Value::Map(map)) => {
                self.account.list(map.entries.len())?;
                map.entries.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
            }
            _ => return Err(no_overload()),
        };
        for (key, value) in entries {
            self.account.entry(&key)?;
            if self.map.entries.contains_key(&key) {
                let key = functions::convert("string", &key.value(), self.account);
                let key = if let Ok(Value::Str(key)) = key { key } else { "".into() };
                return Err(format!("insert failed: key {key} already exists").into());
            }
            self.map.entries.insert(key, value);
        }
        Ok(())
    }

    pub(super) fn end(self) -> Evaluated {
        let is_choice = matches!(self.kind, Fold::OptMap | Fold::OptFlatMap);
        // `optional.none()` is a call.
        self.account.charge(u64::from(is_choice && self.answer.is_none()))?;
        if let Some(answer) = self.answer {
            return answer;
        }
        if let Some(error) = self.failed {
            return Err(error);
        }
        Ok(match self.kind {
            Fold::All | Fold::Exists => Value::Bool(self.kind == Fold::All),
            Fold::ExistsOne => Value::Bool(self.count == 1),
            Fold::Filter | Fold::Map | Fold::TransformList => Value::List(self.list.into()),
            Fold::TransformMap | Fold::TransformEntry => Value::Map(Rc::new(self.map)),
            Fold::SortBy => {
                let compared = cost::of_comparing(&self.keys);
                self.account.charge(if self.typed { compared } else { cost::CALL })?;
                return lists::sort_by(&self.list, &self.keys, self.account);
            }
            Fold::OptMap | Fold::OptFlatMap => Value::Optional(None),
        })
    }
}

pub(super) fn truth(value: &Value) -> Result<bool, CelError> {
    match value {
        Value::Bool(b) => Ok(*b),
        _ => Err(no_overload()),
    }
}

type Entries = Vec<(Value, Option<Value>)>;

/// Returns the entries to fold over: a list's values, a map's keys, or both for two loop variables.
pub(super) fn entries(
    kind: Fold,
    over: &Value,
    names: usize,
    account: &Account,
) -> Result<Entries, CelError> {
    let is_optional = matches!(kind, Fold::OptMap | Fold::OptFlatMap);
    account.list(2 * cost::length(over))?;
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
        _ => return Err(format!("got '{}', expected iterable type", over.go_type()).into()),
    })
}
