//! `/metrics/resources`: requests and limits of every pod, as text.
//!
//! Input: [`DeclaredRow`]s. Output: Prometheus' text format in upstream's order, in pieces, so that the
//! whole answer is never in memory. Owner: pure functions and the thread of the HTTPS port. Bounds:
//! `PIECE_BYTES` and a pod's lines a piece.
// k8s: pkg/scheduler/metrics/resources/resources.go

use std::fmt::Write as _;

use hyper::body::Bytes;
use pintle_api_types::float::go_float;
use pintle_daemon::serve::body::{Closed, StreamSink};
use pintle_scheduler_core::declared::{Declaration, DeclaredRow};

/// Size at which a piece of the answer is sent.
const PIECE_BYTES: usize = 32 * 1024;

/// Returns a family's values of a pod.
type OfPod = fn(&Declaration) -> &[(Box<str>, f64)];

/// Families: name, help, values of a pod.
const FAMILIES: [(&str, &str, OfPod); 2] = [
    (
        "kube_pod_resource_limit",
        "[STABLE] Resources limit for workloads on the cluster, broken down by pod. This shows the \
         resource usage the scheduler and kubelet expect per pod for resources along with the unit \
         for the resource if any.",
        |declares| &declares.limits,
    ),
    (
        "kube_pod_resource_request",
        "[STABLE] Resources requested by workloads on the cluster, broken down by pod. This shows the \
         resource usage the scheduler and kubelet expect per pod for resources along with the unit \
         for the resource if any.",
        |declares| &declares.requests,
    ),
];

/// Writes all families, in pieces.
///
/// # Errors
/// The client has closed the connection.
pub(super) async fn write(mut rows: Vec<DeclaredRow>, sink: &StreamSink) -> Result<(), Closed> {
    sort(&mut rows);
    let mut piece = String::with_capacity(PIECE_BYTES + 1024);
    for (name, help, of) in FAMILIES {
        let mut any = false;
        for row in &rows {
            if !any && !of(&row.declares).is_empty() {
                any = true;
                let _ = write!(piece, "# HELP {name} {help}\n# TYPE {name} gauge\n");
            }
            put(row, name, of, &mut piece);
            if piece.len() >= PIECE_BYTES {
                sink.send(Bytes::copy_from_slice(piece.as_bytes())).await?;
                piece.clear();
            }
        }
    }
    match piece.is_empty() {
        true => Ok(()),
        false => sink.send(Bytes::from(piece)).await,
    }
}

/// Sorts by the values of the labels, in the order of their names.
// k8s: github.com/prometheus/client_golang/prometheus/internal/metric.go MetricSorter
fn sort(rows: &mut [DeclaredRow]) {
    fn node(row: &DeclaredRow) -> &str {
        row.node.as_ref().map_or("", |node| node.as_str())
    }
    rows.sort_unstable_by(|a, b| {
        let namespaces = a.pod.namespace().cmp(b.pod.namespace());
        namespaces.then_with(|| node(a).cmp(node(b))).then_with(|| a.pod.name().cmp(b.pod.name()))
    });
}

/// Writes the lines of a family about a pod.
fn put(row: &DeclaredRow, name: &str, of: OfPod, out: &mut String) {
    let declares = &*row.declares;
    let node = row.node.as_ref().map_or("", |node| node.as_str());
    for (resource, amount) in of(declares) {
        out.push_str(name);
        out.push('{');
        label("namespace", row.pod.namespace(), out);
        label("node", node, out);
        label("pod", row.pod.name(), out);
        out.push_str("priority=\"");
        if let Some(priority) = declares.priority {
            let _ = write!(out, "{priority}");
        }
        out.push_str("\",");
        label("resource", resource, out);
        label("scheduler", &declares.scheduler, out);
        let _ = writeln!(out, "unit=\"{}\"}} {}", unit(resource), go_float(*amount));
    }
}

/// Writes a label that is followed by another one.
fn label(name: &str, value: &str, out: &mut String) {
    out.push_str(name);
    out.push_str("=\"");
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
    out.push_str("\",");
}

fn unit(resource: &str) -> &'static str {
    match resource {
        "cpu" => "cores",
        "memory" | "storage" | "ephemeral-storage" => "bytes",
        name if name.starts_with("hugepages-") => "bytes",
        name if name.starts_with("attachable-volumes-") => "integer",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt as _;
    use pintle_api_types::key::ObjectKey;
    use pintle_api_types::symbol::Symbol;
    use pintle_daemon::serve::body::streamed;

    use super::*;

    fn list(all: &[(&str, f64)]) -> Box<[(Box<str>, f64)]> {
        all.iter().map(|(name, amount)| ((*name).into(), *amount)).collect()
    }

    fn row(pod: &str, node: Option<&str>, declares: &Arc<Declaration>) -> DeclaredRow {
        let (namespace, name) = pod.split_once('/').expect("two parts");
        let (pod, node) = (ObjectKey::new(namespace, name), node.map(Symbol::of));
        DeclaredRow { pod, node, declares: Arc::clone(declares) }
    }

    async fn text(rows: Vec<DeclaredRow>) -> (usize, String) {
        let (sink, mut body) = streamed();
        // Each piece is dropped before the next one: only a few are in flight.
        let read = async {
            let mut all = Vec::new();
            while let Some(frame) = body.frame().await {
                all.extend(frame.expect("never fails").into_data().expect("data"));
            }
            all
        };
        let (bytes, written) = tokio::join!(read, async move { write(rows, &sink).await });
        written.expect("the body is read");
        (bytes.len(), String::from_utf8(bytes).expect("text"))
    }

    #[tokio::test]
    async fn metric_labels_are_sorted_by_name_and_lines_by_label_values() {
        let one = Arc::new(Declaration {
            scheduler: "s\"\\\n".into(),
            priority: Some(-7),
            requests: list(&[("a.b/c", 2.0), ("cpu", 0.1), ("memory", 134_217_728.0)]),
            limits: list(&[("hugepages-2Mi", 2_097_152.0), ("storage", 1.0)]),
        });
        let other = Arc::new(Declaration {
            requests: list(&[("attachable-volumes-x", 1.0), ("ephemeral-storage", 1e6)]),
            ..Declaration::default()
        });
        let none = Arc::new(Declaration::default());
        let rows = vec![
            row("b/a", Some("n"), &one),
            row("a/z", Some("m"), &other),
            row("a/b", Some("n"), &other),
            row("a/c", None, &other),
            row("a/a", Some("n"), &none),
        ];
        let (_, text) = text(rows).await;
        let lines: Vec<_> = text.lines().collect();
        let family = |at: usize, name: &str| {
            assert!(lines[at].starts_with(&format!("# HELP {name} [STABLE] ")), "{text}");
            assert_eq!(lines[at + 1], format!("# TYPE {name} gauge"));
        };
        family(0, "kube_pod_resource_limit");
        family(4, "kube_pod_resource_request");
        let of_one = r#"namespace="b",node="n",pod="a",priority="-7""#;
        let by = r#"scheduler="s\"\\\n""#;
        let last = format!(
            r#"kube_pod_resource_request{{{of_one},resource="memory",{by},unit="bytes"}} 1.34217728e+08"#
        );
        assert_eq!(*lines.last().expect("lines"), last);
        let large = format!(
            r#"kube_pod_resource_limit{{{of_one},resource="hugepages-2Mi",{by},unit="bytes"}} 2.097152e+06"#
        );
        assert_eq!(lines[2], large);
        let first = r#"{namespace="a",node="",pod="c",priority="","#.to_owned()
            + r#"resource="attachable-volumes-x",scheduler="",unit="integer"} 1"#;
        assert_eq!(lines[6].strip_prefix("kube_pod_resource_request"), Some(&*first));
        let part =
            |line: &str| line.split('"').skip(1).step_by(2).take(3).collect::<Vec<_>>().join(" ");
        let order: Vec<_> = lines[6..].iter().map(|line| part(line)).collect();
        let expected =
            ["a  c", "a  c", "a m z", "a m z", "a n b", "a n b", "b n a", "b n a", "b n a"];
        assert_eq!(order, expected);
        assert!(lines[7].ends_with(r#"unit="bytes"} 1e+06"#), "{}", lines[7]);
        assert!(text.contains(r#"resource="a.b/c",scheduler="s\"\\\n",unit=""} 2"#), "{text}");
    }

    #[tokio::test]
    async fn large_response_is_streamed_in_pieces_and_no_rows_give_an_empty_body() {
        assert_eq!(text(Vec::new()).await, (0, String::new()));
        let one = Arc::new(Declaration {
            requests: list(&[("cpu", 0.1), ("memory", 1.0)]),
            ..Declaration::default()
        });
        let rows = (0..1000).map(|at| row(&format!("a/{at:04}"), Some("n"), &one)).collect();
        let (bytes, text) = text(rows).await;
        assert!(bytes > 4 * PIECE_BYTES, "{bytes}");
        assert_eq!(text.lines().count(), 2 + 2000);
        let (sink, body) = streamed();
        drop(body);
        assert_eq!(write(vec![row("a/a", None, &one)], &sink).await, Err(Closed));
    }
}
