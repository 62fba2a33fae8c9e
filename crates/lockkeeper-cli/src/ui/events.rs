//! Server-sent events: the whole table at first, then the changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

use super::App;
use super::collect::Collector;
use super::http::{Problem, Reply};

/// How many browsers may be subscribed.
const MOST_STREAMS: usize = 64;

/// How long a browser may leave messages unread.
const UNREAD: Duration = Duration::from_secs(30);

/// Subscribed browsers.
#[derive(Debug, Default)]
pub(crate) struct Listeners(AtomicUsize);

impl Listeners {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of them, until it is dropped.
struct Listener(Arc<App>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.listeners.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts a stream of events to a browser.
pub(crate) fn stream(app: &Arc<App>) -> Result<Reply, Problem> {
    if app.listeners.0.fetch_add(1, Ordering::Relaxed) >= MOST_STREAMS {
        app.listeners.0.fetch_sub(1, Ordering::Relaxed);
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{MOST_STREAMS} browsers listen already; close one"),
        ));
    }
    let listener = Listener(app.clone());
    let (sender, body) = Channel::new(2);
    tokio::spawn(async move {
        tell(sender, &listener.0.collector).await;
    });
    let mut reply = Response::new(body.boxed());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(reply)
}

/// Ends when the browser is gone or does not read.
async fn tell(mut sender: Sender<Bytes>, collector: &Collector) -> Option<()> {
    loop {
        let (everything, mut events) = collector.subscribe();
        send(&mut sender, &everything).await?;
        loop {
            match events.recv().await {
                Ok(message) => send(&mut sender, &message).await?,
                // Too far behind to catch up by changes.
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

async fn send(sender: &mut Sender<Bytes>, message: &str) -> Option<()> {
    // JSON has no line breaks, so one line of data is enough.
    let text = Bytes::from(format!("data: {message}\n\n"));
    timeout(UNREAD, sender.send_data(text)).await.ok()?.ok()
}
