//! The command line, and requests that fill tables.

use super::arguments::{ArgumentError, parse};

fn parsed(line: &str) -> Result<String, ArgumentError> {
    let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    Ok(match parse(&args)? {
        None => "help".to_owned(),
        Some(options) => format!(
            "{} {} {} {}{}{}",
            options.subject.kind.kind,
            options.name,
            options.namespace.unwrap_or_default(),
            options.server.unwrap_or_default(),
            if options.accepts_any_server { " any" } else { "" },
            if options.is_json { " json" } else { "" },
        ),
    })
}

#[test]
fn object_is_given_in_one_word_or_two() {
    for (line, expected) in [
        ("deploy/web", Ok("Deployment web  ")),
        ("sts web -n a", Ok("StatefulSet web a ")),
        ("--namespace=a quota/q -o json", Ok("ResourceQuota q a  json")),
        (
            "ns/a --server https://h:10257 --insecure-skip-tls-verify",
            Ok("Namespace a  https://h:10257 any"),
        ),
        ("deploy/web --help", Ok("help")),
    ] {
        assert_eq!(parsed(line), expected.map(str::to_owned), "{line}");
    }
}

#[test]
fn mistake_in_the_arguments_is_one_sentence() {
    for (line, expected) in [
        ("", "explain needs one object, as KIND/NAME; --help shows how"),
        ("web", "explain needs one object, as KIND/NAME; --help shows how"),
        ("deploy/", "explain needs one object, as KIND/NAME; --help shows how"),
        ("deploy/web -n", "-n needs a value"),
        ("deploy/web --all", "explain has no flag --all; --help shows those that it has"),
        ("deploy/web -o yaml", "--output \"yaml\": use text or json"),
        (
            "deploy/web --insecure-skip-tls-verify",
            "--insecure-skip-tls-verify is for --server alone",
        ),
    ] {
        let error = parsed(line).expect_err(line).to_string();
        assert_eq!(error, expected, "{line}");
    }
    assert!(
        parsed("pod/a").expect_err("no controller").to_string().contains("cannot be explained")
    );
}
