//! The value of an expression for one device.
//!
//! Input: a checked tree, a device. Output: a value, or an error. Owner: one evaluation. Bounds:
//! see [`Account`]; every node is charged, and so is every value that may be large.
// k8s: vendor/github.com/google/cel-go/interpreter/{interpretable,attributes,runtimecost}.go

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use super::account::Account;
use super::check::TYPES;
use super::error::CelError;
use super::parse::{ExprNode, Fold, Tree};
use super::value::{Map, MapKey, Value};
use super::{Patterns, Unanswered, cost, folds, functions, texts};

/// Work units of one node.
const NODE_WORK: u64 = 8;

/// A value, or an error.
pub(super) type Evaluated = Result<Value, CelError>;

/// Evaluates a tree.
///
/// # Errors
/// It has no value for this device, or exceeds a limit.
pub(super) fn evaluate(
    tree: &Tree,
    device: &Value,
    patterns: &Patterns,
    account: &Account,
) -> Result<Value, Unanswered> {
    let names = ScopeValues { name: "device", is: Is::Value(device.clone()), outer: None };
    account.ended(Evaluation { account, patterns }.of(tree, &names))
}

/// Names in scope, innermost first.
pub(super) struct ScopeValues<'a> {
    pub(super) name: &'a str,
    pub(super) is: Is<'a>,
    pub(super) outer: Option<&'a ScopeValues<'a>>,
}

/// Meaning of a name.
pub(super) enum Is<'a> {
    Value(Value),
    /// A value that upstream evaluates at its first use, at this price.
    Priced {
        value: Value,
        cost: Cell<u64>,
    },
    /// A bound expression, evaluated among these names at its first use; errors are kept too.
    Bound {
        to: &'a Tree,
        names: &'a ScopeValues<'a>,
        found: OnceCell<Evaluated>,
    },
}

/// One evaluation.
pub(super) struct Evaluation<'a> {
    pub(super) account: &'a Account<'a>,
    pub(super) patterns: &'a Patterns,
}

pub(super) fn no_overload() -> CelError {
    "no such overload".into()
}

/// Returns true for a list literal whose elements are compared as a set.
// k8s: vendor/github.com/google/cel-go/interpreter/decorators.go maybeOptimizeSetMembership
fn is_set(tree: &Tree) -> bool {
    let is_primitive = |value: &Value| {
        let kind = value.kind();
        ["bool", "int", "uint", "double", "string", "null_type"].contains(&kind)
    };
    matches!(&tree.node, ExprNode::Literal(Value::List(all)) if all.iter().all(is_primitive))
}

impl Evaluation<'_> {
    /// Evaluates a tree, at upstream's price.
    pub(super) fn of(&self, tree: &Tree, names: &ScopeValues) -> Evaluated {
        let found = self.resolve(tree, names);
        // A choice costs its parts only, and so does `has`.
        let is_free =
            matches!(tree.node, ExprNode::If(_) | ExprNode::Has { .. }) || !tree.is_attribute();
        self.account.charge(u64::from(!is_free))?;
        found
    }

    /// Evaluates a part of an attribute, which upstream resolves as a whole and charges once.
    fn root(&self, tree: &Tree, names: &ScopeValues) -> Evaluated {
        if tree.is_attribute() { self.resolve(tree, names) } else { self.of(tree, names) }
    }

    fn resolve(&self, tree: &Tree, names: &ScopeValues) -> Evaluated {
        self.account.work(NODE_WORK)?;
        self.account.deeper(|| self.node(tree, names))
    }

    fn node(&self, tree: &Tree, names: &ScopeValues) -> Evaluated {
        match &tree.node {
            ExprNode::Literal(value) => Ok(value.clone()),
            ExprNode::Name(name) => self.named(name, names),
            ExprNode::Field { of, name, optional } => {
                let of = self.root(of, names)?;
                self.select(&of, &Value::Str(Rc::clone(name)), *optional)
            }
            ExprNode::Has { of, name } => {
                let of = self.root(of, names)?;
                self.account.charge(1)?;
                Ok(self.find(&of, &Value::Str(Rc::clone(name)))?.is_some().into())
            }
            ExprNode::Index { of, at, optional } => self.index(of, at, *optional, names),
            ExprNode::Call { name, target, args, typed } => {
                let parts: Vec<&Tree> = target.as_deref().into_iter().chain(args).collect();
                let (values, failed) = self.arguments(name, &parts, names)?;
                let is_member = target.is_some();
                let call =
                    cost::FunctionCall { name, is_member, values: &values, typed: typed.get() };
                match failed {
                    None => self.call(&call),
                    Some(error) => {
                        // Upstream treats an error as a value of size one; a call with a literal
                        // pattern does not get here.
                        let is_search = matches!(&**name, "matches" | "find" | "findAll");
                        let is_free = is_search && parts[1].literal().is_some();
                        let cost = if is_free { 0 } else { call.cost(None, self.account)? };
                        self.account.charge(cost)?;
                        Err(error)
                    }
                }
            }
            ExprNode::Operator { sign, sides, typed } => {
                self.operator(sign, sides, typed.get(), names)
            }
            ExprNode::Not(inner) => self.unary(inner, names, |value| match value {
                Value::Bool(b) => Ok(Value::Bool(!b)),
                _ => Err(no_overload()),
            }),
            ExprNode::Minus(inner) => self.unary(inner, names, |value| functions::negate(&value)),
            ExprNode::And(parts) => self.until(parts, names, false),
            ExprNode::Or(parts) => self.until(parts, names, true),
            ExprNode::If(parts) => match self.of(&parts[0], names)? {
                Value::Bool(true) => self.root(&parts[1], names),
                Value::Bool(false) => self.root(&parts[2], names),
                _ => Err(no_overload()),
            },
            ExprNode::List(parts) => self.list(parts, names),
            ExprNode::Map(entries) => self.map(entries, names),
            ExprNode::Bind { name, value, body } => {
                let is = Is::Bound { to: value, names, found: OnceCell::new() };
                self.of(body, &ScopeValues { name, is, outer: Some(names) })
            }
            ExprNode::Fold { kind, over, names: own, bodies, typed } => {
                let prices = folds::Prices::of(*kind, bodies, typed.get());
                self.fold(prices, over, own, bodies, names)
            }
        }
    }

    fn unary(
        &self,
        inner: &Tree,
        names: &ScopeValues,
        apply: impl FnOnce(Value) -> Evaluated,
    ) -> Evaluated {
        let found = self.of(inner, names);
        self.account.charge(1)?;
        apply(found?)
    }

    fn index(&self, of: &Tree, at: &Tree, optional: bool, names: &ScopeValues) -> Evaluated {
        let of = self.root(of, names)?;
        match self.root(at, names) {
            Ok(at) => self.select(&of, &at, optional),
            Err(error) => {
                self.account.charge(1)?;
                Err(error)
            }
        }
    }

    fn operator(
        &self,
        sign: &str,
        sides: &[Tree; 2],
        typed: bool,
        names: &ScopeValues,
    ) -> Evaluated {
        // An empty list contains nothing, whatever the left side is.
        if sign == "in"
            && matches!(&sides[1].node, ExprNode::Literal(Value::List(l)) if l.is_empty())
        {
            return Ok(Value::Bool(false));
        }
        let (left, right) = (self.of(&sides[0], names), self.of(&sides[1], names));
        let is_set = sign == "in" && is_set(&sides[1]);
        if !is_set {
            let sides = [left.as_ref().ok(), right.as_ref().ok()];
            self.account.charge(cost::operator(sign, sides, typed, self.account)?)?;
        }
        functions::operate(sign, &left?, &right?, self.account)
    }

    /// Evaluates parts in any order: a deciding one absorbs the errors of the others.
    // k8s: vendor/github.com/google/cel-go/interpreter/interpretable.go evalOr, evalAnd
    fn until(&self, parts: &[Tree], names: &ScopeValues, decides: bool) -> Evaluated {
        let mut failed = None;
        for part in parts {
            match self.of(part, names) {
                Ok(Value::Bool(b)) if b == decides => return Ok(Value::Bool(decides)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failed = failed.or_else(|| Some(no_overload())),
                Err(error) => failed = failed.or(Some(error)),
            }
            self.account.still()?;
        }
        failed.map_or(Ok(Value::Bool(!decides)), Err)
    }

    fn named(&self, name: &str, names: &ScopeValues) -> Evaluated {
        let mut at = Some(names);
        while let Some(names) = at.filter(|names| names.name != name) {
            self.account.work(1)?;
            at = names.outer;
        }
        match at.map(|names| &names.is) {
            Some(Is::Value(value)) => Ok(value.clone()),
            Some(Is::Priced { value, cost }) => {
                self.account.charge(cost.take())?;
                Ok(value.clone())
            }
            Some(Is::Bound { to, names, found }) => match found.get() {
                Some(found) => found.clone(),
                None => {
                    let value = self.of(to, names);
                    found.get_or_init(|| value).clone()
                }
            },
            None => {
                let kind = TYPES.into_iter().find(|kind| *kind == name);
                kind.map(Value::Type)
                    .ok_or_else(|| CelError::from(format!("no such attribute(s): {name}")))
            }
        }
    }

    fn list(&self, parts: &[Tree], names: &ScopeValues) -> Evaluated {
        self.account.list(parts.len())?;
        let all: Result<Vec<Value>, CelError> =
            parts.iter().map(|part| self.of(part, names)).collect();
        self.account.charge(cost::LIST)?;
        Ok(Value::List(all?.into()))
    }

    fn map(&self, entries: &[(Tree, Tree)], names: &ScopeValues) -> Evaluated {
        let mut map = Map::default();
        self.account.charge(cost::MAP)?;
        for (key, value) in entries {
            let key = self.of(key, names)?;
            let value = self.of(value, names)?;
            let key = MapKey::of(&key).ok_or(CelError::from("unsupported key type"))?;
            self.account.entry(&key)?;
            if map.entries.insert(key, value).is_some() {
                return Err("Failed with repeated key".into());
            }
        }
        Ok(Value::Map(Rc::new(map)))
    }

    /// Evaluates the arguments of a call, the receiver first. Returns the error of the first that
    /// fails, which leaves a gap.
    fn arguments(
        &self,
        name: &str,
        parts: &[&Tree],
        names: &ScopeValues,
    ) -> Result<(Vec<Value>, Option<CelError>), CelError> {
        let (mut values, mut failed) = (Vec::with_capacity(parts.len()), None);
        for (at, part) in parts.iter().enumerate() {
            // `b` of `a.orValue(b)` is evaluated only if `a` is empty.
            if matches!(&values[..], [Value::Optional(Some(_))]) && cost::is_choice(name) {
                break;
            }
            match self.of(part, names) {
                Ok(value) => values.push(value),
                // Of two arguments both are evaluated; of more, none after the first error.
                Err(error) if parts.len() > 2 && at + 1 < parts.len() => return Err(error),
                Err(error) if cost::is_choice(name) => return Err(error),
                Err(error) => {
                    values.push(Value::Null);
                    failed = failed.or(Some(error));
                }
            }
            self.account.still()?;
        }
        Ok((values, failed))
    }

    fn call(&self, call: &cost::FunctionCall) -> Evaluated {
        let (name, is_member) = (call.name, call.is_member);
        if let ("orValue" | "or", [of @ Value::Optional(Some(value))]) = (name, call.values) {
            return Ok(if name == "or" { of.clone() } else { Value::clone(value) });
        }
        if let (
            "matches" | "find" | "findAll",
            [Value::Str(text), Value::Str(pattern), most @ ..],
        ) = (name, call.values)
        {
            // Upstream's cost is known in advance, and may exceed the limit before the call.
            self.account.charge(cost::search(name, is_member, text, pattern, self.account)?)?;
            let pattern = self.patterns.compiled(pattern, self.account)?;
            return texts::search(name, text, &pattern, most, self.account);
        }
        let result = functions::call(name, is_member, call.values, self.account);
        self.account.still()?;
        self.account.charge(call.cost(result.as_ref().ok(), self.account)?)?;
        result
    }

    /// Looks a key up in a value.
    fn find(&self, of: &Value, key: &Value) -> Result<Option<Value>, CelError> {
        match of {
            Value::Map(map) => {
                self.account.read(key.text_bytes())?;
                Ok(map.find(key))
            }
            Value::List(all) => {
                let Some(MapKey::Number(at)) = MapKey::of(key) else {
                    return Err(format!("unsupported index type '{}' in list", key.kind()).into());
                };
                Ok(usize::try_from(at).ok().and_then(|at| all.get(at)).cloned())
            }
            Value::Optional(None) => Ok(None),
            Value::Optional(Some(value)) => {
                self.account.work(1)?;
                self.account.deeper(|| self.find(value, key))
            }
            _ => Ok(None),
        }
    }

    fn select(&self, of: &Value, key: &Value, optional: bool) -> Evaluated {
        // A lookup in an optional value returns an optional value.
        let is_optional = optional || matches!(of, Value::Optional(_));
        let found = self.find(of, key);
        // Upstream charges nothing for an absent optional entry.
        self.account.charge(u64::from(!(is_optional && matches!(found, Ok(None)))))?;
        let found = found?;
        if is_optional {
            return Ok(Value::Optional(found.map(Rc::new)));
        }
        found.ok_or_else(|| match (of, key) {
            (Value::List(_), Value::Int(at)) => format!("index out of bounds: {at}").into(),
            (_, Value::Str(name)) => format!("no such key: {name}").into(),
            (_, Value::Int(at)) => format!("no such key: {at}").into(),
            _ => "no such key".into(),
        })
    }

    /// Evaluates a macro over the entries of a list or a map.
    fn fold(
        &self,
        prices: folds::Prices,
        over: &Tree,
        own: &[Rc<str>],
        bodies: &[Tree],
        names: &ScopeValues,
    ) -> Evaluated {
        let kind = prices.kind;
        let before = self.account.cost();
        let over = self.of(over, names)?;
        // Upstream evaluates a present entry a second time, for its value.
        let again = self.account.cost() - before + 1;
        let entries = folds::entries(kind, &over, own.len(), self.account)?;
        let mut result = folds::Folded::new(kind, prices.typed, self.account);
        self.account.charge(prices.once)?;
        for (key, value) in entries {
            self.account.work(NODE_WORK)?;
            self.account.charge(prices.each)?;
            if result.is_decided() {
                break;
            }
            self.account.charge(prices.step)?;
            let entry = key.clone();
            let is = match kind {
                Fold::OptMap | Fold::OptFlatMap => Is::Priced { value: key, cost: again.into() },
                _ => Is::Value(key),
            };
            let first = ScopeValues { name: &own[0], is, outer: Some(names) };
            let second = value.zip(own.get(1)).map(|(value, name)| ScopeValues {
                name,
                is: Is::Value(value),
                outer: Some(&first),
            });
            let inner = second.as_ref().unwrap_or(&first);
            let [mapped @ .., last] = bodies else { return Err(no_overload()) };
            // The middle one of three is the condition.
            let chosen = match mapped.first() {
                Some(filter) => self.of(filter, inner).and_then(|value| folds::truth(&value)),
                None => Ok(true),
            };
            match chosen {
                Ok(true) => {
                    self.account.charge(prices.chosen)?;
                    let found = self.of(last, inner);
                    self.account.still()?;
                    result.add(found, &entry, prices.kept)?;
                }
                Ok(false) => {}
                Err(error) => result.fail(error),
            }
            self.account.still()?;
        }
        self.account.charge(prices.end)?;
        result.end()
    }
}
