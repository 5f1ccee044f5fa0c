//! Validation of extenders.

use super::*;

#[test]
fn invalid_extender_configuration_is_reported_by_field() {
    let of = |change: &dyn Fn(&mut Extender)| {
        let mut extender =
            Extender { url_prefix: "http://127.0.0.1:1".into(), ..Extender::default() };
        change(&mut extender);
        extender
    };
    let named = |name: &str| ManagedResource { name: name.to_owned(), ..Default::default() };
    let binds = of(&|e| e.bind_verb = "bind".into());
    for (extenders, field) in [
        (vec![of(&|e| e.prioritize_verb = "p".into())], "extenders[0].weight"),
        (
            vec![of(&|e| e.managed_resources = vec![named("cpu")])],
            "extenders[0].managedResources[0].name",
        ),
        (
            vec![of(&|e| e.managed_resources = vec![named("x.io/a"), named("x.io/a")])],
            "extenders[0].managedResources[1].name",
        ),
        (vec![binds.clone(), binds.clone()], "extenders"),
    ] {
        assert_eq!(mistake(&extenders).map(|(field, _)| field).as_deref(), Some(field));
    }
    assert_eq!(mistake(&[binds]), None);
}
