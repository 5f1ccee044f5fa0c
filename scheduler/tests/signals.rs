//! SIGTERM ends the process whatever the API server does. The server here is a listener that never
//! answers: what `api/memory` would answer is of no matter.
#![allow(missing_docs)]

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Far more than it takes, far less than the time limit of a stuck process.
const SOON: Duration = Duration::from_secs(20);

/// Starts a scheduler with an API server that accepts connections and never answers.
fn started(args: &[&str]) -> (Child, TcpListener) {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", server.local_addr().expect("an address"));
    let child = Command::new(env!("CARGO_BIN_EXE_pintle-scheduler"))
        .args([&format!("--master={url}"), "--secure-port=0"])
        .args(args)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    (child, server)
}

fn signal(child: &Child) {
    let sent = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status();
    assert!(sent.expect("kill is there").success());
}

/// Waits for the end of the process; returns its exit code.
fn ended(child: &mut Child) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("it is a child") {
            return status.code();
        }
        if began.elapsed() > SOON {
            child.kill().expect("it is there");
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn sigterm_ends_a_scheduler_whose_api_server_never_answers() {
    for args in [&["--leader-elect=false"][..], &[]] {
        let (mut child, server) = started(args);
        // Signals are handled from before its first request.
        let (mut peer, _) = server.accept().expect("it connects");
        peer.read_exact(&mut [0]).expect("a request");
        signal(&child);
        let code = ended(&mut child);
        let mut says = String::new();
        let stderr = child.stderr.take().expect("it is piped");
        BufReader::new(stderr).lines().map_while(Result::ok).for_each(|line| says += &line);
        assert_eq!(code, Some(0), "{says}");
    }
}
