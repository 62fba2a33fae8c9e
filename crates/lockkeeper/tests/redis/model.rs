//! The hand-over of a mutex, checked exhaustively: two waiters, every order of events, a clock of a few ticks.
//!
//! Requests and messages are lost or arrive at any later time, and a lease ends by the server's clock. At no
//! time may both waiters believe that they hold the lock. Each part of the rule by which a waiter believes a
//! message is needed: without it, the search finds two holders.

use stateright::{Checker, HasDiscoveries, Model, Property};

/// How long a lock is handed over for, and every other lease.
const LEASE: u8 = 3;
const END: u8 = 7;
const MOST_BEATS: u8 = 2;

/// The rule of a waiter, correct or with one part missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// As the engine does it.
    Right,
    /// Validity counts from the message.
    FromTheMessage,
    /// A message may be about an earlier place in the queue.
    AnyBeat,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    /// Who has the lock at the server, and until when.
    holder: Option<(usize, u8)>,
    /// Waiters in the queue, with the number of their last attempt.
    queue: Vec<(usize, u8)>,
    waiters: [Waiter; 2],
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Waiter {
    beats: u8,
    /// An attempt on its way: its number, and when it was sent.
    asked: Option<(u8, u8)>,
    /// The last attempt that was answered with a place in the queue.
    answered: Option<(u8, u8)>,
    /// Messages on their way, by the attempt that they name.
    messages: Vec<u8>,
    /// Until when it believes that it holds the lock.
    holds_until: u8,
}

/// The first holder, who is no waiter.
const FIRST: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Event {
    Tick,
    Ask(usize),
    /// An attempt arrives at the server; its answer arrives or is lost.
    Arrive {
        waiter: usize,
        heard: bool,
    },
    /// A message arrives.
    Deliver {
        waiter: usize,
        message: usize,
    },
    /// Whoever has the lock releases it.
    Release(usize),
}

struct Queue(Variant);

impl State {
    fn believes(&self, waiter: usize) -> bool {
        self.waiters[waiter].holds_until > self.now
    }

    /// The script of a release.
    fn hand_over(&mut self) {
        self.holder = None;
        if !self.queue.is_empty() {
            let (waiter, beat) = self.queue.remove(0);
            self.holder = Some((waiter, self.now + LEASE));
            self.waiters[waiter].messages.push(beat);
        }
    }

    /// The script of an attempt. True if the lock is the waiter's.
    fn attempt(&mut self, waiter: usize, beat: u8) -> bool {
        let is_turn = self.queue.first().is_none_or(|(first, _)| *first == waiter);
        let ours = match self.holder {
            Some((holder, _)) => holder == waiter,
            None => is_turn,
        };
        if ours {
            self.queue.retain(|(other, _)| *other != waiter);
            self.holder = Some((waiter, self.now + LEASE));
        } else if let Some(place) = self.queue.iter_mut().find(|(other, _)| *other == waiter) {
            place.1 = beat;
        } else {
            self.queue.push((waiter, beat));
        }
        ours
    }
}

impl Model for Queue {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let (queue, waiters) = (Vec::new(), [Waiter::default(), Waiter::default()]);
        vec![State { now: 0, holder: Some((FIRST, END)), queue, waiters }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.now < END {
            events.push(Event::Tick);
        }
        if state.holder.is_some_and(|(holder, _)| holder == FIRST) {
            events.push(Event::Release(FIRST));
        }
        for (n, waiter) in state.waiters.iter().enumerate() {
            if state.believes(n) {
                events.push(Event::Release(n));
            } else if waiter.asked.is_none() && waiter.beats < MOST_BEATS {
                events.push(Event::Ask(n));
            }
            if waiter.asked.is_some() {
                events.push(Event::Arrive { waiter: n, heard: false });
                events.push(Event::Arrive { waiter: n, heard: true });
            }
            for message in 0..waiter.messages.len() {
                events.push(Event::Deliver { waiter: n, message });
            }
        }
    }

    fn next_state(&self, last: &State, event: Event) -> Option<State> {
        let mut state = last.clone();
        let now = state.now;
        match event {
            Event::Tick => {
                state.now += 1;
                state.holder.take_if(|(_, until)| *until <= now + 1);
            }
            Event::Ask(n) => {
                let waiter = &mut state.waiters[n];
                waiter.beats += 1;
                waiter.asked = Some((waiter.beats, now));
            }
            Event::Arrive { waiter: n, heard } => {
                let (beat, sent) = state.waiters[n].asked.take()?;
                let granted = state.attempt(n, beat);
                let waiter = &mut state.waiters[n];
                match (heard, granted) {
                    (false, _) => {}
                    (true, true) => waiter.holds_until = sent + LEASE,
                    (true, false) => waiter.answered = Some((beat, sent)),
                }
            }
            Event::Deliver { waiter: n, message } => {
                let waiter = &mut state.waiters[n];
                let named = waiter.messages.remove(message);
                let from = match (self.0, waiter.answered) {
                    (Variant::FromTheMessage, _) => Some(now),
                    (Variant::AnyBeat, Some((_, sent))) => Some(sent),
                    (Variant::Right, Some((beat, sent))) if beat == named => Some(sent),
                    _ => None,
                };
                waiter.holds_until = from.map_or(waiter.holds_until, |from| from + LEASE);
            }
            Event::Release(n) => {
                if let Some(waiter) = state.waiters.get_mut(n) {
                    waiter.holds_until = 0;
                    // What is released is not believed again.
                    waiter.answered = None;
                }
                if state.holder.is_some_and(|(holder, _)| holder == n) {
                    state.hand_over();
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder", |_, state: &State| {
                !(state.believes(0) && state.believes(1))
            }),
            Property::sometimes("a message is believed", |_, state: &State| {
                state.waiters.iter().any(|waiter| waiter.answered.is_some())
                    && (state.believes(0) || state.believes(1))
            }),
        ]
    }
}

fn finds_two_holders(variant: Variant) -> bool {
    let checker = Queue(variant).checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!("{variant:?}: {} states", checker.unique_state_count());
    if variant == Variant::Right {
        checker.assert_properties();
    }
    checker.discovery("one holder").is_some()
}

#[test]
fn a_hand_over_makes_no_two_holders() {
    assert!(!finds_two_holders(Variant::Right));
}

#[test]
fn a_waiter_that_counts_from_the_message_holds_too_long() {
    assert!(finds_two_holders(Variant::FromTheMessage));
}

#[test]
fn a_late_message_must_not_count_for_a_later_place() {
    assert!(finds_two_holders(Variant::AnyBeat));
}
