//! Decoders of the agent's server, and of the output of probe commands. Their files use nothing
//! else of the agent and are compiled here once more, because the program would take minutes longer
//! to build with everything that the agent links.

#![allow(dead_code, unreachable_pub, reason = "most of these files is for the agent")]

#[path = "../../../cri/src/exec_answer.rs"]
mod exec_answer;
#[path = "../../../agent/server/src/stream/spdy.rs"]
mod spdy;
#[path = "../../../api/daemon/src/serve/secure/subject.rs"]
mod subject;
#[path = "../../../api/daemon/src/serve/secure/websocket.rs"]
mod token;
#[path = "../../../agent/server/src/stream/websocket.rs"]
mod websocket;

pub(crate) use exec_answer::fuzz as fuzz_exec_answer;
pub(crate) use spdy::fuzz as fuzz_spdy;
pub(crate) use subject::fuzz as fuzz_certificate;
pub(crate) use token::fuzz as fuzz_token;
pub(crate) use websocket::fuzz as fuzz_websocket;
