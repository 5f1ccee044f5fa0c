//! `/logs/?query=`: queries for logs of the node's services. Pure.
//!
//! Input: the parameters of a URL. Output: services or a file, and journalctl's arguments; or the
//! kubelet's refusal. No parameter of a client becomes more than one argument of its own, behind a
//! `--name=`. Bounds: `SERVICES_MAX`, `SERVICE_BYTES_MAX`, `LINES_MAX`, the URL's own.
// k8s: pkg/kubelet/kubelet_server_journal.go newNodeLogQuery, validate;
//      kubelet_server_journal_linux.go getLoggingCmd

use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::query::Query;

use super::journal::StatError;

/// Lines from the end that may be asked for.
const LINES_MAX: i64 = 100_000;
/// Bytes of a service's name.
const SERVICE_BYTES_MAX: usize = 256;
/// Services of one query.
const SERVICES_MAX: usize = 4;

/// The requested logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeQuery {
    /// Names without `.service`.
    pub(super) services: Vec<String>,
    /// Paths below `/var/log`.
    pub(super) files: Vec<String>,
    since: Option<Time>,
    until: Option<Time>,
    lines: Option<i64>,
    pub(super) boot: Option<i64>,
    pattern: String,
}

/// A time, and its digits as they were given, in the form that journalctl takes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Time {
    at: jiff::Timestamp,
    given: String,
    digits: String,
}

impl NodeQuery {
    /// Parses the parameters; `None` when there is none of a query.
    pub(super) fn parse(query: &Query) -> Result<Option<Self>, HttpAnswer> {
        let mut errors = Vec::new();
        let mut parsed = Self::default();
        let named: Vec<&str> = query.all("query").collect();
        for name in &named {
            // A name with a path separator is a file.
            if name.contains(['/', '\\']) {
                parsed.files.push((*name).to_owned());
            } else if !name.trim().is_empty() {
                parsed.services.push((*name).to_owned());
            }
        }
        if !named.is_empty() && parsed.files.is_empty() && parsed.services.is_empty() {
            errors.push(invalid("query", &json(&named), "may not be empty"));
        }
        let value = |name| query.first(name).filter(|value| !value.is_empty());
        let mut time = |name| {
            let given = value(name)?;
            let time = Time::parse(given);
            if time.is_none() {
                errors.push(invalid(name, &quoted(given), "invalid time format"));
            }
            time
        };
        (parsed.since, parsed.until) = (time("sinceTime"), time("untilTime"));
        let mut number = |name| {
            let given = value(name)?;
            let number = given.parse::<i64>();
            if number.is_err() {
                let why = format!("strconv.Atoi: parsing {}: invalid syntax", quoted(given));
                errors.push(invalid(name, &quoted(given), &why));
            }
            number.ok()
        };
        (parsed.boot, parsed.lines) = (number("boot"), number("tailLines"));
        parsed.pattern = value("pattern").unwrap_or_default().to_owned();
        match errors.is_empty() {
            false => Err(refusal(400, &errors)),
            true if parsed == Self::default() => Ok(None),
            true => Ok(Some(parsed)),
        }
    }

    /// Checks the query; `has_file` returns why a file cannot be read.
    pub(super) fn check(
        &self,
        has_file: impl Fn(&str) -> Result<(), StatError>,
    ) -> Result<(), HttpAnswer> {
        let mut errors = Vec::new();
        errors.extend(self.services.iter().filter_map(|service| bad_service(service)));
        if self.services.len() > SERVICES_MAX {
            let count = self.services.len();
            errors
                .push(format!("query: Too many: {count}: must have at most {SERVICES_MAX} items"));
        }
        let list = || json(&self.files.iter().map(String::as_str).collect::<Vec<_>>());
        match (self.files.as_slice(), self.services.is_empty()) {
            ([], true) => {
                errors.push("query: Required value: cannot be empty with options".to_owned());
            }
            ([], false) => {}
            ([_, ..], false) => {
                let both = format!("[{}], [{}]", self.files.join(" "), self.services.join(" "));
                errors.push(invalid("query", &quoted(&both), "cannot specify a file and service"));
            }
            ([_, _, ..], true) => {
                errors.push(invalid("query", &list(), "cannot specify more than one file"));
            }
            ([_], true) if self.has_options() => {
                errors.push(invalid("query", &list(), "cannot specify file with options"));
            }
            ([file], true) => {
                let missing = has_file(file).err();
                errors.extend(missing.map(|why| invalid("query", &list(), &why.to_string())));
            }
        }
        if let (Some(since), Some(until)) = (&self.since, &self.until)
            && since.at > until.at
        {
            let until = quoted(&until.given);
            errors.push(invalid("untilTime", &until, "must be after `sinceTime`"));
        }
        if let Some(boot @ 1..) = self.boot {
            errors.push(invalid("boot", &boot.to_string(), "must be less than 1"));
        }
        if let Some(lines) = self.lines.filter(|lines| !(0..=LINES_MAX).contains(lines)) {
            let why = format!("must be between 0 and {LINES_MAX}, inclusive");
            errors.push(invalid("tailLines", &lines.to_string(), &why));
        }
        if self.pattern.contains('\0') {
            errors.push(invalid("pattern", &quoted(&self.pattern), "must not contain NUL"));
        }
        if errors.is_empty() { Ok(()) } else { Err(refusal(406, &errors)) }
    }

    /// True if the query has an option besides services' names.
    pub(super) fn has_options(&self) -> bool {
        let Self { since, until, lines, boot, pattern, .. } = self;
        since.is_some()
            || until.is_some()
            || lines.is_some()
            || boot.is_some()
            || !pattern.is_empty()
    }

    /// journalctl's arguments for these services.
    pub(super) fn arguments(&self, services: &[&str]) -> Vec<String> {
        let mut args: Vec<String> =
            ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).into();
        args.extend(self.since.as_ref().map(|time| format!("--since={}", time.digits)));
        args.extend(self.until.as_ref().map(|time| format!("--until={}", time.digits)));
        if let Some(lines) = self.lines {
            args.extend(["--pager-end".to_owned(), format!("--lines={lines}")]);
        }
        args.extend(services.iter().map(|service| format!("--unit={service}")));
        if !self.pattern.is_empty() {
            args.push(format!("--grep={}", self.pattern));
        }
        if let Some(boot) = self.boot {
            args.extend(["--boot".to_owned(), boot.to_string()]);
        }
        args
    }
}

impl Time {
    /// RFC 3339. The digits are kept as they are, whatever the offset, as in the kubelet.
    fn parse(given: &str) -> Option<Self> {
        let at = given.parse().ok()?;
        let (date, time) = given.split_once('T')?;
        let plain = |text: &str| text.parse::<u32>().ok().map(|number| number.to_string());
        let date: Vec<String> = date.split('-').map(plain).collect::<Option<_>>()?;
        let time: Vec<String> = time.get(..8)?.split(':').map(plain).collect::<Option<_>>()?;
        let digits = format!("{} {}", date.join("-"), time.join(":"));
        (date.len() == 3 && time.len() == 3).then(|| Self { at, given: given.to_owned(), digits })
    }
}

// k8s: pkg/kubelet/kubelet_server_journal.go safeServiceName
fn bad_service(service: &str) -> Option<String> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
    let why = if service.len() > SERVICE_BYTES_MAX {
        format!("length must be less than {SERVICE_BYTES_MAX}")
    } else if !service.bytes().all(is_safe) {
        "input contains unsupported characters".to_owned()
    } else {
        return None;
    };
    Some(invalid("query", &quoted(service), &why))
}

// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/field/errors.go
fn invalid(field: &str, value: &str, why: &str) -> String {
    format!("{field}: Invalid value: {value}: {why}")
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn json(list: &[&str]) -> String {
    serde_json::json!(list).to_string()
}

fn refusal(status: u16, errors: &[String]) -> HttpAnswer {
    let text = match errors {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    };
    HttpAnswer::text(status, format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    fn parse(query: &str) -> Result<Option<NodeQuery>, HttpAnswer> {
        NodeQuery::parse(&Query::parse(query))
    }

    fn checked(query: &str) -> Result<NodeQuery, (u16, String)> {
        let text = |answer: HttpAnswer| {
            (answer.status, String::from_utf8_lossy(&answer.body).trim_end().to_owned())
        };
        let asked = parse(query).map_err(text)?.expect("a query");
        let missing = || StatError { name: "x".to_owned(), errno: Errno::ENOENT };
        asked.check(|_| Err(missing())).map_err(text)?;
        Ok(asked)
    }

    #[test]
    fn services_become_units_and_options_arguments() {
        let asked = checked(
            "query=kubelet&query=crio&sinceTime=2023-01-05T04:05:06Z&untilTime=2023-02-01T00:00:00%2B02:00\
             &tailLines=10&boot=-1&pattern=a+--b",
        )
        .expect("good");
        let services: Vec<&str> = asked.services.iter().map(String::as_str).collect();
        let expected = [
            "--utc",
            "--no-pager",
            "--output=short-precise",
            "--since=2023-1-5 4:5:6",
            "--until=2023-2-1 0:0:0",
            "--pager-end",
            "--lines=10",
            "--unit=kubelet",
            "--unit=crio",
            "--grep=a --b",
            "--boot",
            "-1",
        ];
        assert_eq!(asked.arguments(&services), expected);
        assert!(asked.has_options());
        assert_eq!(parse(""), Ok(None), "a file by its path");
        assert_eq!(parse("other=1"), Ok(None));
    }

    #[test]
    fn refusals_are_the_kubelets() {
        for (query, status, text) in [
            ("query=+", 400, r#"query: Invalid value: [" "]: may not be empty"#),
            ("query=a&sinceTime=x", 400, r#"sinceTime: Invalid value: "x": invalid time format"#),
            (
                "query=a&tailLines=x",
                400,
                r#"tailLines: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax"#,
            ),
            ("boot=0", 406, "query: Required value: cannot be empty with options"),
            (
                "query=a%3Brm",
                406,
                r#"query: Invalid value: "a;rm": input contains unsupported characters"#,
            ),
            (
                "query=a+--root%3D.",
                406,
                r#"query: Invalid value: "a --root=.": input contains unsupported characters"#,
            ),
            (
                "query=a&query=b&query=c&query=d&query=e",
                406,
                "query: Too many: 5: must have at most 4 items",
            ),
            (
                "query=/a&query=b",
                406,
                r#"query: Invalid value: "[/a], [b]": cannot specify a file and service"#,
            ),
            (
                "query=/a&query=/b",
                406,
                r#"query: Invalid value: ["/a","/b"]: cannot specify more than one file"#,
            ),
            (
                "query=/a&boot=0",
                406,
                r#"query: Invalid value: ["/a"]: cannot specify file with options"#,
            ),
            (
                "query=/x",
                406,
                r#"query: Invalid value: ["/x"]: statat x: no such file or directory"#,
            ),
            ("query=a&boot=1", 406, "boot: Invalid value: 1: must be less than 1"),
            (
                "query=a&tailLines=-1&boot=2",
                406,
                "[boot: Invalid value: 2: must be less than 1, tailLines: Invalid value: -1: must be \
                 between 0 and 100000, inclusive]",
            ),
            (
                "query=a&sinceTime=2023-01-02T00:00:00Z&untilTime=2023-01-01T00:00:00Z",
                406,
                r#"untilTime: Invalid value: "2023-01-01T00:00:00Z": must be after `sinceTime`"#,
            ),
        ] {
            assert_eq!(checked(query), Err((status, text.to_owned())), "{query}");
        }
        let long = format!("query={}", "a".repeat(257));
        assert!(
            checked(&long).is_err_and(|(_, text)| text.ends_with("length must be less than 256"))
        );
    }
}
