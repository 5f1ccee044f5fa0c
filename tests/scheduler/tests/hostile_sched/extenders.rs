//! Extenders that hang, trickle or answer nonsense, and pods that need them.
//!
//! The administrator has configured one for a resource; any user may ask for that resource. A
//! thread in the cluster's network stands in for it.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_testbed::attacks;
use serde_json::{Value, json};

use crate::ground::{AttackedCluster, EXTENDED, EXTENDER, pod};

attacks!(AttackedCluster, "extenders":
    nobody_listens,
    one_that_never_answers,
    one_whose_answer_trickles,
    one_whose_answer_never_ends,
    one_that_answers_nonsense,
);

/// Pods that need the extender.
const PODS: usize = 200;
/// How often a listener checks for its end.
const LOOK: Duration = Duration::from_millis(20);
/// A piece of a body that never ends.
const PIECE: &[u8] = &[b' '; 64 << 10];

/// How an extender behaves.
#[derive(Clone, Copy, Debug)]
pub enum ExtenderManner {
    /// It reads the request and never answers.
    Silent,
    /// A byte of its answer now and then.
    Trickling,
    /// Bytes without end, as fast as they are taken.
    Endless,
    /// One of several answers that are none.
    Nonsense,
}

/// An extender; it ends with this.
pub struct Extender {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Extender {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts an extender in the cluster's network.
pub fn listen(ground: &AttackedCluster, manner: ExtenderManner) -> Extender {
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    let thread = ground.stand.in_network(move || {
        let listener = TcpListener::bind(EXTENDER).expect("the address is free");
        listener.set_nonblocking(true).expect("a listener that does not wait");
        thread::spawn(move || serve(&listener, manner, &ends))
    });
    Extender { is_over, thread: Some(thread) }
}

fn serve(listener: &TcpListener, manner: ExtenderManner, is_over: &Arc<AtomicBool>) {
    let mut answering = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((peer, _)) => {
                let (ends, number) = (Arc::clone(is_over), answering.len());
                answering.push(thread::spawn(move || answer(peer, manner, &ends, number)));
            }
            Err(_) => thread::sleep(LOOK),
        }
    }
    for thread in answering {
        let _ = thread.join();
    }
}

/// Answers requests on one connection, until it is closed or the attack is over.
fn answer(mut peer: TcpStream, manner: ExtenderManner, is_over: &AtomicBool, number: usize) {
    let _ = peer.set_nonblocking(false);
    let _ = peer.set_read_timeout(Some(LOOK));
    let _ = peer.set_write_timeout(Some(LOOK));
    let nonsense = [
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnull",
        "HTTP/1.1 200 OK\r\ncontent-length: 37\r\n\r\n{\"NodeNames\":[\"nobody\",\"n0\",\"n0\",\"\"]}",
        "HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[[",
        "no HTTP at all\r\n\r\n",
        "",
    ];
    let mut head = "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n";
    while !is_over.load(Ordering::Relaxed) {
        let mut bytes = [0; 4096];
        let asked = match peer.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => true,
            Err(_) => false, // nothing came
        };
        let said = match manner {
            ExtenderManner::Silent => continue,
            ExtenderManner::Nonsense if asked => nonsense[number % nonsense.len()].as_bytes(),
            ExtenderManner::Nonsense => continue,
            ExtenderManner::Trickling | ExtenderManner::Endless if !head.is_empty() => {
                std::mem::take(&mut head).as_bytes()
            }
            ExtenderManner::Trickling => b" ",
            ExtenderManner::Endless => PIECE,
        };
        let _ = peer.write(said); // unsent bytes do not matter
        if matches!(manner, ExtenderManner::Nonsense) {
            return;
        }
    }
}

/// Pods that request the extender's resource.
fn extended(count: usize) -> Vec<Value> {
    let one = |at: usize| {
        let mut pod = pod(&format!("p{at}"), json!({}));
        let resources = &mut pod["spec"]["containers"][0]["resources"];
        resources["requests"][EXTENDED] = "1".into();
        resources["limits"] = json!({EXTENDED: "1"});
        pod
    };
    (0..count).map(one).collect()
}

fn beside(ground: &mut AttackedCluster, manner: ExtenderManner) {
    let _extender = listen(ground, manner);
    ground.create::<Pod>(extended(PODS));
    ground.bystander(&format!("beside an extender that is {manner:?}"));
    ground.are_answered(&["p0"]);
    ground.bystander("after the first answers");
}

fn nobody_listens(ground: &mut AttackedCluster) {
    ground.create::<Pod>(extended(PODS));
    ground.bystander("without the extender");
    ground.are_answered(&["p0"]);
}

fn one_that_never_answers(ground: &mut AttackedCluster) {
    beside(ground, ExtenderManner::Silent);
}

fn one_whose_answer_trickles(ground: &mut AttackedCluster) {
    beside(ground, ExtenderManner::Trickling);
}

fn one_whose_answer_never_ends(ground: &mut AttackedCluster) {
    beside(ground, ExtenderManner::Endless);
}

fn one_that_answers_nonsense(ground: &mut AttackedCluster) {
    beside(ground, ExtenderManner::Nonsense);
}
