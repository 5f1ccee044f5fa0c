//! The four forms of patches.
//!
//! Input: the stored object and a patch. Output: the wanted object, or the server's error. An apply
//! patch merges fields and lists like a strategic one; field managers are not kept, so fields that
//! a manager stops applying stay. Pure.
// k8s: staging/src/k8s.io/apiserver/pkg/endpoints/handlers/patch.go

use jiff::Timestamp;
use pintle_api_types::request::{Answer, ApiError, PatchForm, Target};
use pintle_api_types::strategic::{self, PatchError, Schema};
use serde_json::{Map, Value};

use crate::server::Server;
use crate::{create, errors, meta, rules};

impl Server {
    pub(crate) fn patch(
        &mut self,
        target: &Target,
        form: &PatchForm,
        body: &Value,
        now: Timestamp,
    ) -> Answer {
        if rules::of(target.kind).is_custom && *form == PatchForm::Strategic {
            return Err(errors::unsupported_media_type());
        }
        let is_apply = matches!(form, PatchForm::Apply { .. });
        let is_absent = self.store.object(target.kind, &target.key).is_none();
        if is_apply && is_absent && target.sub.is_empty() {
            return self.create_applied(target, body, now);
        }
        let wanted = |old: &Value| {
            let mut new = apply(target, form, old, body)?;
            if !matches!(target.sub, "scale") {
                create::place(target.kind, target.key.namespace(), &mut new)?;
                check_name(target, &new)?;
            }
            Ok(new)
        };
        match target.sub {
            "scale" => self.update_scale(target, &wanted),
            _ => self.update(target, &wanted),
        }
    }

    fn create_applied(&mut self, target: &Target, body: &Value, now: Timestamp) -> Answer {
        if !meta::text(body, "uid").is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {}, and no existing object was \
                 found",
                meta::text(body, "uid")
            );
            let resource = errors::resource(target.kind);
            return Err(errors::conflict(&resource, target.key.name(), &why));
        }
        let mut object = body.clone();
        create::place(target.kind, target.key.namespace(), &mut object)?;
        check_name(target, &object)?;
        self.check_namespace_for_create(target.kind, target.key.namespace(), &object)?;
        self.create_named(target.kind, object, create::Naming::Given, now)
    }
}

fn check_name(target: &Target, object: &Value) -> Result<(), ApiError> {
    let (name, stated) = (target.key.name(), meta::name(object));
    let why =
        format!("the name of the object ({stated}) does not match the name on the URL ({name})");
    if stated == name { Ok(()) } else { Err(errors::bad_request(&why)) }
}

/// Applies a patch to an object.
fn apply(target: &Target, form: &PatchForm, old: &Value, body: &Value) -> Result<Value, ApiError> {
    let mut new = old.clone();
    let (version, kind) = match target.sub {
        "scale" => ("autoscaling/v1".to_owned(), "Scale"),
        _ => (target.kind.api_version(), target.kind.kind),
    };
    match (form, Schema::of_kind(&version, kind)) {
        (PatchForm::Strategic | PatchForm::Apply { .. }, Some(schema)) => {
            return strategic::apply(old, body, schema).map_err(refused);
        }
        (PatchForm::Json, _) => {
            for operation in body.as_array().into_iter().flatten() {
                operate(&mut new, operation)?;
            }
        }
        _ => merge(&mut new, body),
    }
    Ok(new)
}

// k8s: staging/src/k8s.io/apiserver/pkg/endpoints/handlers/patch.go
// interpretStrategicMergePatchError
fn refused(error: PatchError) -> ApiError {
    match error {
        PatchError::ListOfLists => errors::unprocessable(),
        PatchError::BadRetainKeys | PatchError::BadOrder | PatchError::BadDirective { .. } => {
            errors::bad_request(&error.to_string())
        }
        _ => errors::internal(&error.to_string()),
    }
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let fields = target.as_object_mut().expect("made an object above");
    for (name, value) in patch {
        match value {
            Value::Null => drop(fields.remove(name)),
            value => merge(fields.entry(name.clone()).or_insert(Value::Null), value),
        }
    }
}

/// One operation of RFC 6902: test, add, replace, remove.
fn operate(target: &mut Value, operation: &Value) -> Result<(), ApiError> {
    let text = |field: &str| operation[field].as_str().unwrap_or_default();
    let (op, path, value) = (text("op"), text("path"), operation["value"].clone());
    let (parent, last) = path.rsplit_once('/').ok_or_else(errors::unprocessable)?;
    let last = last.replace("~1", "/").replace("~0", "~");
    if op == "test" {
        let is_equal = target.pointer(path).unwrap_or(&Value::Null) == &value;
        return if is_equal { Ok(()) } else { Err(errors::unprocessable()) };
    }
    match target.pointer_mut(parent) {
        Some(Value::Object(fields)) => operate_on_fields(fields, op, last, value),
        Some(Value::Array(items)) => operate_on_items(items, op, &last, value),
        _ => None,
    }
    .ok_or_else(errors::unprocessable)
}

fn operate_on_fields(
    fields: &mut Map<String, Value>,
    op: &str,
    name: String,
    value: Value,
) -> Option<()> {
    match op {
        // The library that the real server uses replaces what is absent, too.
        "add" | "replace" => drop(fields.insert(name, value)),
        "remove" => drop(fields.remove(&name)?),
        _ => return None,
    }
    Some(())
}

fn operate_on_items(items: &mut Vec<Value>, op: &str, at: &str, value: Value) -> Option<()> {
    let at: usize = if at == "-" { items.len() } else { at.parse().ok()? };
    match op {
        "add" if at <= items.len() => items.insert(at, value),
        "replace" => *items.get_mut(at)? = value,
        "remove" if at < items.len() => drop(items.remove(at)),
        _ => return None,
    }
    Some(())
}
