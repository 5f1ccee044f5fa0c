//! Parts of URLs: escapes, and users, which must not be shown with their passwords. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A text without its escapes; `None` when one is broken or the text is not UTF-8.
pub fn unescaped(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digit = |b: u8| char::from(b).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                u8::try_from(high << 4 | low).ok()?
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

/// A text as a part of a URL's query.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A URL as it may be shown, whether it is one or not.
// Go: net/url URL.Redacted
pub fn without_password(url: &str) -> String {
    match user(url).and_then(|user| user.split_once(':')) {
        None => url.to_owned(),
        Some((name, password)) => {
            url.replacen(&format!("{name}:{password}@"), &format!("{name}:xxxxx@"), 1)
        }
    }
}

/// The value of the header `Authorization` for a URL that names a user.
// Go: net/http client.go send
pub fn basic_authorization(url: &str) -> Option<String> {
    let user = user(url)?;
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let pair = format!("{}:{}", unescaped(name, false)?, unescaped(password, false)?);
    Some(format!("Basic {}", STANDARD.encode(pair)))
}

/// The part in front of the host, as it is written.
fn user(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    authority.rsplit_once('@').map(|(user, _)| user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_unescapes_to_the_original() {
        assert_eq!(escaped("spec.nodeName=a b,ä"), "spec.nodeName%3Da%20b%2C%C3%A4");
        for text in ["", "a/b?c&d=e#f%+", "ä\u{1f600}"] {
            assert_eq!(unescaped(&escaped(text), true).as_deref(), Some(text));
        }
    }

    #[test]
    fn a_password_is_sent_and_never_shown() {
        for (url, shown, pair) in [
            ("http://h/a@b", "http://h/a@b", None),
            ("https://u@h/", "https://u@h/", Some("u:")),
            ("https://u:p%40w@h:1/?x", "https://u:xxxxx@h:1/?x", Some("u:p@w")),
            ("https://u:a@b@h", "https://u:xxxxx@h", Some("u:a@b")),
            ("no URL", "no URL", None),
            ("x://u:p d@", "x://u:xxxxx@", Some("u:p d")),
        ] {
            assert_eq!(without_password(url), shown);
            let sent = pair.map(|pair| format!("Basic {}", STANDARD.encode(pair)));
            assert_eq!(basic_authorization(url), sent, "{url}");
        }
    }
}
