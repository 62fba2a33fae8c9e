//! One request to many servers at once, and their answers in the order in which they arrive.
//!
//! Easy to get wrong: every request has to be on the wire after the first poll, because a release
//! precedes the next acquire only by being sent first. So the futures are polled here, in the
//! caller's own task; only those that are no longer awaited move to their own task.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A request to one server.
pub(super) type NodeCall<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A request that is sent when it is polled.
pub(super) fn question<T>(asked: impl Future<Output = T> + Send + 'static) -> NodeCall<T> {
    Box::pin(asked)
}

/// Requests in progress.
pub(super) struct FanOut<T> {
    asked: Vec<(usize, NodeCall<T>)>,
    answers: VecDeque<(usize, T)>,
}

impl<T: Send + 'static> FanOut<T> {
    /// Requests, each with the number of its server.
    pub(super) fn new(asked: Vec<(usize, NodeCall<T>)>) -> Self {
        let answers = VecDeque::with_capacity(asked.len());
        Self { asked, answers }
    }

    /// The next answer; `None` when all have arrived.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| {
            self.poll(cx);
            match self.answers.pop_front() {
                Some(answer) => Poll::Ready(Some(answer)),
                None if self.asked.is_empty() => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Lets the unanswered requests run to completion in the background.
    pub(super) fn leave(mut self) {
        if !self.asked.is_empty() {
            tokio::spawn(async move { while self.next().await.is_some() {} });
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        let answers = &mut self.answers;
        self.asked.retain_mut(|(server, question)| match question.as_mut().poll(cx) {
            Poll::Ready(answer) => {
                answers.push_back((*server, answer));
                false
            }
            Poll::Pending => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn every_request_is_sent_before_the_first_answer_is_read() {
        let (sender, receiver) = oneshot::channel();
        let second = Box::pin(async move {
            let _ = sender.send(());
            pending().await
        });
        let mut calls: FanOut<()> = FanOut::new(vec![(0, Box::pin(ready(()))), (1, second)]);
        assert_eq!(calls.next().await, Some((0, ())));
        receiver.await.expect("the second request was sent as well");
    }

    #[tokio::test]
    async fn an_abandoned_call_runs_to_completion() {
        let (begin, begun) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let question = Box::pin(async move {
            begun.await.unwrap();
            end.send(()).unwrap();
        });
        let calls: FanOut<()> = FanOut::new(vec![(0, question)]);
        calls.leave();
        begin.send(()).unwrap();
        ended.await.expect("it ran to completion");
    }
}
