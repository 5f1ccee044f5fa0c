//! An explanation as text.

use std::fmt::{self, Display, Formatter};

use pintle_sched_core::remedy;

use super::{Explanation, Group, OneNode, Queued};
use crate::queue::QueuePlace;

impl Display for Explanation {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match &self.bound_to {
            Some(node) => writeln!(out, "{} is on {node}. Without it there:", self.pod)?,
            None => writeln!(out, "{} has no node.", self.pod)?,
        }
        if let Some(queue) = &self.queue {
            writeln!(out, "{queue}")?;
        }
        if let Some(one) = &self.one_node {
            writeln!(out, "{one}")?;
        }
        if let Some(node) = &self.nominated {
            writeln!(out, "It is nominated to {node}.")?;
        }
        if let Some(best) = self.fitting.first() {
            let (feasible, nodes, ties) = (self.feasible, self.nodes, self.ties);
            writeln!(
                out,
                "{feasible} of {nodes} nodes fit; the highest score is {}, which",
                best.score
            )?;
            let others = if ties == 1 { "node has".to_owned() } else { "nodes have".to_owned() };
            writeln!(out, "{ties} {others}.")?;
        }
        if let Some(message) = &self.message {
            writeln!(out, "{message}")?;
        }
        for fitting in &self.fitting {
            writeln!(out, "  {:>6}  {}", fitting.score, fitting.node)?;
        }
        if !self.rejected.is_empty() {
            writeln!(out, "\nRejected:")?;
            self.rejected.iter().try_for_each(|group| one_group(group, out))?;
        }
        if let Some(smallest) = self.nearest.first() {
            let how = if smallest.node.is_some() { "" } else { "if you " };
            writeln!(out, "\nIt would fit {how}{smallest}")?;
        }
        if self.nearest.len() > 1 {
            writeln!(out, "or:")?;
            self.nearest[1..].iter().try_for_each(|other| writeln!(out, "  {other}"))?;
        }
        if let Some(eviction) = &self.preemption {
            let budget = match eviction.violations {
                0 => String::new(),
                count => format!(", {count} against a disruption budget"),
            };
            let victims = eviction.victims.join(", ");
            writeln!(out, "\nPreemption would evict from {}: {victims}{budget}", eviction.node)?;
            writeln!(out, "({} nodes to choose from)", eviction.candidates)?;
            if let Some((rule, second)) = eviction.decided_by.zip(eviction.runner_up.as_ref()) {
                let rule = rule.text();
                writeln!(out, "{} before {}: {rule}.", eviction.node, second.node)?;
            }
        }
        if let Some(why) = &self.no_preemption {
            writeln!(out, "\nNo preemption: {why}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(out, "\nNote: {note}."))
    }
}

fn one_group(group: &Group, out: &mut Formatter<'_>) -> fmt::Result {
    let more = if group.count > group.nodes.len() { ", .." } else { "" };
    let reasons = group.why.reasons.join(", ");
    writeln!(out, "  {:>6}  {reasons}: {}{more}", group.count, group.nodes.join(", "))
}

impl Display for OneNode {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Some(why) = &self.why else {
            let score = self.score.unwrap_or_default();
            return write!(out, "{}: yes, its score is {score}.", self.node);
        };
        write!(out, "{}: no, {}", self.node, why.reasons.join(", "))?;
        if let Some(plugin) = why.plugin {
            write!(out, " ({plugin})")?;
        }
        if !self.lacks.is_empty() {
            write!(out, "; to fit there: {}", remedy::text_of(&self.lacks))?;
        }
        out.write_str(if why.preemption_may_help { "; preemption may help." } else { "." })
    }
}

impl Display for Queued {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(match self.place {
            QueuePlace::Active => "It is tried when its turn comes",
            QueuePlace::Backoff | QueuePlace::ErrorBackoff => "In backoff",
            QueuePlace::Unschedulable => "It waits for an event that may help it",
            QueuePlace::Gated => "It is gated and not tried until PreEnqueue accepts it",
            QueuePlace::InFlight => "It is being decided",
            QueuePlace::Binding => "It is being bound",
        })?;
        if let Some(seconds) = self.tried_again {
            write!(out, ", tried again within {seconds} s")?;
        }
        let plural = if self.attempts == 1 { "" } else { "s" };
        write!(out, "; {} attempt{plural}", self.attempts)?;
        if !self.rejected_by.is_empty() {
            write!(out, "; last rejected by {}", self.rejected_by.join(", "))?;
        }
        out.write_str(".")?;
        if let Some(over) = self.over_share {
            write!(
                out,
                " Its namespace has used {over:.1} s of the scheduler's time beyond its share: pods of \
                 other namespaces go first."
            )?;
        }
        Ok(())
    }
}
