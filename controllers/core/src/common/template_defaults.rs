//! Defaults of pod templates: what the API server fills in when a workload is stored.
//!
//! Input: a template as JSON, possibly of an earlier release. Output: the template as this release
//! would store it. Pure.

use serde_json::Value;

/// Sets the defaults that the API server sets in a template; `None` when it is no pod template.
// k8s: pkg/apis/apps/v1/zz_generated.defaults.go SetObjectDefaults_StatefulSet
pub fn with_defaults(mut template: Value) -> Option<Value> {
    let mut spec = serde_json::from_value(template["spec"].take()).ok()?;
    pintle_api_types::pod::defaults::apply_to_template(&mut spec);
    template["spec"] = serde_json::to_value(spec).ok()?;
    Some(template)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn template_gets_fewer_defaults_than_a_pod() {
        let limits = json!({"limits": {"cpu": "1"}});
        let container = json!({"name": "c", "image": "i", "resources": limits});
        let template =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}});
        let defaulted = with_defaults(template).expect("a template");
        let spec = &defaulted["spec"];
        assert_eq!(spec["restartPolicy"], "Always");
        assert_eq!(spec["containers"][0]["imagePullPolicy"], "Always");
        assert_eq!(spec["enableServiceLinks"], Value::Null);
        assert_eq!(spec["containers"][0]["resources"], limits, "requests are of the pod");
        assert_eq!(with_defaults(defaulted.clone()), Some(defaulted));
        assert_eq!(with_defaults(json!({"spec": 1})), None);
    }
}
