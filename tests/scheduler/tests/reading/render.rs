//! A value as text, in any of the styles of YAML and JSON.

use std::fmt::Write as _;

use pintle_api_types::rng::Rng;
use serde_json::{Map, Value};

use super::generate::ODD;

/// The text of a value.
pub(crate) fn text(value: &Value, rng: &mut Rng) -> String {
    if rng.chance(8) {
        let lead = *rng.pick(&["", "\n", " ", "# c\n"]);
        return format!("{lead}{value}{}", rng.pick(&["", "\n", "\n---\n", "\n# c\n"]));
    }
    let oddness = *rng.pick(&[0, 1, 1, 3]);
    let mut writer =
        ReadingWriter { text: String::new(), anchors: Vec::new(), maps: Vec::new(), oddness, rng };
    if writer.rng.chance(10) {
        let leads =
            ["---\n", "%YAML 1.1\n---\n", "--- # c\n", "\n\n", "# c\n---\n", "%TAG !e! !\n---\n"];
        let lead = *writer.rng.pick(&leads);
        writer.text.push_str(lead);
    }
    writer.block(value, 0);
    if writer.rng.chance(10) {
        let tails = [
            "---\n",
            "---\n# c\n",
            "...\n",
            "---\nother: 1\n",
            "... \n%\n",
            "---\n{",
            "---\n- \t@\n",
        ];
        let tail = *writer.rng.pick(&tails);
        writer.text.push_str(tail);
    }
    writer.text
}

struct ReadingWriter<'r> {
    text: String,
    /// Names that were given to maps, lists and scalars.
    anchors: Vec<String>,
    /// Those of them that were given to maps.
    maps: Vec<String>,
    /// Per cent of the nodes that are written oddly.
    oddness: u64,
    rng: &'r mut Rng,
}

impl ReadingWriter<'_> {
    /// Properties of a node, or an alias instead of it.
    fn properties(&mut self, value: &Value) -> Option<String> {
        if !self.rng.chance(self.oddness) {
            return Some(String::new());
        }
        match self.rng.range(0, 5) {
            0 | 1 => {
                let name = format!("a{}", self.rng.range(0, 4));
                self.anchors.push(name.clone());
                self.maps.retain(|map| *map != name);
                if value.is_object() {
                    self.maps.push(name.clone());
                }
                Some(format!("&{name} "))
            }
            2 if !self.anchors.is_empty() => {
                let name = self.rng.pick(&self.anchors).clone();
                let _ = write!(self.text, "*{name} ");
                None
            }
            3 => {
                let tags = [
                    "!!str ",
                    "!!int ",
                    "!!float ",
                    "!!bool ",
                    "!!null ",
                    "!!binary ",
                    "!own ",
                    "! ",
                    "!!map ",
                    "!!seq ",
                    "!!timestamp ",
                    "!<tag:yaml.org,2002:str> ",
                    "!e!x ",
                ];
                Some((*self.rng.pick(&tags)).to_owned())
            }
            _ => Some(String::new()),
        }
    }

    /// A node in block style at an indentation, after which the line ends.
    fn block(&mut self, value: &Value, indent: usize) {
        let is_block = match value {
            Value::Object(entries) => !entries.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => false,
        };
        if !is_block || (indent > 0 && self.rng.chance(8)) {
            self.flow(value, indent);
            self.end_line();
            return;
        }
        let Some(properties) = self.properties(value) else { return self.end_line() };
        if !properties.is_empty() || indent > 0 {
            self.text.push_str(properties.trim_end());
            self.end_line();
        }
        match value {
            Value::Object(entries) => self.block_map(entries, indent),
            Value::Array(items) => {
                for item in items {
                    self.indent(indent);
                    self.text.push('-');
                    self.child(item, indent + 2, true);
                }
            }
            _ => {}
        }
    }

    fn block_map(&mut self, entries: &Map<String, Value>, indent: usize) {
        let mut pairs: Vec<_> = entries.iter().collect();
        if self.rng.chance(self.oddness) && !pairs.is_empty() {
            pairs.push(*self.rng.pick(&pairs.clone()));
        }
        for (key, value) in pairs {
            if self.rng.chance(self.oddness) && !self.maps.is_empty() {
                let of = if self.rng.chance(10) { &self.anchors } else { &self.maps };
                let name = self.rng.pick(of).clone();
                self.indent(indent);
                let merges = [format!("<<: *{name}\n"), format!("<<: [*{name}]\n")];
                let merge = self.rng.pick(&merges).clone();
                self.text.push_str(&merge);
            }
            self.indent(indent);
            let before = self.text.len();
            self.key(key);
            if self.rng.chance(self.oddness) {
                self.text.insert_str(before, "? ");
                self.end_line();
                self.indent(indent);
            }
            self.text.push(':');
            self.child(value, indent + 2, false);
        }
    }

    /// Writes the value behind `-` or a key.
    fn child(&mut self, value: &Value, indent: usize, is_item: bool) {
        self.text.push(' ');
        // A list may stand under its key without indentation.
        let is_flat = !is_item && value.is_array() && self.rng.chance(50);
        if is_item
            && let Value::Object(entries) = value
            && !entries.is_empty()
            && self.rng.chance(80)
        {
            // The first key on the line of the dash.
            let start = self.text.len();
            self.block_map(entries, indent);
            if self.text[start..].starts_with(&" ".repeat(indent)) {
                self.text.replace_range(start..start + indent, "");
            }
            return;
        }
        self.block(value, if is_flat { indent - 2 } else { indent }.max(1));
    }

    fn indent(&mut self, indent: usize) {
        // Deepest indentation of one is the mark of a node that is not at the root.
        let indent = if indent == 1 { 0 } else { indent };
        self.text.push_str(&" ".repeat(indent));
    }

    fn end_line(&mut self) {
        if self.rng.chance(self.oddness) {
            let ends = [" # comment", "  ", "\t", " #", "\n", "\n# comment\n", "\r"];
            let end = *self.rng.pick(&ends);
            self.text.push_str(end);
        }
        self.text.push('\n');
    }

    fn key(&mut self, key: &str) {
        let is_plain = key.bytes().all(|it| it.is_ascii_alphanumeric() || b"-./_".contains(&it));
        if is_plain && !key.is_empty() && !self.rng.chance(5) {
            self.text.push_str(key);
        } else {
            self.quoted(key);
        }
    }

    fn quoted(&mut self, text: &str) {
        if self.rng.chance(40) && !text.contains(|it: char| it.is_control()) {
            let _ = write!(self.text, "'{}'", text.replace('\'', "''"));
        } else {
            let _ = write!(self.text, "{}", Value::from(text));
        }
    }

    fn flow(&mut self, value: &Value, indent: usize) {
        let Some(properties) = self.properties(value) else { return };
        self.text.push_str(&properties);
        match value {
            Value::Object(entries) => {
                self.text.push('{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    self.text.push_str(if index > 0 { ", " } else { "" });
                    self.key(key);
                    self.text.push_str(": ");
                    self.flow(value, 0);
                }
                self.text.push('}');
            }
            Value::Array(items) => {
                self.text.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.text.push_str(if index > 0 { ", " } else { "" });
                    self.flow(item, 0);
                }
                let end = if self.rng.chance(5) && !items.is_empty() { ",]" } else { "]" };
                self.text.push_str(end);
            }
            scalar => self.scalar(scalar, indent),
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize) {
        if self.rng.chance(self.oddness) {
            let odd: Vec<&str> = ODD.into_iter().filter(|it| !it.contains('\n')).collect();
            let odd = *self.rng.pick(&odd);
            self.text.push_str(odd);
            return;
        }
        match value {
            Value::String(text) => self.string(text, indent),
            Value::Number(number) => self.number(number),
            Value::Bool(true) => {
                let forms = ["true", "true", "True", "yes", "on", "y"];
                let form = if self.rng.chance(20) { *self.rng.pick(&forms) } else { "true" };
                self.text.push_str(form);
            }
            Value::Bool(false) => {
                let forms = ["FALSE", "no", "off", "N"];
                let form = if self.rng.chance(20) { *self.rng.pick(&forms) } else { "false" };
                self.text.push_str(form);
            }
            _ => {
                let form = *self.rng.pick(&["null", "~", "Null"]);
                self.text.push_str(form);
            }
        }
    }

    fn number(&mut self, number: &serde_json::Number) {
        let Some(whole) = number.as_i64().filter(|it| (0..=i64::from(u32::MAX)).contains(it))
        else {
            return self.text.push_str(&number.to_string());
        };
        let form = match self.rng.range(0, 24) {
            0 => format!("0{whole:o}"),
            1 => format!("0x{whole:x}"),
            2 => format!("0o{whole:o}"),
            3 => format!("{whole}.0"),
            4 => format!("{whole}e0"),
            5 => format!("+{whole}"),
            6 => format!("{whole}_"),
            7 => format!("0b{whole:b}"),
            _ => whole.to_string(),
        };
        self.text.push_str(&form);
    }

    fn string(&mut self, text: &str, indent: usize) {
        let is_plain =
            text.bytes().all(|it| it.is_ascii_alphanumeric() || b"-./_:@ *".contains(&it))
                && text.starts_with(|it: char| it.is_ascii_alphabetic() || it == '/')
                && !ODD.contains(&text);
        if self.rng.chance(4) && indent > 1 && !text.contains('\r') {
            let header = *self.rng.pick(&["|", ">", "|-", ">-", "|+", "|2"]);
            self.text.push_str(header);
            for line in text.split('\n') {
                let _ = write!(self.text, "\n{}{line}", " ".repeat(indent));
            }
            return;
        }
        if is_plain && !self.rng.chance(15) || !text.is_empty() && self.rng.chance(self.oddness) {
            self.text.push_str(text);
        } else {
            self.quoted(text);
        }
    }
}
