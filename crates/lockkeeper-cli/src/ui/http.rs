//! Connections, and their limits.
//!
//! A client that sends its request slowly, or does not read the answer, is disconnected; one that
//! sends too much is refused. The number of connections is limited, so that clients cannot exhaust
//! our descriptors.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt::TcpUserTimeout};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::App;
use super::api;
use super::security::{self, Refusal};

/// An answer.
pub(crate) type Reply = Response<BoxBody<Bytes, Infallible>>;

/// How many clients may be connected.
const MOST_CONNECTIONS: usize = 128;
/// From the connection, or the last answer, to the complete head of a request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// From the head to the complete body.
const BODY_TIME: Duration = Duration::from_secs(10);
/// How long an answer may stay unread.
const UNREAD: Duration = Duration::from_secs(30);
const MOST_HEAD: usize = 16 * 1024;
const MOST_BODY: usize = 16 * 1024;

/// Serves forever.
pub(crate) async fn serve(listener: TcpListener, app: Arc<App>) {
    let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let slot = slots.clone().acquire_owned().await.expect("it is never closed");
        match listener.accept().await {
            Ok((stream, peer)) => {
                let app = app.clone();
                tokio::spawn(async move {
                    connection(stream, peer, app).await;
                    drop(slot);
                });
            }
            // The client is gone already, or there are no descriptors: both are transient.
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, app: Arc<App>) {
    let unread = u32::try_from(UNREAD.as_millis()).unwrap_or(u32::MAX);
    if setsockopt(&stream, TcpUserTimeout, &unread).is_err() || stream.set_nodelay(true).is_err() {
        return;
    }
    let answer = |request| {
        let app = app.clone();
        async move { Ok::<_, Infallible>(answer(request, peer, &app).await) }
    };
    // Errors here are the client's, which has disconnected or was disconnected.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(MOST_HEAD)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await;
}

async fn answer(request: Request<Incoming>, peer: SocketAddr, app: &Arc<App>) -> Reply {
    let (head, body) = request.into_parts();
    let mut reply = match app.access.admit(&head) {
        Ok(()) => api::route(&head, body, peer, app).await,
        Err(refusal) => Err(refusal.into()),
    }
    .unwrap_or_else(Problem::into_reply);
    security::harden(reply.headers_mut());
    reply
}

/// The whole body of a request.
pub(crate) async fn read(body: Incoming) -> Result<Bytes, Problem> {
    match timeout(BODY_TIME, Limited::new(body, MOST_BODY).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body must be whole and at most {MOST_BODY} bytes long"),
        )),
        Err(_) => Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "the body took too long")),
    }
}

/// An answer of this kind.
pub(crate) fn reply(kind: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()).boxed());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

pub(crate) fn json(value: &impl serde::Serialize) -> Reply {
    let text = serde_json::to_string(value).expect("what we show is JSON");
    reply("application/json", text)
}

/// Why a request is refused.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    message: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    fn into_reply(self) -> Reply {
        let mut reply = json(&serde_json::json!({"error": self.message}));
        *reply.status_mut() = self.status;
        reply
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.status, refusal.message)
    }
}
