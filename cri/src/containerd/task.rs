//! Ends a task that CRI has forgotten.
//!
//! If the caller of a StartContainer is gone at the wrong instant, CRI can report the container as
//! ended while containerd still has a task for it, with its process alive or about to be. CRI then
//! refuses to remove the container ("cannot delete running task") and finds nothing to stop.
//! containerd's own API still reaches the task. Idempotent: a missing task or process is success.

use containerd_client::services::v1::{
    DeleteTaskRequest, KillRequest, WaitRequest, tasks_client::TasksClient,
};
use tonic::{Code, Response, Status};

use super::{Containerd, ContainerdError};

const SIGKILL: u32 = 9;

impl Containerd {
    /// Kills every process of a container's task, waits for its end and takes the task away.
    pub async fn end_task(&self, id: &str) -> Result<(), ContainerdError> {
        let mut tasks = TasksClient::new(self.channel.clone());
        let kill = KillRequest {
            container_id: id.to_owned(),
            signal: SIGKILL,
            all: true,
            ..Default::default()
        };
        let killed = tasks.kill(self.bounded(kill)).await;
        self.gone_is_well("KillTask", killed)?;
        let wait = WaitRequest { container_id: id.to_owned(), ..Default::default() };
        let ended = tasks.wait(self.bounded(wait)).await;
        self.gone_is_well("WaitTask", ended)?;
        let deleted = tasks.delete(self.bounded(DeleteTaskRequest { container_id: id.to_owned() }));
        self.gone_is_well("DeleteTask", deleted.await)
    }

    fn gone_is_well<T>(
        &self,
        operation: &'static str,
        answer: Result<Response<T>, Status>,
    ) -> Result<(), ContainerdError> {
        match self.answer(operation, answer) {
            Ok(_) => Ok(()),
            Err(error) if error.code == Code::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}
