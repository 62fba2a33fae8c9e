//! Polling by hand, to drop futures at every possible point.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Polls a future once.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

/// Polls a future at most this many times, whenever it is woken, and drops it right after the last.
pub async fn poll_times<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut left = times;
    let mut future = Box::pin(future);
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
