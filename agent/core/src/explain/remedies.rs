//! Remedies by the text of an error: the registry's, the API server's, the reason of a refusal.
//! Pure; unknown errors get general advice.

use crate::eviction::rank::EvictionRule;

/// Remedies for messages that contain one of these.
type Advice = (&'static [&'static str], &'static str);

const REGISTRY: [Advice; 6] = [
    (
        &["401 ", "unauthorized", "no basic auth credentials", "authentication required"],
        "the registry wants other credentials: correct imagePullSecrets of the pod or of its \
         service account, or the node's own",
    ),
    (
        &["403 ", "forbidden", "denied", "insufficient_scope"],
        "the registry does not let these credentials have the image: ask for the right, or correct \
         imagePullSecrets and the image's name",
    ),
    (
        &["not found", "manifest unknown", "name unknown"],
        "the registry has no such image: correct its name or tag, or push it",
    ),
    (
        &["x509", "tls:", "certificate", "http: server gave http response"],
        "the runtime does not trust the registry: see its certificate and the runtime's settings \
         for this registry",
    ),
    (&["toomanyrequests", "429 "], "the registry limits pulls: wait, log in, or use a mirror"),
    (
        &["no such host", "connection refused", "timeout", "deadline exceeded", "unreachable"],
        "the registry cannot be reached from this node: check DNS, network, proxy and firewall",
    ),
];

/// About an image that cannot be pulled.
pub(super) fn of_registry(words: &str) -> &'static str {
    advice(&REGISTRY, words).unwrap_or(
        "check the image's name, the registry and its credentials; it is tried again by itself",
    )
}

const API_SERVER: [Advice; 4] = [
    (
        &["unauthorized", "401"],
        "the API server does not know this node: renew the certificate or token that the \
         kubeconfig names, and see whether the node's clock is right",
    ),
    (
        &["forbidden", "denied", "403"],
        "something refuses the node: see the node's rights (Node authorizer, NodeRestriction, \
         RBAC), admission webhooks and policies",
    ),
    (
        &["x509", "certificate", "tls"],
        "the node does not trust the API server: see certificate-authority in the kubeconfig",
    ),
    (
        &["connect", "refused", "no answer", "timed out", "unreachable", "no route", "dns"],
        "see whether the API server runs and this node reaches it; pods go on, and nothing that \
         waits to be written is lost",
    ),
];

/// The remedy for a request that the API server does not fulfil.
pub(super) fn of_api_server(words: &str) -> &'static str {
    advice(&API_SERVER, words)
        .unwrap_or("correct what the API server's words name; it is tried again by itself")
}

fn advice(table: &[Advice], words: &str) -> Option<&'static str> {
    let words = words.to_lowercase();
    let mut rows = table.iter();
    rows.find(|(marks, _)| marks.iter().any(|mark| words.contains(mark))).map(|(_, text)| *text)
}

/// About a pod that ended with this reason of the node's.
pub(super) fn of_reason(reason: &str) -> &'static str {
    match reason {
        "NodeAffinity" => {
            "correct the labels of the node, or nodeSelector and affinity of the pod; then make the \
             pod anew"
        }
        "NodeName" => "the pod names another node: correct nodeName and make the pod anew",
        "NodePorts" => {
            "another pod of this node has the host port: end that one or choose another port, then \
             make the pod anew"
        }
        "TaintToleration" => {
            "take the taint from the node or tolerate it in the pod, then make the pod anew"
        }
        "SysctlForbidden" => {
            "allow the sysctl by allowedUnsafeSysctls of this node, or take it out of the pod"
        }
        "UnexpectedAdmissionError" => {
            "device plugins cannot register with this agent yet: run the pod on a node that has the \
             device, or do not request it"
        }
        "AppArmor" => "load the profile on this node, or take it out of the pod",
        "Terminated" => "its controller makes it anew; a pod without one is to be made anew",
        "NodeShutdown" => "make the pod anew when the node is up again",
        "Evicted" => "free what is short on this node, then make the pod anew",
        "Preempting" => "a critical pod took its place: its controller makes it anew elsewhere",
        "DeadlineExceeded" => "raise activeDeadlineSeconds, or see why the pod took so long",
        reason if reason.starts_with("OutOf") => {
            "end other pods of this node or let the pod request less; its controller makes it anew, \
             a pod without one is to be deleted and made anew"
        }
        _ => "correct what the message names; then make the pod anew",
    }
}

/// The remedy for an ended pod with volumes or a cgroup that cannot be removed.
pub(super) fn of_remains(words: &str) -> &'static str {
    const REMAINS: [Advice; 2] = [
        (
            &["cannot unpublish"],
            "let the driver unpublish the volume (start the kubelet on this node again), or unmount \
             it once nothing uses it; the pod then ends by itself",
        ),
        (
            &["which are not deleted"],
            "save or remove the files that the message names; the pod then ends by itself",
        ),
    ];
    advice(&REMAINS, words)
        .unwrap_or("see what still uses the pod's volumes or cgroup; it is tried again by itself")
}

/// A change that would keep a pod from being evicted by this rule the next time.
pub(super) fn of_eviction(rule: EvictionRule) -> &'static str {
    match rule {
        EvictionRule::Limit => {
            "let it write less, or raise the limit that the message names; its controller makes it \
             anew, a pod without one is to be made anew"
        }
        EvictionRule::ExceedsRequest | EvictionRule::Usage => {
            "let it request what it uses, or use less; free what is short on this node (see \
             pressure), then make the pod anew"
        }
        EvictionRule::Priority => {
            "give it a higher priority if it matters more than the others; free what is short on \
             this node (see pressure), then make the pod anew"
        }
        EvictionRule::NoFigures | EvictionRule::Tie | EvictionRule::Alone => {
            "free what is short on this node (see pressure), then make the pod anew"
        }
    }
}

/// Remedies for a claim or one of its volumes, by the kubelet's message.
const CLAIMS: [Advice; 9] = [
    (
        &["is not bound", "not yet bound to the claim", "empty pvc.spec.volumename"],
        "see `kubectl describe` of the claim: its storage class needs a provisioner that runs, or a \
         PersistentVolume has to fit it; the pod goes on by itself when it is bound",
    ),
    (
        &["pvc is being deleted"],
        "the claim is being deleted: create it again when it is gone, or delete the pod",
    ),
    (
        &["does not point to claim.uid"],
        "the PersistentVolume belongs to an earlier claim: remove its claimRef if its data may go \
         to this one, or bind another volume",
    ),
    (
        &["was not created for pod"],
        "a claim of that name is another's: delete it if it is not needed, or rename the pod",
    ),
    (
        &["already in use by another pod"],
        "one pod may use the volume: wait until the other one is gone, or delete it",
    ),
    (
        &["no matching nodeselectorterms"],
        "the volume is not for this node: let the scheduler place the pod, without nodeName",
    ),
    (&["mount options are not supported"], "remove mountOptions from the PersistentVolume"),
    (
        &["specified in volumemounts", "specified in volumedevices"],
        "use volumeMounts for a volume of mode Filesystem and volumeDevices for one of mode Block",
    ),
    (
        &["failed to fetch pv"],
        "see whether the PersistentVolume is there, and the rights of this node",
    ),
];

/// About a claim that cannot be used.
pub(super) fn of_claim(message: &str, namespace: &str) -> Option<String> {
    let missing = message.split_once("persistentvolumeclaims \"").and_then(|(_, rest)| {
        let (name, rest) = rest.split_once('"')?;
        rest.trim_start().starts_with("not found").then_some(name)
    });
    if let Some(name) = missing {
        return Some(format!(
            "create claim {name} in namespace {namespace}, or correct its name in the pod; the pod \
             goes on by itself when it is bound"
        ));
    }
    advice(&CLAIMS, message).map(str::to_owned)
}

/// About an object that a volume or a variable wants and that is not there.
pub(super) fn of_missing(message: &str, namespace: &str) -> Option<String> {
    let of_kind = |kind: &str| {
        let (_, rest) = message.split_once(&format!("{kind} \""))?;
        let (name, rest) = rest.split_once('"')?;
        rest.trim_start().starts_with("not found").then(|| name.to_owned())
    };
    let of = |kind: &str| Some((kind.to_owned(), of_kind(kind)?));
    let wanted = of("secret").or_else(|| of("configmap"));
    if let Some((kind, name)) = wanted {
        return Some(format!(
            "create {kind} {name} in namespace {namespace}, or correct its name in the pod; the \
             pod goes on by itself when it is there"
        ));
    }
    let key = message.contains("couldn't find key") || message.contains("references non-existent");
    key.then(|| {
        "add the key to the object that the message names, or correct the key in the pod; the pod \
         goes on by itself"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_cannot_be_used_has_a_remedy() {
        for (words, start) in [
            ("persistentvolumeclaims \"c\" not found", "create claim c in namespace ns"),
            ("PVC is not bound", "see `kubectl describe` of the claim"),
            ("PVC is being deleted", "the claim is being deleted"),
            ("UID a does not point to claim.UID b", "the PersistentVolume belongs to an earlier"),
            ("PVC a was not created for pod b (pod is not owner)", "a claim of that name"),
            ("it is already in use by another pod", "one pod may use the volume"),
            ("no matching NodeSelectorTerms", "the volume is not for this node"),
            ("volume v has volumeMode Block, but is specified in volumeMounts", "use volumeMounts"),
            ("failed to fetch PV pv from API server: no", "see whether the PersistentVolume"),
        ] {
            let remedy = of_claim(words, "ns").unwrap_or_default();
            assert!(remedy.starts_with(start), "{words}: {remedy}");
        }
        assert_eq!(of_claim("no such disk", "ns"), None);
    }

    #[test]
    fn words_of_registries_have_a_remedy_each() {
        for (words, start) in [
            ("unexpected status: 401 Unauthorized", "the registry wants other credentials"),
            ("pull access denied, repository does not exist", "the registry does not let"),
            ("docker.io/library/x:1: not found", "the registry has no such image"),
            ("tls: failed to verify certificate: x509: unknown", "the runtime does not trust"),
            ("toomanyrequests: You have reached your limit", "the registry limits pulls"),
            ("dial tcp: lookup r.test: no such host", "the registry cannot be reached"),
            ("something else", "check the image's name"),
        ] {
            let remedy = of_registry(words);
            assert!(remedy.starts_with(start), "{words}: {remedy}");
        }
    }

    #[test]
    fn words_of_the_api_server_have_a_remedy_each() {
        for (words, start) in [
            ("Unauthorized", "the API server does not know this node"),
            ("pods \"p\" is forbidden: no", "something refuses the node"),
            ("invalid peer certificate: UnknownIssuer", "the node does not trust"),
            ("tcp connect error: Connection refused", "see whether the API server runs"),
            ("Pod \"p\" is invalid: status", "correct what the API server's words name"),
        ] {
            let remedy = of_api_server(words);
            assert!(remedy.starts_with(start), "{words}: {remedy}");
        }
    }

    #[test]
    fn a_missing_object_is_named_with_its_namespace() {
        let remedy = |message| of_missing(message, "shop");
        let secret = "MountVolume.SetUp failed for volume \"v\" : secret \"nope\" not found";
        let wanted = "create secret nope in namespace shop, or correct its name in the pod; the \
                      pod goes on by itself when it is there";
        assert_eq!(remedy(secret).as_deref(), Some(wanted));
        let map = remedy("configmap \"settings\" not found").expect("a remedy");
        assert!(map.starts_with("create configmap settings in namespace shop"), "{map}");
        let key = remedy("couldn't find key x in ConfigMap shop/cm").expect("a remedy");
        assert!(key.starts_with("add the key"), "{key}");
        assert_eq!(remedy("target is busy"), None);
    }
}
