//! The report as tables.
//!
//! Input: a `Simulation`. Output: text. Owner: pure but for the writer. Bounds: `limit` rows a
//! table. A dump may be hostile: none of its control characters reach the terminal.

pub mod capacity;

use std::borrow::Cow;
use std::io::{self, Write};

use pintle_sched_core::remedy::amount;

use super::place::{PodAnswer, Simulation};
use crate::output::plain;

/// Prints everything, at most `limit` rows a table (0 is all).
///
/// # Errors
/// The writer fails.
pub fn table(simulation: &Simulation, limit: usize, out: &mut dyn Write) -> io::Result<()> {
    let limit = if limit == 0 { usize::MAX } else { limit };
    let s = simulation;
    writeln!(
        out,
        "{} nodes, {} bound pods, {} to place: {} placed, {} unschedulable",
        s.nodes,
        s.bound,
        s.pending,
        s.placed.len(),
        s.unplaced.len()
    )?;
    for note in &s.notes {
        writeln!(out, "{}", plain(note))?;
    }
    if s.skipped > 0 {
        writeln!(out, "{} pods skipped (finished, deleted, or of another scheduler)", s.skipped)?;
    }
    if !s.left_out.is_empty() {
        let (count, pods) = (s.left_out.len(), &s.left_out[..s.left_out.len().min(limit)]);
        let why = "volumes and resource claims are not simulated";
        writeln!(out, "{count} pods left out ({why}): {}", plain(&pods.join(", ")))?;
        more(pods.len(), count, out)?;
    }
    if !s.added.is_empty() {
        writeln!(out, "{} nodes added: {} ..", s.added.len(), plain(&s.added[0]))?;
    }
    assumed(s, limit, out)?;
    if let Some(why) = &s.why {
        explain(why, limit, out)?;
    }
    placed(s, limit, out)?;
    unplaced(s, limit, out)?;
    left(s, out)
}

fn grid(header: &[&str], rows: &[Vec<String>], out: &mut dyn Write) -> io::Result<()> {
    let rows: Vec<Vec<Cow<'_, str>>> =
        rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let mut widths: Vec<usize> = header.iter().map(|h| h.len()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let last = widths.len() - 1;
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for ((at, cell), width) in cells.enumerate().zip(&widths) {
            text.push_str(cell);
            if at != last {
                text.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 2));
            }
        }
        writeln!(out, "{}", text.trim_end())
    };
    line(&mut header.iter().copied())?;
    rows.iter().try_for_each(|row| line(&mut row.iter().map(|cell| &**cell)))
}

fn more(shown: usize, all: usize, out: &mut dyn Write) -> io::Result<()> {
    if shown < all {
        writeln!(out, ".. and {} more (--limit 0 shows all)", all - shown)?;
    }
    Ok(())
}

/// Lists fields that manifests omit, with the values an API server would set.
fn assumed(s: &Simulation, limit: usize, out: &mut dyn Write) -> io::Result<()> {
    if s.assumed.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nASSUMED")?;
    let rows = s.assumed.iter().take(limit).map(|one| {
        let more = one.pods - one.examples.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let pods = format!("{}{more}", one.examples.join(", "));
        vec![one.field.clone(), one.value.clone(), pods]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    grid(&["FIELD", "IS", "OF PODS"], &rows, out)?;
    more(rows.len(), s.assumed.len(), out)
}

fn placed(s: &Simulation, limit: usize, out: &mut dyn Write) -> io::Result<()> {
    if s.placed.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nPLACED")?;
    let rows: Vec<Vec<String>> = s
        .placed
        .iter()
        .take(limit)
        .map(|p| {
            let tie = if p.ties > 1 { format!(", {} tie", p.ties) } else { String::new() };
            let from = p.from.as_ref().map_or(String::new(), |n| format!(", from {n}"));
            let why = format!("score {}, {} feasible{tie}{from}", p.score, p.feasible);
            vec![p.pod.clone(), p.node.clone(), why]
        })
        .collect();
    grid(&["POD", "NODE", "WHY"], &rows, out)?;
    more(rows.len(), s.placed.len(), out)
}

fn unplaced(s: &Simulation, limit: usize, out: &mut dyn Write) -> io::Result<()> {
    if s.unplaced.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nUNSCHEDULABLE")?;
    for one in s.unplaced.iter().take(limit) {
        let from = one.from.as_ref().map_or(String::new(), |n| format!(" (from {n})"));
        writeln!(out, "{}\n  {}", plain(&format!("{}{from}", one.pod)), plain(&one.message))?;
        if let Some(remedy) = &one.remedy {
            writeln!(out, "  would fit: {}", plain(&remedy.to_string()))?;
        }
        if let Some(p) = &one.preemption {
            let budget = match p.violations {
                0 => String::new(),
                n => format!(", {n} against a disruption budget"),
            };
            let text = format!("{}: {}{budget}", p.node, p.victims.join(", "));
            writeln!(out, "  preemption on {}", plain(&text))?;
        }
    }
    more(s.unplaced.len().min(limit), s.unplaced.len(), out)
}

fn explain(why: &PodAnswer, limit: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nWHY {}\n{}", plain(&why.pod), plain(&why.answer))?;
    if let Some(remedy) = &why.remedy {
        writeln!(out, "would fit: {}", plain(&remedy.to_string()))?;
    }
    let plugins: Vec<&str> =
        why.nodes.first().map(|n| n.scores.keys().copied().collect()).unwrap_or_default();
    let mut header = vec!["NODE", "TOTAL"];
    header.extend(&plugins);
    let feasible = why.nodes.iter().filter(|n| n.total.is_some());
    let rows: Vec<Vec<String>> = feasible
        .clone()
        .take(limit)
        .map(|n| {
            let mut row = vec![n.node.clone(), n.total.unwrap_or(0).to_string()];
            row.extend(plugins.iter().map(|p| match n.scores.get(p) {
                Some([raw, normalised, weighted]) => {
                    format!("{weighted} ({normalised}, raw {raw})")
                }
                None => "-".to_owned(),
            }));
            row
        })
        .collect();
    if !rows.is_empty() {
        grid(&header, &rows, out)?;
        more(rows.len(), feasible.count(), out)?;
    }
    let rejected: Vec<Vec<String>> = why
        .nodes
        .iter()
        .filter(|n| n.total.is_none())
        .map(|n| vec![n.node.clone(), n.plugin.unwrap_or("-").to_owned(), n.reasons.join(", ")])
        .collect();
    if !rejected.is_empty() {
        let shown = rejected.len().min(limit);
        grid(&["NODE", "REJECTED BY", "REASON"], &rejected[..shown], out)?;
        more(shown, rejected.len(), out)?;
    }
    Ok(())
}

fn left(s: &Simulation, out: &mut dyn Write) -> io::Result<()> {
    if !s.capacity.is_empty() {
        writeln!(out, "\nCAPACITY LEFT")?;
        let rows: Vec<Vec<String>> = s
            .capacity
            .iter()
            .map(|c| {
                let (pods, more) = (c.pods.to_string(), c.more.to_string());
                vec![c.requests.clone(), pods, more, c.nodes.to_string()]
            })
            .collect();
        grid(&["SHAPE", "ASKED", "MORE FIT", "ON NODES"], &rows, out)?;
    }
    writeln!(out, "\nFRAGMENTATION")?;
    let rows: Vec<Vec<String>> = s
        .fragmentation
        .iter()
        .map(|f| {
            vec![
                f.resource.clone(),
                amount(&f.resource, f.allocatable),
                amount(&f.resource, f.free),
                amount(&f.resource, f.largest_free),
                format!("{:.1} %", f.stranded_percent),
            ]
        })
        .collect();
    grid(&["RESOURCE", "ALLOCATABLE", "FREE", "LARGEST FREE", "STRANDED"], &rows, out)
}
