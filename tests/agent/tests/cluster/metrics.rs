//! metrics-server asks the agent: what `kubectl top` shows, and the pod autoscaler that lives on
//! it.

use anyhow::{Context as _, Result, ensure};
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

/// The CPU limit of the burning container, in thousandths of a CPU; it uses all of it.
const LIMIT_MILLIS: u64 = 100;
/// Its CPU request: half of its use.
const REQUEST_MILLIS: u64 = 50;

/// Pods that turn in a circle, as fast as they are let.
fn burner() -> Value {
    let resources = json!({
        "requests": {"cpu": format!("{REQUEST_MILLIS}m"), "memory": "16Mi"},
        "limits": {"cpu": format!("{LIMIT_MILLIS}m"), "memory": "64Mi"},
    });
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "burn"}, "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "burn"}},
        "template": {"metadata": {"labels": {"app": "burn"}}, "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c", "image": xtask::image::set::BOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", "while :; do :; done"], "resources": resources,
            }],
        }},
    }})
}

/// An autoscaler that adds pods when their usage exceeds their requests.
fn autoscaler() -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": 100});
    json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "burn"}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "burn"},
        "minReplicas": 1, "maxReplicas": 2,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
    }})
}

/// The words of the first line that `kubectl top` prints of something.
fn top(test: &TestCluster, what: &[&str]) -> Result<Vec<String>> {
    let text = test.kubectl(&[&["top"], what, &["--no-headers"]].concat())?;
    let line = text.lines().next().context("nothing is shown")?;
    Ok(line.split_whitespace().map(str::to_owned).collect())
}

/// A number with its unit, such as `97m` or `1Mi`.
fn number(words: &[String], index: usize, unit: &str) -> Result<u64> {
    let word = words.get(index).with_context(|| format!("too few words: {words:?}"))?;
    let digits = word.strip_suffix(unit).with_context(|| format!("{word} is not in {unit}"))?;
    digits.parse().with_context(|| format!("{word} is no number"))
}

#[test]
fn use_is_shown_and_scales_a_deployment() {
    let test = TestCluster::take();
    test.apply(&burner());
    test.apply(&autoscaler());
    if test.cluster().pid("metrics").is_none() {
        test.cluster().start("metrics").expect("metrics-server reaches the agent");
    }

    until(LONG, "the pod's use is near its limit", || {
        let words = top(&test, &["pods", "-l", "app=burn"])?;
        let (cpu, memory) = (number(&words, 1, "m")?, number(&words, 2, "Mi")?);
        ensure!(cpu.abs_diff(LIMIT_MILLIS) <= LIMIT_MILLIS / 4, "{cpu}m of {LIMIT_MILLIS}m");
        ensure!(memory < 64, "{memory}Mi");
        Ok(())
    });
    until(LONG, "the node's use contains the pod's", || {
        let words = top(&test, &["node", NODE])?;
        let (cpu, memory) = (number(&words, 1, "m")?, number(&words, 3, "Mi")?);
        ensure!(cpu >= LIMIT_MILLIS / 2, "{cpu}m");
        ensure!(memory >= 10, "{memory}Mi");
        Ok(())
    });
    until(LONG, "the autoscaler asks for a second pod, which runs", || {
        let path = "jsonpath={.status.readyReplicas}";
        let ready = test.kubectl(&["get", "deployment", "burn", "-o", path])?;
        let why = test.kubectl(&["get", "hpa", "burn", "-o", "jsonpath={.status.conditions}"]);
        ensure!(ready == "2", "{ready} are ready: {why:?}");
        Ok(())
    });
    test.kubectl(&["delete", "deployment,hpa", "burn"]).expect("they go");
}
