//! Parser: from tokens to a tree.
//!
//! Input: tokens. Output: a tree of [`ExprNode`]s at most [`DEPTH_MAX`] deep, with macros expanded.
//! Owner: pure functions. Names are not resolved here: see `check`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pintle_sched_core::attempt_budget::AttemptBudget;

use super::account::{Account, EvaluationLimits};
use super::check::TYPES;
use super::error::CelError;
use super::lex::{Token, tokens};
use super::value::{Map, MapKey, Value};
use super::{DEPTH_MAX, cost, functions};

/// A node, and the depth of the tree below it.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) node: ExprNode,
    depth: usize,
}

/// True if the checker knows which overload is called: upstream's cost of a call depends on that.
pub(super) type Typed = Cell<bool>;

/// A part of an expression.
#[derive(Clone, Debug)]
pub(super) enum ExprNode {
    Literal(Value),
    Name(Rc<str>),
    /// `of.name`, or `of.?name`.
    Field {
        of: Box<Tree>,
        name: Rc<str>,
        optional: bool,
    },
    /// `has(of.name)`.
    Has {
        of: Box<Tree>,
        name: Rc<str>,
    },
    /// `of[at]`, or `of[?at]`.
    Index {
        of: Box<Tree>,
        at: Box<Tree>,
        optional: bool,
    },
    Call {
        name: Rc<str>,
        target: Option<Box<Tree>>,
        args: Vec<Tree>,
        /// See [`Typed`].
        typed: Typed,
    },
    Operator {
        sign: &'static str,
        sides: Box<[Tree; 2]>,
        /// See [`Typed`].
        typed: Typed,
    },
    Not(Box<Tree>),
    Minus(Box<Tree>),
    And(Vec<Tree>),
    Or(Vec<Tree>),
    If(Box<[Tree; 3]>),
    List(Vec<Tree>),
    Map(Vec<(Tree, Tree)>),
    /// `cel.bind(name, value, body)`.
    Bind {
        name: Rc<str>,
        value: Box<Tree>,
        body: Box<Tree>,
    },
    /// `over.all(name, body)` and its like.
    Fold {
        kind: Fold,
        over: Box<Tree>,
        names: Vec<Rc<str>>,
        bodies: Vec<Tree>,
        /// True if the checker knows the result of its last body.
        typed: Typed,
    },
}

impl Tree {
    /// The value of a literal.
    pub(super) fn literal(&self) -> Option<Value> {
        if let ExprNode::Literal(value) = &self.node { Some(value.clone()) } else { None }
    }

    /// Returns true if upstream evaluates it as an attribute: a name, what is selected of
    /// something, a choice.
    // k8s: vendor/github.com/google/cel-go/interpreter/planner.go
    pub(super) fn is_attribute(&self) -> bool {
        match &self.node {
            ExprNode::Name(name) => !TYPES.contains(&&**name),
            ExprNode::Field { .. }
            | ExprNode::Index { .. }
            | ExprNode::Has { .. }
            | ExprNode::If(_) => true,
            _ => false,
        }
    }
}

/// Kind of a macro over the entries of a list or a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fold {
    All,
    Exists,
    ExistsOne,
    Filter,
    Map,
    /// `optMap` and `optFlatMap`, over the entry of an optional value.
    OptMap,
    OptFlatMap,
    /// The same over keys and values.
    TransformList,
    TransformMap,
    TransformEntry,
    /// Sorts the list by keys computed from its elements.
    SortBy,
}

/// Reserved words.
// k8s: vendor/github.com/google/cel-go/parser/parser.go reservedIds
const RESERVED: [&str; 18] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];
/// Namespaces of functions, which look like receivers.
const PREFIXES: [&str; 7] = ["optional", "cel", "sets", "lists", "strings", "format", "ip"];

/// Parses an expression.
///
/// # Errors
/// The text is no expression.
pub(super) fn parse(text: &str) -> Result<Tree, CelError> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0, nested: 0 };
    let tree = parser.expression()?;
    match parser.peek() {
        None => Ok(tree),
        Some(_) => Err(parser.unexpected()),
    }
}

type Parsed = Result<Tree, CelError>;

/// Operators by precedence, the lowest first.
const LEVELS: [&[&str]; 5] =
    [&["||"], &["&&"], &["<", "<=", ">=", ">", "==", "!=", "in"], &["+", "-"], &["*", "/", "%"]];

/// Joins two values by an operator; long chains of `&&` and `||` are not deep.
fn joined(sign: &'static str, left: Tree, right: Tree) -> Parsed {
    let (depth, below) = (left.depth, right.depth);
    let (node, depth) = match (sign, left.node) {
        ("||", ExprNode::Or(mut parts)) => {
            parts.push(right);
            (ExprNode::Or(parts), depth.max(below + 1))
        }
        ("&&", ExprNode::And(mut parts)) => {
            parts.push(right);
            (ExprNode::And(parts), depth.max(below + 1))
        }
        (_, node) => {
            let sides = [Tree { node, depth }, right];
            let is_in_nothing = sign == "in"
                && sides[0].literal().is_some()
                && matches!(&sides[1].node, ExprNode::Literal(Value::List(all)) if all.is_empty());
            let node = match sign {
                "in" if is_in_nothing => ExprNode::Literal(Value::Bool(false)),
                "||" => ExprNode::Or(sides.into()),
                "&&" => ExprNode::And(sides.into()),
                _ => ExprNode::Operator { sign, sides: Box::new(sides), typed: Typed::default() },
            };
            (node, 1 + depth.max(below))
        }
    };
    deep_enough(depth)?;
    Ok(Tree { node, depth })
}

fn tree<'a>(node: ExprNode, below: impl IntoIterator<Item = &'a Tree>) -> Parsed {
    let depth = 1 + below.into_iter().map(|tree| tree.depth).max().unwrap_or(0);
    deep_enough(depth)?;
    Ok(Tree { node, depth })
}

fn deep_enough(depth: usize) -> Result<(), CelError> {
    match depth > DEPTH_MAX {
        true => Err(format!("expression recursion limit exceeded: {DEPTH_MAX}").into()),
        false => Ok(()),
    }
}

struct Parser<'a> {
    tokens: &'a [(usize, Token)],
    at: usize,
    nested: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn sees(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(Token::Sign(found)) if *found == sign)
    }

    fn takes(&mut self, sign: &str) -> bool {
        let sees = self.sees(sign);
        self.at += usize::from(sees);
        sees
    }

    fn wants(&mut self, sign: &str) -> Result<(), CelError> {
        if self.takes(sign) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn unexpected(&self) -> CelError {
        match self.tokens.get(self.at) {
            None => "Syntax error: mismatched input '<EOF>'".into(),
            Some((at, Token::Sign(sign))) => {
                format!("Syntax error: mismatched input '{sign}' at byte {at}").into()
            }
            Some((at, _)) => format!("Syntax error: mismatched input at byte {at}").into(),
        }
    }

    /// Parses a name after a dot or before a bracket.
    fn name(&mut self) -> Result<Rc<str>, CelError> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = Rc::clone(name);
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected()),
        }
    }

    fn expression(&mut self) -> Parsed {
        self.nested += 1;
        deep_enough(self.nested)?;
        let condition = self.operators(0)?;
        let found = if self.takes("?") {
            let yes = self.operators(0)?;
            self.wants(":")?;
            let all = [condition, yes, self.expression()?];
            let depth = all.each_ref().map(|tree| tree.depth).into_iter().max().unwrap_or(0);
            deep_enough(depth + 1)?;
            Tree { node: ExprNode::If(Box::new(all)), depth: depth + 1 }
        } else {
            condition
        };
        self.nested -= 1;
        Ok(found)
    }

    /// Parses operators of at least this precedence.
    fn operators(&mut self, least: usize) -> Parsed {
        let mut left = self.unary()?;
        while let Some((sign, level)) = self.operator(least) {
            let right = self.operators(level + 1)?;
            left = joined(sign, left, right)?;
        }
        Ok(left)
    }

    fn operator(&mut self, least: usize) -> Option<(&'static str, usize)> {
        let sign = match self.peek()? {
            Token::Sign(sign) => *sign,
            Token::Name(name) if &**name == "in" => "in",
            _ => return None,
        };
        let level = LEVELS.iter().position(|signs| signs.contains(&sign))?;
        if level < least {
            return None;
        }
        self.at += 1;
        Some((sign, level))
    }

    /// Fails if 2^63 is next and is not negated: only `i64::MIN` is that long.
    fn check_literal(&self, is_negated: bool) -> Result<(), CelError> {
        match self.peek() {
            Some(Token::Literal(Value::Int(i64::MIN))) if !is_negated => {
                let number = i64::MIN.unsigned_abs();
                Err(format!("Syntax error: invalid number '{number}'").into())
            }
            _ => Ok(()),
        }
    }

    fn unary(&mut self) -> Parsed {
        let Some(sign) = ["!", "-"].into_iter().find(|sign| self.sees(sign)) else {
            self.check_literal(false)?;
            return self.member();
        };
        let mut count = 0;
        while self.takes(sign) {
            count += 1;
        }
        self.check_literal(sign == "-" && count == 1)?;
        // A number that follows the sign directly forms one literal with it.
        let is_literal = matches!(self.peek(), Some(Token::Literal(_)));
        let inner = self.member()?;
        if count % 2 == 0 {
            return Ok(inner);
        }
        let depth = inner.depth + 1;
        deep_enough(depth)?;
        let node = match (sign, inner.node) {
            ("!", node) => ExprNode::Not(Box::new(Tree { node, depth: inner.depth })),
            (_, ExprNode::Literal(Value::Int(n))) if is_literal => {
                ExprNode::Literal(Value::Int(n.wrapping_neg()))
            }
            (_, ExprNode::Literal(Value::Double(n))) if is_literal => {
                ExprNode::Literal(Value::Double(-n))
            }
            (_, node) => ExprNode::Minus(Box::new(Tree { node, depth: inner.depth })),
        };
        Ok(Tree { node, depth })
    }

    fn member(&mut self) -> Parsed {
        let mut of = self.primary()?;
        loop {
            if self.takes(".") {
                let optional = self.takes("?");
                let name = self.name()?;
                of = match self.takes("(") {
                    true if !optional => self.method(of, name)?,
                    _ => field(of, name, optional)?,
                };
            } else if self.takes("[") {
                let optional = self.takes("?");
                let at = self.expression()?;
                self.wants("]")?;
                let depth = 1 + of.depth.max(at.depth);
                deep_enough(depth)?;
                let (inner, at) = (Box::new(of), Box::new(at));
                of = Tree { node: ExprNode::Index { of: inner, at, optional }, depth };
            } else {
                return Ok(of);
            }
        }
    }

    fn primary(&mut self) -> Parsed {
        if self.takes("(") {
            let inner = self.expression()?;
            self.wants(")")?;
            return Ok(inner);
        }
        if self.takes("[") {
            let all = self.all("]")?;
            let depth = 1 + all.iter().map(|tree| tree.depth).max().unwrap_or(0);
            deep_enough(depth)?;
            return Ok(Tree { node: list(all), depth });
        }
        if self.takes("{") {
            return self.map();
        }
        self.takes(".");
        match self.peek().cloned() {
            Some(Token::Literal(value)) => {
                self.at += 1;
                tree(ExprNode::Literal(value), [])
            }
            Some(Token::Name(name)) => self.named(name),
            _ => Err(self.unexpected()),
        }
    }

    fn named(&mut self, name: Rc<str>) -> Parsed {
        if RESERVED.contains(&&*name) {
            return Err(format!("Syntax error: reserved identifier: {name}").into());
        }
        self.at += 1;
        let value = match &*name {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            "has" if self.sees("(") => return self.has(),
            _ if self.takes("(") => {
                let args = self.all(")")?;
                return call(name, None, args);
            }
            _ => return tree(ExprNode::Name(name), []),
        };
        tree(ExprNode::Literal(value), [])
    }

    fn has(&mut self) -> Parsed {
        self.wants("(")?;
        let mut args = self.all(")")?;
        let only = args.pop().filter(|_| args.is_empty());
        match only {
            Some(Tree { node: ExprNode::Field { of, name, optional: false }, depth }) => {
                Ok(Tree { node: ExprNode::Has { of, name }, depth })
            }
            _ => Err("invalid argument to has() macro".into()),
        }
    }

    fn all(&mut self, end: &str) -> Result<Vec<Tree>, CelError> {
        let mut found = Vec::new();
        while !self.takes(end) {
            found.push(self.expression()?);
            if !self.takes(",") {
                self.wants(end)?;
                break;
            }
        }
        Ok(found)
    }

    fn map(&mut self) -> Parsed {
        let (mut found, mut depth) = (Vec::new(), 0);
        while !self.takes("}") {
            let key = self.expression()?;
            self.wants(":")?;
            let value = self.expression()?;
            depth = depth.max(key.depth).max(value.depth);
            found.push((key, value));
            if !self.takes(",") {
                self.wants("}")?;
                break;
            }
        }
        deep_enough(depth + 1)?;
        Ok(Tree { node: map(found), depth: depth + 1 })
    }

    /// Parses a call with a receiver: a namespaced function, a macro, or a function of the value.
    fn method(&mut self, of: Tree, name: Rc<str>) -> Parsed {
        let args = self.all(")")?;
        if let ExprNode::Name(prefix) = &of.node
            && PREFIXES.contains(&&**prefix)
        {
            let full = format!("{prefix}.{name}");
            return if full == "cel.bind" { bind(args) } else { call(full.into(), None, args) };
        }
        match fold(&name, args.len()) {
            Some((kind, names)) => folded(kind, names, of, args),
            None => call(name, Some(of), args),
        }
    }
}

/// Builds a list; a list of literals is a literal itself, created once.
// k8s: vendor/github.com/google/cel-go/interpreter/decorators.go maybeBuildListLiteral
fn list(all: Vec<Tree>) -> ExprNode {
    match all.iter().map(Tree::literal).collect::<Option<Vec<_>>>() {
        Some(values) => ExprNode::Literal(Value::List(values.into())),
        None => ExprNode::List(all),
    }
}

/// Builds a map; a map of literals is a literal itself, unless that fails.
fn map(entries: Vec<(Tree, Tree)>) -> ExprNode {
    let literal =
        |(key, value): &(Tree, Tree)| Some((MapKey::of(&key.literal()?)?, value.literal()?));
    let literals: Option<BTreeMap<_, _>> = entries.iter().map(literal).collect();
    match literals.filter(|literals| literals.len() == entries.len()) {
        Some(entries) => ExprNode::Literal(Value::Map(Rc::new(Map { entries, default: None }))),
        None => ExprNode::Map(entries),
    }
}

/// Builds a field, or a qualified name: of a type, or of a type's namespace.
fn field(of: Tree, name: Rc<str>, optional: bool) -> Parsed {
    if let ExprNode::Name(before) = &of.node
        && !optional
    {
        let full = format!("{before}.{name}");
        if TYPES.iter().any(|kind| *kind == full || kind.starts_with(&format!("{full}."))) {
            return tree(ExprNode::Name(full.into()), []);
        }
    }
    let depth = of.depth + 1;
    deep_enough(depth)?;
    Ok(Tree { node: ExprNode::Field { of: Box::new(of), name, optional }, depth })
}

/// Converts a literal at once, unless that fails.
// k8s: vendor/github.com/google/cel-go/interpreter/decorators.go maybeOptimizeConstUnary
fn converted(name: &str, args: &[Tree]) -> Option<Value> {
    let [arg] = args else { return None };
    let literal = arg.literal().filter(|_| cost::is_conversion(name))?;
    let budget = AttemptBudget::unlimited();
    let account = Account::new(EvaluationLimits { budget: &budget, is_late: &|| false });
    functions::call(name, false, &[literal], &account).ok()
}

fn call(name: Rc<str>, target: Option<Tree>, args: Vec<Tree>) -> Parsed {
    if let (None, Some(value)) = (&target, converted(&name, &args)) {
        return tree(ExprNode::Literal(value), &args);
    }
    let below = target.iter().chain(&args).map(|tree| tree.depth).max().unwrap_or(0);
    deep_enough(below + 1)?;
    let (target, typed) = (target.map(Box::new), Typed::default());
    Ok(Tree { node: ExprNode::Call { name, target, args, typed }, depth: below + 1 })
}

/// Returns the macro of this name, and the number of its loop variables.
fn fold(name: &str, args: usize) -> Option<(Fold, usize)> {
    Some(match (name, args) {
        ("all", 2 | 3) => (Fold::All, args - 1),
        ("exists", 2 | 3) => (Fold::Exists, args - 1),
        ("exists_one", 2) => (Fold::ExistsOne, 1),
        ("existsOne", 2 | 3) => (Fold::ExistsOne, args - 1),
        ("filter", 2) => (Fold::Filter, 1),
        ("map", 2 | 3) => (Fold::Map, 1),
        ("optMap", 2) => (Fold::OptMap, 1),
        ("optFlatMap", 2) => (Fold::OptFlatMap, 1),
        ("transformList", 3 | 4) => (Fold::TransformList, 2),
        ("transformMap", 3 | 4) => (Fold::TransformMap, 2),
        ("transformMapEntry", 3 | 4) => (Fold::TransformEntry, 2),
        ("sortBy", 2) => (Fold::SortBy, 1),
        _ => return None,
    })
}

fn variable(arg: Tree) -> Result<Rc<str>, CelError> {
    match arg.node {
        ExprNode::Name(name) => Ok(name),
        _ => Err("argument must be a simple name".into()),
    }
}

fn folded(kind: Fold, names: usize, over: Tree, args: Vec<Tree>) -> Parsed {
    let mut args = args.into_iter();
    let names = args.by_ref().take(names).map(variable).collect::<Result<Vec<_>, _>>()?;
    let bodies: Vec<Tree> = args.collect();
    // The body of a macro runs deeper than it is written.
    let below = bodies.iter().map(|tree| tree.depth).chain([over.depth]).max().unwrap_or(0);
    deep_enough(below + 1)?;
    let over = Box::new(over);
    let typed = Typed::default();
    Ok(Tree { node: ExprNode::Fold { kind, over, names, bodies, typed }, depth: below + 1 })
}

fn bind(args: Vec<Tree>) -> Parsed {
    let [name, value, body] = <[Tree; 3]>::try_from(args)
        .map_err(|_| CelError::from("cel.bind() wants a name, a value and an expression"))?;
    let name = variable(name)?;
    let depth = 1 + value.depth.max(body.depth);
    deep_enough(depth)?;
    Ok(Tree { node: ExprNode::Bind { name, value: Box::new(value), body: Box::new(body) }, depth })
}
