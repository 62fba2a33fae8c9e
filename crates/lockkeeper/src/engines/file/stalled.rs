//! Claims whose turn it is but that do not take it.
//!
//! A stopped process is not dead, so the kernel keeps its place in the queue; but nobody has to
//! wait for it forever. A claim that sees the one ahead miss its turn for two seconds overtakes it.
//! The stalled claim keeps its place, and is ahead again when it resumes.

use std::time::Duration;

use tokio::time::Instant;

use super::record::{Record, State};
use crate::core::admission::{self, Queued, Turn};
use crate::engine::Request;

/// How long a claim may miss its turn.
const STALL: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Stalled {
    /// The numbers of stalled claims, and since when we have seen that.
    seen: Vec<(u64, Instant)>,
    /// When the claim directly ahead of us is overtaken, if it is stalled.
    pub(super) pass_at: Option<Instant>,
}

impl Stalled {
    /// The turn of the claim with this number among the others, in their order.
    pub(super) fn turn(&mut self, request: &Request, number: u64, queue: &[Record]) -> Turn {
        if queue.is_empty() {
            return Turn::In;
        }
        let identity = request.identity();
        let me = Queued { owner: identity.as_str(), mode: request.mode, granted: false };
        let now = Instant::now();
        self.pass_at = None;
        let mut passed = Vec::new();
        loop {
            let awake = || queue.iter().filter(|other| !passed.contains(&other.number));
            let mut places: Vec<Queued<&str>> = awake()
                .map(|other| Queued {
                    owner: other.identity(),
                    mode: other.mode,
                    granted: other.state == State::Granted,
                })
                .collect();
            let at = awake().filter(|other| other.number < number).count();
            places.insert(at, me);
            let Turn::Behind(ahead) = admission::turn(&places, at) else {
                return admission::turn(&places, at);
            };
            let first = (0..at).find(|j| !places[*j].granted);
            if let Some(first) = first.filter(|first| admission::turn(&places, *first) == Turn::In)
            {
                let first_stalled = awake().nth(first).expect("it is in the queue").number;
                let since = self.since(first_stalled, now);
                if now - since >= STALL {
                    passed.push(first_stalled);
                    continue;
                }
                self.pass_at = Some(since + STALL);
            }
            let ahead = awake().nth(if ahead > at { ahead - 1 } else { ahead });
            let ahead = ahead.expect("it is in the queue").number;
            let there = queue.iter().position(|other| other.number == ahead);
            return Turn::Behind(there.expect("it is in the queue"));
        }
    }

    fn since(&mut self, first_stalled: u64, now: Instant) -> Instant {
        if let Some((_, since)) = self.seen.iter().find(|(seen, _)| *seen == first_stalled) {
            return *since;
        }
        self.seen.push((first_stalled, now));
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Mode;
    use crate::key::Key;
    use crate::owner::Token;

    fn request() -> Request {
        let (key, ttl) = (Key::new("k").unwrap(), Duration::from_secs(30));
        Request::new(key, Token::fresh(), Mode::Mutex, ttl)
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_claims_are_overtaken_one_after_the_other() {
        let records: Vec<Record> = (1..=2).map(|number| Record::new(&request(), number)).collect();
        let queue = &records;
        let me = request();
        let mut stalled = Stalled::default();
        for _ in queue {
            assert_eq!(stalled.turn(&me, 3, queue), Turn::Behind(1));
            assert_eq!(stalled.pass_at, Some(Instant::now() + STALL));
            tokio::time::advance(STALL).await;
        }
        assert_eq!(stalled.turn(&me, 3, queue), Turn::In);
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_and_its_waiters_are_never_overtaken() {
        let mut records: Vec<Record> =
            (1..=2).map(|number| Record::new(&request(), number)).collect();
        records[0].state = State::Granted;
        let mut stalled = Stalled::default();
        for _ in 0..3 {
            assert_eq!(stalled.turn(&request(), 3, &records), Turn::Behind(1));
            assert_eq!(stalled.pass_at, None);
            tokio::time::advance(STALL).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_claim_that_resumes_waits_for_the_one_that_overtook_it() {
        let mut passer = Record::new(&request(), 2);
        passer.state = State::Granted;
        assert_eq!(Stalled::default().turn(&request(), 1, &[passer]), Turn::Behind(0));
    }
}
