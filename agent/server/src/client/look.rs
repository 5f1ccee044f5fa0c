//! The form of answers: colours, where lines are cut, and which foreign characters are not printed.
//! Pure but for asking the terminal once.
//!
//! Containers, runtimes and registries choose their own messages, which are shown to root: none of
//! their characters moves the cursor, colours, writes backwards or begins a line.

use std::io::{self, IsTerminal};

use pintle_agent_config::{ClientCommand, Color};

/// Columns between two cells.
const GAP: usize = 3;
/// Stands where a line was cut.
const CUT: char = '…';

/// Style of a cell where colours are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Style {
    #[default]
    Plain,
    /// A column's title.
    Title,
    /// Healthy.
    Good,
    /// Something is wrong.
    Bad,
}

impl Style {
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Title => Some("1"),
            Self::Good => Some("32"),
            Self::Bad => Some("31"),
        }
    }
}

/// A cell of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell in a style.
    pub(super) fn new(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, style: Style::Plain }
    }
}

/// Colours and width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TextStyle {
    /// True to use colours.
    pub(super) color: bool,
    /// Columns of a line; `None` for any number.
    pub(super) width: Option<usize>,
}

impl TextStyle {
    /// The form that the command asks for, and else the terminal's.
    pub(super) fn of(command: &ClientCommand) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let color = match command.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => is_terminal && !no_color,
        };
        let own = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        let width = match command.width {
            Some(0) => None,
            Some(width) => Some(width),
            None if is_terminal => own(),
            None => None,
        };
        Self { color, width }
    }

    /// Columns as wide as their widest cell; the last one is not padded.
    pub(super) fn table(&self, rows: &[Vec<Cell>]) -> String {
        let columns = rows.first().map_or(0, Vec::len);
        let widest = |column: usize| rows.iter().map(|row| shown(&row[column].text).count()).max();
        let widths: Vec<usize> =
            (0..columns).map(|c| widest(c).unwrap_or_default() + GAP).collect();
        rows.iter().map(|row| self.line(row, &widths)).collect()
    }

    fn line(&self, row: &[Cell], widths: &[usize]) -> String {
        let last = row.iter().rposition(|cell| !cell.text.is_empty()).map_or(0, |at| at + 1);
        let full: usize = widths.iter().take(last.saturating_sub(1)).sum::<usize>()
            + last.checked_sub(1).map_or(0, |at| shown(&row[at].text).count());
        let limit = self.width.filter(|width| full > *width);
        let mut room = limit.map_or(usize::MAX, |width| width.saturating_sub(1));
        let mut out = String::new();
        for (index, (cell, width)) in row.iter().zip(widths).take(last).enumerate() {
            let text: String = shown(&cell.text).take(room).collect();
            let count = text.chars().count();
            room -= count;
            let gap = if index + 1 == last { 0 } else { (width - count).min(room) };
            room = room.saturating_sub(gap);
            match cell.style.code().filter(|_| self.color && !text.is_empty()) {
                Some(code) => out += &format!("\x1b[{code}m{text}\x1b[0m"),
                None => out += &text,
            }
            out.extend(std::iter::repeat_n(' ', gap));
        }
        out.extend(limit.map(|_| CUT));
        out.push('\n');
        out
    }
}

/// A foreign text on one line, without control characters.
pub(super) fn plain(text: &str) -> String {
    shown(text).collect()
}

/// A foreign text of several lines, without control characters.
pub(super) fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// JSON with control characters escaped; serde only does so for the first 32.
pub(super) fn plain_json(json: &str) -> String {
    let escaped = |c: char| match c != '\n' && is_obeyed(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    match json.chars().any(|c| c != '\n' && is_obeyed(c)) {
        true => json.chars().map(escaped).collect(),
        false => json.to_owned(),
    }
}

fn shown(text: &str) -> impl Iterator<Item = char> {
    let spaced = |c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c };
    text.chars().map(spaced).filter(|c| !is_obeyed(*c))
}

/// True for control characters, and for characters that turn the direction of writing or end a
/// line.
fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}');
    c.is_control() || turns || matches!(c, '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Vec<Cell>> {
        let row = |a: &str, b: &str, style| vec![Cell::from(a.to_owned()), Cell::new(b, style)];
        vec![
            row("A", "B", Style::Title),
            row("longer", "a sentence\nthat\x1b[31m goes on", Style::Bad),
            row("x", "", Style::Plain),
        ]
    }

    #[test]
    fn columns_are_aligned_and_control_characters_left_out() {
        let table = TextStyle::default().table(&rows());
        assert_eq!(table, "A        B\nlonger   a sentence that[31m goes on\nx\n");
    }

    #[test]
    fn terminal_control_characters_are_removed_or_escaped_in_untrusted_text() {
        let bad = "a\x1b[2J\u{7}\u{9b}31m\u{202e}b\tc\r\nd\u{7f}\u{2066}é";
        assert_eq!(plain(bad), "a[2J31mb c  dé");
        assert_eq!(plain_lines("a\n\x1bb\n"), "a\nb\n");
        let json = serde_json::to_string_pretty(&serde_json::json!({"m": bad})).expect("JSON");
        let escaped = plain_json(&json);
        assert!(!escaped.chars().any(|c| c != '\n' && is_obeyed(c)), "{escaped:?}");
        let back: serde_json::Value = serde_json::from_str(&escaped).expect("still JSON");
        assert_eq!(back["m"], bad);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_with_a_mark() {
        let look = TextStyle { color: false, width: Some(12) };
        assert_eq!(look.table(&rows()), "A        B\nlonger   a …\nx\n");
        for width in 0..60 {
            for line in (TextStyle { color: false, width: Some(width) }).table(&rows()).lines() {
                assert!(line.chars().count() <= width.max(1), "{width}: {line}");
            }
        }
    }

    #[test]
    fn colours_do_not_count_as_columns() {
        let look = TextStyle { color: true, width: Some(12) };
        let table = look.table(&rows());
        assert_eq!(table.lines().nth(1), Some("longer   \x1b[31ma \x1b[0m…"));
        assert_eq!(table.lines().next(), Some("A        \x1b[1mB\x1b[0m"));
    }
}
