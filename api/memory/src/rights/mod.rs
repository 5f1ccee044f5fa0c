//! Which identity may do what, as RBAC decides with upstream's roles.
//!
//! Input: `table.txt`, upstream's roles re-expressed as one line a rule. Output: nothing, or the
//! 403 of the real server. Rules are only ever additive, as in RBAC. Pure.
// k8s: plugin/pkg/auth/authorizer/rbac/rbac.go RuleAllows

use std::collections::BTreeMap;

use pintle_api_types::kind::Kind;
use pintle_api_types::request::{ApiError, Request};

use crate::errors;
use crate::identity::Identity;

const TABLE: &str = include_str!("table.txt");
/// The heading of the controller manager.
pub(crate) const MANAGER: &str = "@manager";
/// The heading of what every identity may do.
const EVERYBODY: &str = "@everybody";

/// One rule of a role.
#[derive(Debug)]
struct RoleRule {
    groups: Vec<&'static str>,
    resources: Vec<&'static str>,
    verbs: Vec<&'static str>,
    /// Only objects with these names; all when empty.
    names: Vec<&'static str>,
    /// Only in this namespace; everywhere when empty.
    namespace: &'static str,
}

/// The rules of all identities.
#[derive(Debug)]
pub(crate) struct Rights(BTreeMap<&'static str, Vec<RoleRule>>);

/// The access that a request needs, in RBAC's terms.
#[derive(Debug)]
struct Attributes<'a> {
    verb: &'static str,
    kind: Kind,
    sub: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl Rights {
    pub(crate) fn upstream() -> Self {
        let mut rules: BTreeMap<&'static str, Vec<RoleRule>> = BTreeMap::new();
        let mut heading = "";
        for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.strip_prefix("  ") {
                Some(rule) => rules.entry(heading).or_default().push(parse(rule)),
                None => heading = line,
            }
        }
        Self(rules)
    }

    /// The identities that the table has rules of.
    pub(crate) fn identities(&self) -> impl Iterator<Item = Identity> {
        self.0.keys().filter(|heading| **heading != EVERYBODY).map(|heading| match *heading {
            MANAGER => Identity::Manager,
            name => Identity::Controller(name),
        })
    }

    /// True if roles are known for an identity: a misspelt one has almost no rights.
    pub(crate) fn knows(&self, identity: &Identity) -> bool {
        identity.heading().is_none_or(|heading| self.0.contains_key(heading))
    }

    /// Refuses a request outside the identity's roles.
    pub(crate) fn check(&self, identity: &Identity, request: &Request) -> Result<(), ApiError> {
        let (Some(heading), Some(attributes)) = (identity.heading(), attributes(request)) else {
            return Ok(());
        };
        let of = |heading: &str| self.0.get(heading).into_iter().flatten();
        if of(heading).chain(of(EVERYBODY)).any(|rule| rule.allows(&attributes)) {
            return Ok(());
        }
        Err(refused(identity, &attributes))
    }
}

fn parse(line: &'static str) -> RoleRule {
    let list = |text: &'static str| text.split(',').collect::<Vec<_>>();
    let mut words = line.split(' ');
    let mut next = || words.next().unwrap_or_default();
    let (groups, resources, verbs) = (list(next()), list(next()), list(next()));
    let mut rule = RoleRule { groups, resources, verbs, names: Vec::new(), namespace: "" };
    for word in words {
        match word.strip_prefix('@') {
            Some(namespace) => rule.namespace = namespace,
            None => rule.names = list(word),
        }
    }
    rule
}

impl RoleRule {
    fn allows(&self, attributes: &Attributes<'_>) -> bool {
        let group = if attributes.kind.group.is_empty() { "core" } else { attributes.kind.group };
        let has = |list: &[&str], word: &str| list.iter().any(|has| *has == "*" || *has == word);
        has(&self.verbs, attributes.verb)
            && has(&self.groups, group)
            && self.resources.iter().any(|resource| names_resource(resource, attributes))
            && (self.names.is_empty() || self.names.contains(&attributes.name))
            && (self.namespace.is_empty() || self.namespace == attributes.namespace)
    }
}

// k8s: pkg/apis/rbac/v1/evaluation_helpers.go ResourceMatches
fn names_resource(resource: &str, attributes: &Attributes<'_>) -> bool {
    match (resource.split_once('/'), attributes.sub) {
        (None, "") => resource == "*" || resource == attributes.kind.plural,
        (None, _) => resource == "*",
        (Some((plural, sub)), requested_sub) => {
            sub == requested_sub && (plural == "*" || plural == attributes.kind.plural)
        }
    }
}

/// `None` for paths that are no resources: discovery is open to all identities.
fn attributes(request: &Request) -> Option<Attributes<'_>> {
    let of =
        |verb, kind, namespace, sub, name| Some(Attributes { verb, kind, sub, namespace, name });
    match request {
        Request::Create { kind, namespace, below, .. } => {
            let (name, sub) = below.as_ref().map_or(("", ""), |below| (&*below.name, below.sub));
            of("create", *kind, namespace, sub, name)
        }
        Request::DeleteCollection { kind, namespace, .. } => {
            of("deletecollection", *kind, namespace, "", "")
        }
        Request::List { kind, namespace, .. } => of("list", *kind, namespace, "", ""),
        Request::Get { .. } => None,
        Request::Replace { target, .. }
        | Request::Patch { target, .. }
        | Request::Delete { target, .. }
        | Request::Read { target, .. } => {
            let verb = match request {
                Request::Replace { .. } => "update",
                Request::Patch { .. } => "patch",
                Request::Delete { .. } => "delete",
                _ => "get",
            };
            // A namespace is in itself, for RBAC.
            let is_namespace = target.kind == pintle_api_types::kind::NAMESPACES;
            let (name, namespace) = (target.key.name(), target.key.namespace());
            let namespace = if is_namespace { name } else { namespace };
            of(verb, target.kind, namespace, target.sub, name)
        }
    }
}

// k8s: staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go
fn refused(identity: &Identity, attributes: &Attributes<'_>) -> ApiError {
    let resource = match attributes.sub {
        "" => attributes.kind.plural.to_owned(),
        sub => format!("{}/{sub}", attributes.kind.plural),
    };
    let place = match attributes.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let why = format!(
        "User {:?} cannot {} resource {resource:?} in API group {:?} {place}",
        identity.user(),
        attributes.verb,
        attributes.kind.group
    );
    errors::forbidden(&errors::resource(attributes.kind), attributes.name, &why)
}

#[cfg(test)]
mod tests;
