//! Turns an API pod into a program and a row, by its template if there is one.
//!
//! Input: a pod. Output: its program, its row, or both with one lookup. Owner: the writer of the
//! cluster. Bounds: without a template the cost of compiling and parsing.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::compile;
use super::cost::PodCost;
use crate::attempt_budget::AttemptBudget;
use crate::program::Program;
use crate::requests::PodRequests;
use crate::snapshot::cluster::{Cluster, DeltaError};
use crate::snapshot::objects::{ObjectError, PodSpec};
use crate::snapshot::template::{self, Template};

impl Cluster {
    /// Compiles a pod. Equal pods share one program.
    ///
    /// # Errors
    /// A quantity or a selector of the pod is invalid.
    pub fn compile(&mut self, pod: &Pod) -> Result<Arc<Program>, DeltaError> {
        self.compile_within(pod, &AttemptBudget::unlimited())
    }

    /// Like [`Cluster::compile`], charged to an attempt.
    ///
    /// # Errors
    /// As of [`Cluster::compile`], and if the attempt has exceeded a limit.
    pub fn compile_within(
        &mut self,
        pod: &Pod,
        spent: &AttemptBudget,
    ) -> Result<Arc<Program>, DeltaError> {
        self.sweep_if_due();
        self.release_counters();
        let print = self.print(pod);
        if let Some(found) = self.template(print, pod)
            && let Some(program) = found.program(&self.view.profile)
            && !is_named(pod)
        {
            return Ok(Arc::clone(program));
        }
        let requests = PodRequests::of(pod).map_err(ObjectError::from)?;
        let program = compile(self, pod, requests, spent)?;
        // Compiling has mentioned the labels of its terms, so a pod without a template need not be
        // parsed: that takes as long as compiling it.
        if !PodCost::of(pod).is_heavy()
            && let Ok(spec) = self.read_anew(pod)
        {
            self.keep(pod, &spec, Some(&program));
        }
        Ok(program)
    }

    /// Parses a pod once, to be placed any number of times.
    ///
    /// # Errors
    /// The pod is invalid.
    pub fn read_pod(&mut self, pod: &Pod) -> Result<PodSpec, DeltaError> {
        self.sweep_if_due();
        let print = self.print(pod);
        if let Some(spec) = self.read_again(print, pod) {
            return Ok(spec?);
        }
        let spec = self.read_anew(pod)?;
        self.keep(pod, &spec, None);
        Ok(spec)
    }

    /// Compiles a pod and parses it.
    ///
    /// # Errors
    /// As `compile` and `read_pod`.
    pub fn prepare(&mut self, pod: &Pod) -> Result<(Arc<Program>, PodSpec), DeltaError> {
        self.sweep_if_due();
        self.release_counters();
        let print = self.print(pod);
        let found = self.template(print, pod).and_then(|t| t.program(&self.view.profile));
        if let Some(program) = found.filter(|_| !is_named(pod)).cloned()
            && let Some(spec) = self.read_again(print, pod)
        {
            return Ok((program, spec?));
        }
        // Terms come first, because they may mention labels that distinguish single pods.
        let spec = self.read_anew(pod)?;
        let spent = AttemptBudget::unlimited();
        let program = compile(self, pod, spec.requests.clone(), &spent)?;
        self.keep(pod, &spec, Some(&program));
        Ok((program, spec))
    }

    fn print(&self, pod: &Pod) -> Option<u64> {
        template::print(pod, &self.own_asked())
    }

    fn template(&self, print: Option<u64>, pod: &Pod) -> Option<&Template> {
        self.templates.find(print?, pod, &self.own_asked(), &self.owners)
    }

    fn read_again(
        &mut self,
        print: Option<u64>,
        pod: &Pod,
    ) -> Option<Result<PodSpec, ObjectError>> {
        let asked = self.own_asked();
        let found = self.templates.find(print?, pod, &asked, &self.owners)?;
        Some(found.spec.like(pod, &mut self.interner))
    }

    fn read_anew(&mut self, pod: &Pod) -> Result<PodSpec, ObjectError> {
        let spec = PodSpec::of(pod, &mut self.interner)?;
        // Its terms are counted once it is placed. The labels they mention are known from now on,
        // so that programs compiled later distinguish pods by them.
        for term in spec.terms.iter() {
            self.mention(&term.selector);
        }
        Ok(spec)
    }

    /// Keeps the parsed pod and its program as a template.
    fn keep(&mut self, pod: &Pod, spec: &PodSpec, program: Option<&Arc<Program>>) {
        if PodCost::of(pod).is_heavy() {
            return;
        }
        // Selectors may just have mentioned further labels.
        let Some(print) = self.print(pod) else { return };
        let program =
            program.filter(|p| !is_named(pod) && !p.is_passing).map(|p| (&self.view.profile, p));
        let workloads = self.owners.changed(spec.namespace);
        self.templates.keep(print, pod, workloads, spec, program);
    }

    /// Returns the own labels that counters, terms or workloads mention.
    fn own_asked(&self) -> template::Asked {
        std::array::from_fn(|at| self.own_keys[at].1 || self.owners.own_asked[at])
    }
}

/// Returns true if the pod has a node name already, which a template must not have.
fn is_named(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref().is_some_and(|n| !n.is_empty()))
}
