//! Checks an expression before it is evaluated for any device.
//!
//! Input: a tree. Output: the kind of value that it gives, as far as that is certain. Owner: pure
//! functions. The API server has checked every stored expression with all of CEL's types; this
//! check rejects only what can never be evaluated: unknown names, functions and fields of a device.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/cel/compile.go newCompiler

use std::rc::Rc;

use super::error::CelError;
use super::parse::{ExprNode, Fold, Tree};
use super::value::Value;
use super::{signatures, times};

/// Fields of a device.
const FIELDS: [&str; 4] = ["driver", "allowMultipleAllocations", "attributes", "capacity"];
/// Names of types.
pub(super) const TYPES: [&str; 13] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    times::TIME,
    times::DURATION,
    "net.IP",
    "net.CIDR",
];

/// The kind of an expression's value; `None` where it depends on the device.
///
/// # Errors
/// The expression names something that does not exist.
pub(super) fn kind(tree: &Tree, lists: bool) -> Result<Option<&'static str>, CelError> {
    of(tree, &mut ScopeKinds { all: Vec::new(), lists })
}

/// Names in scope, with their kinds if known; `lists` says if functions for list attributes exist.
struct ScopeKinds<'a> {
    all: Vec<(&'a str, Option<&'static str>)>,
    lists: bool,
}

impl ScopeKinds<'_> {
    /// Returns the kind of the innermost variable of this name.
    fn find(&self, name: &str) -> Option<Option<&'static str>> {
        self.all.iter().rev().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }
}

fn of<'a>(tree: &'a Tree, names: &mut ScopeKinds<'a>) -> Result<Option<&'static str>, CelError> {
    match &tree.node {
        ExprNode::Literal(value) => Ok(Some(value.kind())),
        ExprNode::Name(name) => match names.find(name) {
            Some(kind) => Ok(kind),
            None if &**name == "device" => Ok(Some("kubernetes.DRADevice")),
            None if TYPES.contains(&&**name) => Ok(Some("type")),
            None => Err(undeclared(name)),
        },
        ExprNode::Field { of: inner, name, .. } | ExprNode::Has { of: inner, name } => {
            let inner = of(inner, names)?;
            field(inner, name, matches!(tree.node, ExprNode::Has { .. }))
        }
        ExprNode::Index { of: inner, at, .. } => {
            of(inner, names)?;
            of(at, names)?;
            let is_query =
                matches!(&inner.node, ExprNode::Call { name, .. } if &**name == "getQuery");
            Ok(if is_query { Some("list") } else { element(inner, names) })
        }
        ExprNode::Call { name, target, args, typed } => {
            let (kind, is_typed) = call(name, target.as_deref(), args, names)?;
            typed.set(is_typed);
            Ok(kind)
        }
        ExprNode::Operator { sign, sides, typed } => {
            let (left, right) = (of(&sides[0], names)?, of(&sides[1], names)?);
            // One known side is enough to choose the overload, except for the left side of `in`.
            typed.set(right.is_some() || *sign != "in" && left.is_some());
            operator(sign, left, right)
        }
        ExprNode::Not(inner) => {
            of(inner, names)?;
            Ok(Some("bool"))
        }
        ExprNode::Minus(inner) => of(inner, names),
        ExprNode::And(parts) | ExprNode::Or(parts) => logical(parts, names),
        ExprNode::If(parts) => {
            of(&parts[0], names)?;
            let (yes, no) = (of(&parts[1], names)?, of(&parts[2], names)?);
            Ok(yes.filter(|_| yes == no))
        }
        ExprNode::List(parts) => {
            parts.iter().try_for_each(|part| of(part, names).map(drop))?;
            Ok(Some("list"))
        }
        ExprNode::Map(entries) => {
            for (key, value) in entries {
                of(key, names)?;
                of(value, names)?;
            }
            Ok(Some("map"))
        }
        ExprNode::Bind { name, value, body } => {
            let bound = of(value, names)?;
            names.all.push((name, bound));
            let kind = of(body, names);
            names.all.pop();
            kind
        }
        ExprNode::Fold { kind, over, names: own, bodies, typed } => {
            typed.set(fold(over, own, bodies, names)?);
            Ok(folded(*kind))
        }
    }
}

/// Returns the kind of a call's result, and if upstream's checker knows the overload.
fn call<'a>(
    name: &str,
    target: Option<&'a Tree>,
    args: &'a [Tree],
    names: &mut ScopeKinds<'a>,
) -> Result<(Option<&'static str>, bool), CelError> {
    let mut kinds = Vec::with_capacity(args.len() + 1);
    for arg in target.into_iter().chain(args) {
        kinds.push(of(arg, names)?);
    }
    let is_typed = match (name, target) {
        ("sort", Some(target)) => is_empty(target) || element(target, names).is_some(),
        _ => kinds.first().is_some_and(Option::is_some),
    };
    let known = signatures::signature(name, target.is_some(), args.len());
    let known = known.filter(|_| names.lists || name != signatures::INCLUDES);
    let kind = known.ok_or_else(|| undeclared(name))?;
    let of_list = match (name, target) {
        ("sum" | "min" | "max", Some(target)) => element(target, names),
        ("value" | "orValue", Some(Tree { node: ExprNode::Call { name, target, .. }, .. }))
            if matches!(&**name, "first" | "last") =>
        {
            target.as_deref().and_then(|list| element(list, names))
        }
        _ => None,
    };
    Ok((kind.or(of_list), is_typed))
}

/// Returns true if upstream's checker knows the result of the last body of a macro.
fn fold<'a>(
    over: &'a Tree,
    own: &'a [Rc<str>],
    bodies: &'a [Tree],
    names: &mut ScopeKinds<'a>,
) -> Result<bool, CelError> {
    of(over, names)?;
    let last = within(over, own, names, |names| {
        let kinds = bodies.iter().map(|body| of(body, names));
        kinds.collect::<Result<Vec<_>, _>>().map(|kinds| kinds.last().copied().flatten())
    })?;
    let is_name = |body: &Tree| matches!(body.node, ExprNode::Name(_));
    let is_plain = |body: &Tree| match &body.node {
        ExprNode::Minus(inner) => is_name(inner),
        _ => is_name(body),
    };
    Ok(last.is_some() || is_empty(over) && bodies.last().is_some_and(is_plain))
}

/// Runs a function with the loop variables of a macro in scope.
fn within<'a, T>(
    over: &'a Tree,
    own: &'a [Rc<str>],
    names: &mut ScopeKinds<'a>,
    inner: impl FnOnce(&mut ScopeKinds<'a>) -> T,
) -> T {
    let element = element(over, names);
    let (first, second) = if own.len() == 2 { (key(over), element) } else { (element, None) };
    let known = names.all.len();
    names.all.extend(own.iter().map(|name| &**name).zip([first, second]));
    let found = inner(names);
    names.all.truncate(known);
    found
}

fn logical<'a>(
    parts: &'a [Tree],
    names: &mut ScopeKinds<'a>,
) -> Result<Option<&'static str>, CelError> {
    for part in parts {
        let kind = of(part, names)?;
        if kind.is_some_and(|kind| kind != "bool") {
            return Err(no_overload("&&, ||", kind));
        }
    }
    Ok(Some("bool"))
}

fn folded(kind: Fold) -> Option<&'static str> {
    match kind {
        Fold::All | Fold::Exists | Fold::ExistsOne => Some("bool"),
        Fold::Filter | Fold::Map | Fold::TransformList | Fold::SortBy => Some("list"),
        Fold::TransformMap | Fold::TransformEntry => Some("map"),
        Fold::OptMap | Fold::OptFlatMap => Some("optional_type"),
    }
}

fn field(
    inner: Option<&'static str>,
    name: &str,
    is_asked: bool,
) -> Result<Option<&'static str>, CelError> {
    if inner == Some("kubernetes.DRADevice") && !FIELDS.contains(&name) {
        return Err(format!("undefined field '{name}'").into());
    }
    let known = match name {
        _ if is_asked => Some("bool"),
        _ if inner != Some("kubernetes.DRADevice") => None,
        "driver" => Some("string"),
        "allowMultipleAllocations" => Some("bool"),
        _ => Some("map"),
    };
    Ok(known)
}

/// Returns true for an empty list literal, which is a list of any kind.
fn is_empty(tree: &Tree) -> bool {
    match &tree.node {
        ExprNode::Literal(Value::List(all)) => all.is_empty(),
        ExprNode::Operator { sides, .. } => sides.iter().all(is_empty),
        ExprNode::Call { target: Some(target), .. } => is_empty(target),
        ExprNode::Fold { over, .. } => is_empty(over),
        _ => false,
    }
}

/// Returns the kind of a list's elements, or of a map's keys, if that is certain.
fn element<'a>(tree: &'a Tree, names: &mut ScopeKinds<'a>) -> Option<&'static str> {
    match &tree.node {
        ExprNode::Literal(Value::List(all)) => all.first().map(Value::kind),
        ExprNode::List(parts) => parts.first().and_then(|part| of(part, names).ok().flatten()),
        ExprNode::Operator { sides, .. } => element(&sides[0], names).or(element(&sides[1], names)),
        ExprNode::Field { of, .. } if matches!(&of.node, ExprNode::Name(n) if &**n == "device") => {
            Some("string")
        }
        ExprNode::Index { of, .. } => match &of.node {
            ExprNode::Field { .. } => element(of, names),
            ExprNode::Call { name, .. } if &**name == "getQuery" => Some("string"),
            _ => None,
        },
        ExprNode::Call { name, target, args, .. } => match (&**name, target, &args[..]) {
            ("lists.range", ..) => Some("int"),
            ("split" | "findAll", ..) => Some("string"),
            ("reverse" | "sort" | "distinct" | "slice", Some(target), _) => element(target, names),
            ("flatten", Some(target), []) => match &target.node {
                ExprNode::List(parts) => parts.first().and_then(|part| element(part, names)),
                ExprNode::Literal(Value::List(all)) => match all.first() {
                    Some(Value::List(inner)) => inner.first().map(Value::kind),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        },
        ExprNode::Fold { kind: Fold::Filter | Fold::SortBy, over, .. } => element(over, names),
        ExprNode::Fold {
            kind: Fold::Map | Fold::TransformList, over, names: own, bodies, ..
        } => within(over, own, names, |names| of(bodies.last()?, names).ok().flatten()),
        _ => None,
    }
}

/// Returns the kind of the first of two loop variables: an index of a list, or a key.
fn key(over: &Tree) -> Option<&'static str> {
    match &over.node {
        ExprNode::Literal(Value::List(_)) | ExprNode::List(_) => Some("int"),
        ExprNode::Call { .. } | ExprNode::Fold { .. } => Some("int"),
        _ => None,
    }
}

fn operator(
    sign: &str,
    left: Option<&'static str>,
    right: Option<&'static str>,
) -> Result<Option<&'static str>, CelError> {
    match sign {
        "+" | "-" | "*" | "/" | "%" => Ok(calculated(sign, left, right)),
        "in" => Ok(Some("bool")),
        _ => {
            let numbers = [Value::Int(0), Value::Uint(0), Value::Double(0.0)].map(|v| v.kind());
            let is_number = |kind: &str| numbers.contains(&kind);
            match left.zip(right) {
                // Numbers of different types can be ordered, but are never declared equal.
                Some((a, b)) if a != b && !(is_number(a) && is_number(b)) => {
                    Err(no_overload(sign, left))
                }
                _ => Ok(Some("bool")),
            }
        }
    }
}

/// Returns the kind of an arithmetic result; times and durations yield each other.
fn calculated(
    sign: &str,
    left: Option<&'static str>,
    right: Option<&'static str>,
) -> Option<&'static str> {
    let (time, duration) = (Some(times::TIME), Some(times::DURATION));
    match sign {
        "-" if left == time => right.map(|right| match right == times::TIME {
            true => times::DURATION,
            false => times::TIME,
        }),
        "+" if left == duration => right,
        "+" if left == time => time,
        _ => left.or(right),
    }
}

fn undeclared(name: &str) -> CelError {
    format!("undeclared reference to '{name}' (in container '')").into()
}

fn no_overload(sign: &str, kind: Option<&str>) -> CelError {
    format!("found no matching overload for '{sign}' applied to '{}'", kind.unwrap_or("dyn")).into()
}
