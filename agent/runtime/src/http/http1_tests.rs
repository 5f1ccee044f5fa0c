//! Requests of Go 1.26's client, and its results for odd answers: each line of the tables was
//! printed by it.

use tokio::io::duplex;

use super::*;

async fn asks(answer: &[u8]) -> Result<(u16, String, String), String> {
    let (ours, mut theirs) = duplex(64 * 1024);
    theirs.write_all(answer).await.expect("there is room");
    drop(theirs);
    let watch = RequestProgress::default();
    match exchange(ours, b"", 10 * 1024, &watch).await {
        Ok((answer, _)) => {
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            Ok((answer.status, body, answer.body_error))
        }
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test]
async fn odd_answers_that_go_accepts_are_accepted() {
    for (answer, status, body) in [
        ("HTTP/1.1 200 OK\r\nContent-Type : text/plain\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
        ("HTTP/1.1  200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
        ("HTTP/1.1 200 OK\r\nX-Note: one\r\n  two\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
        ("HTTP/1.1 200 OK\r\nX: a\r\n\tb\r\n \r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
        ("HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, "ok"),
        ("HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
        ("HTTP/1.0 200 OK\r\n\r\nok", 200, "ok"),
        ("HTTP/1.1 200 OK\r\n\r\nok", 200, "ok"),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", 204, ""),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
        ("HTTP/1.1 +20 OK\r\nContent-Length: 2\r\n\r\nok", 20, "ok"),
        ("HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok", 200, "ok"),
        ("HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok and more", 200, "ok and more"),
        ("HTTP/1.1 299 OK\r\nX Y: z\r\n\r\nok", 299, "ok"),
        ("HTTP/1.1 101 Switching Protocols\r\n\r\nok", 101, ""),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
             HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            200,
            "ok",
        ),
    ] {
        let want = Ok((status, body.to_owned(), String::new()));
        assert_eq!(asks(answer.as_bytes()).await, want, "{answer:?}");
    }
    let latin = b"HTTP/1.1 200 OK\r\nX: \xff\r\nContent-Length: 2\r\n\r\nok";
    assert_eq!(asks(latin).await, Ok((200, "ok".to_owned(), String::new())));
}

#[tokio::test]
async fn chunks_are_read_as_go_reads_them() {
    for (chunks, body, error) in [
        ("2;name=value\r\nok\r\n0\r\n\r\n", "ok", ""),
        ("2 \r\nok\r\n0\r\nX-T: 1\r\n\r\n", "ok", ""),
        ("2\nok\r\n0\r\n\r\n", "", "chunked line ends with bare LF"),
        ("zz\r\nok\r\n0\r\n\r\n", "", "invalid byte in chunk length"),
        ("\r\nok\r\n0\r\n\r\n", "", "empty hex number for chunk length"),
        ("11111111111111111\r\n", "", "http chunk length too large"),
        ("2\r\nokay\r\n0\r\n\r\n", "ok", "malformed chunked encoding"),
        ("2\r\nok\r\n0\r\n", "ok", "http: unexpected EOF reading trailer"),
        ("2\r\nok\r\n0\r\nbad\r\n\r\n", "ok", "malformed MIME header: missing colon: \"bad\""),
        ("2\r\no", "o", "unexpected EOF"),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n{chunks}");
        let want = Ok((200, body.to_owned(), error.to_owned()));
        assert_eq!(asks(answer.as_bytes()).await, want, "{chunks:?}");
    }
    let both = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n\
                2\r\nok\r\n0\r\n\r\n";
    assert_eq!(asks(both.as_bytes()).await, Ok((200, "ok".to_owned(), String::new())));
    let short = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok";
    let want = Ok((200, "ok".to_owned(), "unexpected EOF".to_owned()));
    assert_eq!(asks(short.as_bytes()).await, want);
}

#[tokio::test]
async fn responses_rejected_by_go_are_rejected_with_the_same_error() {
    for (answer, error) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
            "http: message cannot contain multiple Content-Length headers; got [\"2\" \"3\"]",
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", "bad Content-Length \"+2\""),
        ("HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nok", "invalid empty Content-Length \"\""),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
            "unsupported transfer encoding: \"gzip\"",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            "too many transfer encodings: [\"chunked\" \"chunked\"]",
        ),
        ("HTTP/1.1 20 OK\r\n\r\n", "malformed HTTP status code \"20\""),
        ("HTTP/1.1 2000 OK\r\n\r\n", "malformed HTTP status code \"2000\""),
        ("HTTP/1.1\r\n\r\n", "malformed HTTP response \"HTTP/1.1\""),
        ("HTTP/11 200 OK\r\n\r\n", "malformed HTTP version \"HTTP/11\""),
        ("HTTP/1.10 200 OK\r\n\r\n", "malformed HTTP version \"HTTP/1.10\""),
        ("http/1.1 200 OK\r\n\r\n", "malformed HTTP version \"http/1.1\""),
        ("ICY 200 OK\r\n\r\n", "malformed HTTP version \"ICY\""),
        ("SSH-2.0-OpenSSH_9\r\n", "malformed HTTP response \"SSH-2.0-OpenSSH_9\""),
        ("\r\nHTTP/1.1 200 OK\r\n\r\n", "malformed HTTP response \"\""),
        ("HTTP/1.1 200 OK\r\n X: y\r\n\r\n", "malformed MIME header initial line: \" X: y\""),
        ("HTTP/1.1 200 OK\r\nX\r\n\r\n", "malformed MIME header: missing colon: \"X\""),
        ("HTTP/1.1 200 OK\r\n: y\r\n\r\n", "malformed MIME header line: \": y\""),
        ("HTTP/1.1 200 OK\r\nX\t: y\r\n\r\n", "malformed MIME header line: \"X\\t: y\""),
        ("HTTP/1.1 200 OK\r\nX: y\r\n", "unexpected EOF"),
        ("HTTP/1.1 200 OK", "unexpected EOF"),
        ("HTTP/1.1 200 OK\r\n", "unexpected EOF"),
    ] {
        let want = format!("net/http: HTTP/1.x transport connection broken: {error}");
        assert_eq!(asks(answer.as_bytes()).await, Err(want), "{answer:?}");
    }
    assert_eq!(asks(b"").await, Err("EOF".to_owned()));
    let lines = "X: y\r\n".repeat(HEADERS_MAX + 1);
    let answer = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
    let error = asks(answer.as_bytes()).await.expect_err("too many headers");
    assert!(error.ends_with("message too large"), "{error}");
    let answer = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(HEAD_BYTES_MAX));
    let (error, begin) = (asks(answer.as_bytes()[..60_000].as_ref()).await, "net/http: ");
    assert!(error.expect_err("it ends early").starts_with(begin));
}

#[test]
fn headers_are_sent_in_gos_order_and_case() {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let get = Get {
        path: "/x?q=a b".to_owned(),
        headers: vec![
            header("X-B", "2"),
            header("X-A", " 1 "),
            header("Accept", "text/x"),
            header("User-Agent", "ua"),
            header("X-B", "1"),
            header("Host", "h.example"),
            header("Content-Length", "5"),
            header("Connection", "Keep-Alive"),
        ],
        ..Get::default()
    };
    let sent = request(&get, "10.0.0.1:80").expect("headers that can be sent");
    let want = "GET /x?q=a b HTTP/1.1\r\nHost: h.example\r\nUser-Agent: ua\r\nAccept: text/x\r\n\
                Connection: Keep-Alive\r\nX-A: 1\r\nX-B: 2\r\nX-B: 1\r\nConnection: close\r\n\r\n";
    assert_eq!(String::from_utf8_lossy(&sent), want);
    let plain = request(&Get::default(), "10.0.0.1:80").expect("nothing odd");
    let want = "GET / HTTP/1.1\r\nHost: 10.0.0.1:80\r\nConnection: close\r\n\r\n";
    assert_eq!(String::from_utf8_lossy(&plain), want);
    for (name, value) in [("A B", "x"), ("", "x"), ("A", "x\r\nB: y")] {
        let get = Get { headers: vec![header(name, value)], ..Get::default() };
        assert!(request(&get, "h").is_err(), "{name} {value}");
    }
}
