//! Reading the cases: YAML files of several documents.
//!
//! The first document says what the case covers, what to wait for and what to do then; the others
//! are objects for the API server, the last of them the pod that is compared. They name neither
//! namespace nor node.
//!
//! ```yaml
//! covers: one sentence
//! direct: true             # on the node without the scheduler
//! static: true             # a manifest in the node's folder
//! alone: true              # after all others, because it concerns the nodes
//! wait: {phase: Running}   # lines of the pod's status, or of metadata, as `flat` writes them
//! events: [Started]        # and reasons of events about the pod
//! nudge: true              # the pod gets an annotation each second until all that is there:
//!                          # the kubelet shows some states only when it looks at the pod again
//! steps:                   # then, one after the other
//! - patch: {spec: {...}}   # a strategic merge patch; an init for `wait` and `events`
//!   subresource: resize
//!   of: configmaps/NAME    # what is patched: the pod if left out, its node if it says `node`
//!   wait: {...}
//! - delete: true           # or a deletion; `gone: true` waits until the pod is gone
//! grace: 0                 # of the deletion at the end; the pod's own if left out
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// One file.
#[derive(Clone, Debug)]
pub struct Case {
    /// The file's name.
    pub name: String,
    /// Its subject, in a sentence.
    pub covers: String,
    /// Without the scheduler.
    pub(super) is_direct: bool,
    /// From a folder.
    pub(super) is_static: bool,
    /// When all others have ended.
    pub(super) is_alone: bool,
    /// The steps; the first has no patch.
    pub(super) steps: Vec<CaseStep>,
    /// Grace period of the deletion.
    pub(super) grace_seconds: Option<u64>,
    /// Objects created before the pod.
    pub(super) objects: Vec<Value>,
    /// The pod that is compared.
    pub(super) pod: Value,
}

/// Something to do, and what to wait for afterwards.
#[derive(Clone, Debug)]
pub(super) struct CaseStep {
    pub(super) patch: Option<Patch>,
    pub(super) is_deletion: bool,
    /// Wait until the API server has it no more.
    pub(super) is_gone: bool,
    /// Paths and values in the pod.
    pub(super) wait: BTreeMap<String, String>,
    /// Reasons of events.
    pub(super) events: Vec<String>,
    /// The pod is changed a little again and again meanwhile.
    pub(super) is_nudged: bool,
}

/// A change of an object.
#[derive(Clone, Debug)]
pub(super) struct Patch {
    pub(super) body: Value,
    /// `pods/NAME`, `configmaps/NAME`, `node`.
    pub(super) of: String,
    pub(super) subresource: String,
}

/// Every case of a folder, by name.
pub(super) fn read_all(dir: &Path) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "yaml") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path)?;
            let case = parse(&name, &text).with_context(|| format!("read {}", path.display()))?;
            cases.push(case);
        }
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(cases)
}

fn parse(name: &str, text: &str) -> Result<Case> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    let [head, objects @ .., pod] = documents.as_slice() else { bail!("no pod") };
    ensure!(pod["kind"] == "Pod", "the last document is a pod");
    known(
        head,
        &["covers", "direct", "static", "alone", "wait", "events", "nudge", "steps", "grace"],
    )?;
    let pod_name = pod["metadata"]["name"].as_str().context("the pod has a name")?;
    let mut steps = vec![step(head, pod_name)?];
    for each in head["steps"].as_array().into_iter().flatten() {
        let keys = ["patch", "of", "subresource", "delete", "gone", "wait", "events", "nudge"];
        known(each, &keys)?;
        steps.push(step(each, pod_name)?);
    }
    Ok(Case {
        name: name.to_owned(),
        covers: head["covers"].as_str().context("`covers` says what it is about")?.to_owned(),
        is_direct: head["direct"] == true,
        is_static: head["static"] == true,
        is_alone: head["alone"] == true,
        steps,
        grace_seconds: head["grace"].as_u64(),
        objects: objects.to_vec(),
        pod: pod.clone(),
    })
}

/// A misspelt key would wait for nothing.
fn known(value: &Value, keys: &[&str]) -> Result<()> {
    for key in value.as_object().context("a map")?.keys() {
        ensure!(keys.contains(&key.as_str()), "there is no key {key}: {}", keys.join(", "));
    }
    Ok(())
}

fn step(value: &Value, pod: &str) -> Result<CaseStep> {
    let wait = value["wait"].as_object().into_iter().flatten();
    let wait: BTreeMap<_, _> = wait.map(|(path, v)| (path.clone(), super::flat::show(v))).collect();
    let events = value["events"].as_array().into_iter().flatten();
    let events: Vec<_> = events.filter_map(|e| e.as_str()).map(str::to_owned).collect();
    let is_gone = value["gone"] == true;
    ensure!(is_gone || !wait.is_empty() || !events.is_empty(), "nothing to wait for");
    let patch = value.get("patch").map(|body| Patch {
        body: body.clone(),
        of: value["of"].as_str().map_or_else(|| format!("pods/{pod}"), str::to_owned),
        subresource: value["subresource"].as_str().unwrap_or_default().to_owned(),
    });
    let (is_deletion, is_nudged) = (value["delete"] == true, value["nudge"] == true);
    Ok(CaseStep { patch, is_deletion, is_gone, wait, events, is_nudged })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository;

    #[test]
    fn every_case_of_the_repository_can_be_read() {
        let cases = read_all(&repository().join(super::super::FOLDER)).expect("all are good");
        assert!(!cases.is_empty());
    }

    #[test]
    fn case_file_is_parsed_into_objects_steps_and_pod() {
        let text = "covers: x\nwait: {phase: Running}\nsteps:\n- patch: {a: 1}\n  events: [E]\n\
                    ---\nkind: ConfigMap\n---\nkind: Pod\nmetadata: {name: p}\n";
        let case = parse("c", text).expect("good");
        assert_eq!(case.objects.len(), 1);
        assert_eq!(case.steps[0].wait["phase"], "Running");
        assert_eq!(case.steps[1].patch.as_ref().expect("a patch").of, "pods/p");
        let misspelt = text.replace("wait:", "waits:");
        assert!(parse("c", &misspelt).is_err());
        assert!(parse("c", &text.replace("wait: {phase: Running}\n", "")).is_err());
    }
}
