//! Functions of lists, also as sets.
//!
//! Input: values. Output: a value, or upstream's error message. Owner: pure functions. Bounds: each
//! value is charged before it is read or copied.
// k8s: vendor/github.com/google/cel-go/ext/{lists,sets}.go, apiserver/pkg/cel/library/lists.go

use std::cmp::Ordering;
use std::rc::Rc;

use super::account::Account;
use super::error::CelError;
use super::eval::{Evaluated, no_overload};
use super::functions::{calculate, placed};
use super::texts;
use super::value::Value;

pub(super) fn of_sets(
    name: &str,
    a: &[Value],
    b: &[Value],
    account: &Account,
) -> Result<bool, CelError> {
    let all_in = |some: &[Value], of: &[Value]| {
        for one in some {
            if position(of.iter(), one, account)?.is_none() {
                return Ok(false);
            }
        }
        Ok::<_, CelError>(true)
    };
    match name {
        "sets.contains" => all_in(b, a),
        "sets.equivalent" => Ok(all_in(a, b)? && all_in(b, a)?),
        _ => {
            for one in a {
                if position(b.iter(), one, account)?.is_some() {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// Returns the index of the first element that equals a value.
pub(super) fn position<'v>(
    all: impl Iterator<Item = &'v Value>,
    value: &Value,
    account: &Account,
) -> Result<Option<usize>, CelError> {
    for (at, one) in all.enumerate() {
        if one.equals(value, account)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Returns the order of two values, or an error if they have none.
fn order(a: &Value, b: &Value, account: &Account) -> Result<Ordering, CelError> {
    account.read(a.text_bytes().min(b.text_bytes()))?;
    a.order(b).ok_or_else(no_overload)
}

pub(super) fn of_list(name: &str, all: &[Value], rest: &[Value], account: &Account) -> Evaluated {
    match (name, rest) {
        ("join", _) => texts::join(all, rest, account),
        ("isSorted", []) => {
            let mut is_sorted = true;
            for (a, b) in all.iter().zip(all.iter().skip(1)) {
                is_sorted &= order(a, b, account)?.is_le();
            }
            Ok(Value::Bool(is_sorted))
        }
        ("sum", []) => match all.split_first() {
            None => Ok(Value::Int(0)),
            Some((first, rest)) => rest.iter().try_fold(first.clone(), |sum, one| {
                account.work(1)?;
                calculate("+", &sum, one)
            }),
        },
        ("min", []) => most(name, all, Ordering::Greater, account),
        ("max", []) => most(name, all, Ordering::Less, account),
        ("indexOf", [one]) => Ok(placed(position(all.iter(), one, account)?)),
        ("lastIndexOf", [one]) => {
            let from_end = position(all.iter().rev(), one, account)?;
            Ok(placed(from_end.map(|at| all.len() - 1 - at)))
        }
        ("distinct", []) => {
            let mut found: Vec<Value> = Vec::new();
            for one in all {
                if position(found.iter(), one, account)?.is_none() {
                    account.list(1)?;
                    found.push(one.clone());
                }
            }
            Ok(Value::List(found.into()))
        }
        ("reverse", []) => {
            account.list(all.len())?;
            Ok(Value::List(all.iter().rev().cloned().collect()))
        }
        ("sort", []) => sort_by(all, all, account),
        ("flatten", []) => flatten(all, 1, account),
        ("flatten", [Value::Int(levels)]) => match u32::try_from(*levels) {
            Ok(levels) => flatten(all, levels, account),
            Err(_) if *levels < 0 => Err("level must be non-negative".into()),
            Err(_) => flatten(all, u32::MAX, account),
        },
        ("slice", [Value::Int(from), Value::Int(to)]) => slice(all, *from, *to, account),
        ("first", []) => Ok(some(all.first())),
        ("last", []) => Ok(some(all.last())),
        ("contains" | "startsWith" | "endsWith" | "matches", _) => Err(no_overload()),
        _ => {
            let kinds: Vec<&str> = rest.iter().map(Value::kind).collect();
            let kinds = [&["list"], &kinds[..]].concat().join(", ");
            Err(format!("no such overload: {name}({kinds})").into())
        }
    }
}

fn some(value: Option<&Value>) -> Value {
    Value::Optional(value.map(|value| Rc::new(value.clone())))
}

/// Returns the least or the largest element, the first one among equals. `gives_way` is the order
/// relative to the next element at which the found element is replaced.
// k8s: apiserver/pkg/cel/library/lists.go cmp
fn most(name: &str, all: &[Value], gives_way: Ordering, account: &Account) -> Evaluated {
    let Some((first, rest)) = all.split_first() else {
        return Err(format!("{name} called on empty list").into());
    };
    let mut found = first;
    for one in rest {
        account.work(1)?;
        // NaN has no order: it neither replaces an element nor is replaced.
        let are_numbers = found.is_number() && one.is_number();
        match order(found, one, account) {
            Ok(order) if order == gives_way => found = one,
            Err(error) if !are_numbers => return Err(error),
            _ => {}
        }
    }
    Ok(found.clone())
}

fn slice(all: &[Value], from: i64, to: i64, account: &Account) -> Evaluated {
    let wrong = |why: &str| Err(CelError::from(format!("cannot slice({from}, {to}), {why}")));
    let (Ok(start), Ok(end)) = (usize::try_from(from), usize::try_from(to)) else {
        return wrong("negative indexes not supported");
    };
    match all.get(start..end) {
        Some(part) => {
            account.list(part.len())?;
            Ok(Value::List(part.into()))
        }
        None if start > end => wrong("start index must be less than or equal to end index"),
        None => wrong(&format!("list is length {}", all.len())),
    }
}

/// Flattens a number of levels of nested lists.
fn flatten(all: &[Value], levels: u32, account: &Account) -> Evaluated {
    let mut found = Vec::new();
    flatten_into(&mut found, all, levels, account)?;
    Ok(Value::List(found.into()))
}

fn flatten_into(
    found: &mut Vec<Value>,
    all: &[Value],
    levels: u32,
    account: &Account,
) -> Result<(), CelError> {
    for one in all {
        match one {
            Value::List(inner) if levels > 0 => {
                account.work(1)?;
                account.deeper(|| flatten_into(found, inner, levels - 1, account))?;
            }
            other => {
                account.list(1)?;
                found.push(other.clone());
            }
        }
    }
    Ok(())
}

/// Sorts elements by their keys, which must be of one kind; `keys` has one for each element.
// k8s: vendor/github.com/google/cel-go/ext/lists.go sortListByAssociatedKeys
pub(super) fn sort_by(all: &[Value], keys: &[Value], account: &Account) -> Evaluated {
    account.list(2 * all.len())?;
    let Some(first) = keys.first() else { return Ok(Value::List(all.into())) };
    if first.order(first).is_none() && !first.is_number() {
        return Err("list elements must be comparable".into());
    }
    if keys.iter().any(|key| key.kind() != first.kind()) {
        return Err("list elements must have the same type".into());
    }
    // In each round of the sort a key is compared about once, which reads at most as many bytes of
    // the other key as it has itself.
    let bytes: usize = keys.iter().map(Value::text_bytes).sum();
    let of_round = keys.len() as u64 + bytes as u64 / 16;
    account.at_once(of_round.saturating_mul(2 * u64::from(1 + keys.len().ilog2())))?;
    let mut places: Vec<usize> = (0..all.len()).collect();
    places.sort_by(|a, b| keys[*a].total_order(&keys[*b]));
    Ok(Value::List(places.into_iter().map(|at| all[at].clone()).collect()))
}
