//! The fence of readers of a quorum, checked exhaustively: three servers, a writer and two readers.
//!
//! Messages are lost, or arrive at any later time; the writer's lock may vanish anywhere at any
//! moment. Only readers that hold stay until they leave: readers that do not are the weakness of
//! every lease. Readers that hold together must carry one fence, not lower than that of a writer
//! before them and lower than that of a writer after them. Each part of the rule is needed: without
//! it, the search finds how two readers get different fences.
//!
//! Two readers that stay are searched separately from one reader that leaves or gives up at any
//! moment, because a reader that no longer holds does not share its fence.

use stateright::{Checker, HasDiscoveries, Model, Property};

const SERVERS: usize = 3;
const MAJORITY: usize = 2;

/// No answer.
const UNKNOWN: u8 = u8::MAX;

/// How readers find their fence, correct or with one part missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// As the engine does it.
    Right,
    /// The highest counter of the majority is used directly.
    Highest,
    /// The same, once a majority was asked to raise its counter to it, even under other readers.
    RaisedBesideOthers,
    /// A reader takes what a majority has, although it requested more and may still get it.
    ForgetsWhatItAsked,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    servers: [Server; SERVERS],
    writer: Client,
    /// The highest fence of the readers that held when the writer asked.
    above: u8,
    readers: [Client; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Server {
    /// 0 where there is no counter yet.
    counter: u8,
    has_writer: bool,
    /// One bit for every reader.
    readers: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Client {
    step: Step,
    /// The fence of the writer that held when this one asked.
    after: u8,
    /// One bit for every server that was asked and has not executed the request yet.
    asked: u8,
    /// The counter that each server returned.
    told: [u8; SERVERS],
    /// One bit for every fence that is on its way to a server.
    raising: [u8; SERVERS],
    /// One bit for every server that was asked to raise its counter and has not answered.
    open: u8,
    /// The highest fence that was requested from a server before, without an answer.
    floor: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Idle,
    Voting,
    Agreeing(u8),
    Holding(u8),
    /// It left or gave up; what it holds vanishes, what it sent may still arrive.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Who {
    Writer,
    Reader(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Event {
    Ask(Who),
    /// The request arrives, now or much later; the answer arrives or is lost.
    Grant {
        who: Who,
        server: usize,
        heard: bool,
    },
    /// A claim that a majority granted asks the servers to raise their counters.
    Choose(Who),
    /// That arrives.
    Raise {
        who: Who,
        server: usize,
        fence: u8,
        heard: bool,
    },
    /// A reader has its fence from a majority.
    Read {
        reader: usize,
        fence: u8,
    },
    /// A reader leaves, or gives up.
    Leave(usize),
    /// A lock is released at a server, or expires.
    Vanish {
        who: Who,
        server: usize,
    },
}

const EVERYONE: [Who; 3] = [Who::Writer, Who::Reader(0), Who::Reader(1)];

impl State {
    fn client(&self, who: Who) -> &Client {
        match who {
            Who::Writer => &self.writer,
            Who::Reader(n) => &self.readers[n],
        }
    }

    fn client_mut(&mut self, who: Who) -> &mut Client {
        match who {
            Who::Writer => &mut self.writer,
            Who::Reader(n) => &mut self.readers[n],
        }
    }
}

impl Server {
    fn is_held_by(&self, who: Who) -> bool {
        match who {
            Who::Writer => self.has_writer,
            Who::Reader(n) => self.readers & (1 << n) != 0,
        }
    }

    fn is_free_for(&self, who: Who) -> bool {
        !self.has_writer && (self.readers == 0 || who != Who::Writer)
    }
}

impl Client {
    /// How many returned this counter.
    fn count(&self, fence: u8) -> usize {
        self.told.iter().filter(|told| **told == fence).count()
    }

    fn known(&self) -> usize {
        self.told.iter().filter(|told| **told != UNKNOWN).count()
    }

    /// The highest counter returned; the clock if there was no counter.
    fn highest(&self) -> u8 {
        let told = self.told.iter().enumerate().filter(|(_, told)| **told != UNKNOWN);
        told.map(|(at, told)| if *told == 0 { clock(at) } else { *told }).max().unwrap_or(0)
    }
}

/// The first counter of a server without one.
fn clock(server: usize) -> u8 {
    3 + server as u8 % 2
}

struct Protocol {
    variant: Variant,
    readers: usize,
    skews: &'static [[u8; SERVERS]],
}

/// Counters that differ or are missing, as after lost messages and first uses.
const SKEWS: [[u8; SERVERS]; 6] =
    [[1, 1, 1], [1, 1, 2], [1, 2, 2], [0, 1, 1], [0, 0, 1], [0, 0, 0]];

impl Protocol {
    /// The fence that a reader would accept now.
    fn readable(&self, reader: &Client) -> Option<u8> {
        let asked_for = match reader.step {
            Step::Voting => 0,
            Step::Agreeing(fence) => fence,
            _ => return None,
        };
        if self.variant == Variant::Highest {
            return (reader.known() >= MAJORITY).then(|| reader.highest());
        }
        let agreed = reader.told.into_iter().filter(|told| ![0, UNKNOWN].contains(told));
        let agreed = agreed.into_iter().find(|told| reader.count(*told) >= MAJORITY)?;
        let is_settled = agreed >= if reader.open == 0 { reader.floor } else { asked_for };
        (is_settled || self.variant == Variant::ForgetsWhatItAsked).then_some(agreed)
    }

    /// What a server does with a fence, and what it answers.
    fn raise(&self, server: &mut Server, who: Who, fence: u8) -> u8 {
        if !server.is_held_by(who) {
            return UNKNOWN;
        }
        let is_read_by_others = match who {
            Who::Writer => false,
            Who::Reader(n) => server.readers & !(1 << n) != 0,
        };
        let stays = is_read_by_others && self.variant != Variant::RaisedBesideOthers;
        if server.counter > fence || (stays && server.counter > 0) {
            return server.counter;
        }
        server.counter = fence;
        fence
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let idle = Client {
            step: Step::Idle,
            after: 0,
            asked: 0,
            told: [UNKNOWN; SERVERS],
            raising: [0; SERVERS],
            open: 0,
            floor: 0,
        };
        let start = |counters: &[u8; SERVERS]| State {
            servers: counters.map(|counter| Server { counter, has_writer: false, readers: 0 }),
            writer: idle,
            above: 0,
            readers: [idle; 2],
        };
        self.skews.iter().map(start).collect()
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        let is_holding = |client: &Client| matches!(client.step, Step::Holding(_));
        if state.readers.iter().all(is_holding) {
            return;
        }
        for who in &EVERYONE[..=self.readers] {
            let who = *who;
            let now = state.client(who);
            // The readers are interchangeable: the first one asks first.
            let is_next = who != Who::Reader(1) || state.readers[0].step != Step::Idle;
            if now.step == Step::Idle && is_next {
                events.push(Event::Ask(who));
            }
            let may_choose = match now.step {
                Step::Voting => now.known() >= MAJORITY,
                Step::Agreeing(fence) => now.highest() > fence,
                _ => false,
            };
            let mut is_content = false;
            if let Who::Reader(reader) = who {
                if let Some(fence) = self.readable(now) {
                    events.push(Event::Read { reader, fence });
                    is_content = true;
                }
                if self.readers == 1 && !matches!(now.step, Step::Idle | Step::Over) {
                    events.push(Event::Leave(reader));
                }
            }
            if may_choose && !is_content {
                events.push(Event::Choose(who));
            }
            for (server, there) in state.servers.iter().enumerate() {
                if now.asked & (1 << server) != 0 && there.is_free_for(who) {
                    events.push(Event::Grant { who, server, heard: false });
                    if now.step == Step::Voting {
                        events.push(Event::Grant { who, server, heard: true });
                    }
                }
                for fence in (0..8).filter(|fence| now.raising[server] & (1 << fence) != 0) {
                    // A request that changes nothing and is not answered might as well be lost.
                    if there.is_held_by(who) {
                        events.push(Event::Raise { who, server, fence, heard: false });
                    }
                    if now.step == Step::Agreeing(fence) {
                        events.push(Event::Raise { who, server, fence, heard: true });
                    }
                }
                let may_vanish = who == Who::Writer || now.step == Step::Over;
                if may_vanish && there.is_held_by(who) {
                    events.push(Event::Vanish { who, server });
                }
            }
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Ask(who) => {
                let fence_of = |client: &Client| match client.step {
                    Step::Holding(fence) => fence,
                    _ => 0,
                };
                match who {
                    Who::Writer => {
                        next.above = state.readers.iter().map(fence_of).max().unwrap_or(0);
                    }
                    Who::Reader(n) => next.readers[n].after = fence_of(&state.writer),
                }
                let asking = next.client_mut(who);
                asking.step = Step::Voting;
                asking.asked = (1 << SERVERS) - 1;
            }
            Event::Grant { who, server, heard } => {
                let there = &mut next.servers[server];
                match who {
                    Who::Writer => {
                        there.has_writer = true;
                        there.counter = match there.counter {
                            0 => clock(server),
                            counter => counter + 1,
                        };
                    }
                    Who::Reader(n) => there.readers |= 1 << n,
                }
                let counter = there.counter;
                let asking = next.client_mut(who);
                asking.asked &= !(1 << server);
                if heard {
                    asking.told[server] = counter;
                }
            }
            Event::Choose(who) => {
                let choosing = next.client_mut(who);
                if let (Step::Agreeing(before), true) = (choosing.step, choosing.open != 0) {
                    choosing.floor = before;
                }
                let fence = choosing.highest();
                choosing.open = 0;
                choosing.step = Step::Agreeing(fence);
                for server in 0..SERVERS {
                    if choosing.told[server] != fence {
                        choosing.raising[server] |= 1 << fence;
                        choosing.open |= 1 << server;
                    }
                }
            }
            Event::Raise { who, server, fence, heard } => {
                let answer = self.raise(&mut next.servers[server], who, fence);
                let asking = next.client_mut(who);
                asking.raising[server] &= !(1 << fence);
                if heard {
                    asking.told[server] = answer;
                    asking.open &= !(1 << server);
                }
            }
            Event::Read { reader, fence } => next.readers[reader].step = Step::Holding(fence),
            Event::Leave(reader) => next.readers[reader].step = Step::Over,
            Event::Vanish { who: Who::Writer, server } => next.servers[server].has_writer = false,
            Event::Vanish { who: Who::Reader(n), server } => {
                next.servers[server].readers &= !(1 << n);
            }
        }
        if let Step::Agreeing(fence) = next.writer.step
            && next.writer.count(fence) >= MAJORITY
        {
            next.writer.step = Step::Holding(fence);
        }
        // What is never read again need not distinguish states.
        for who in EVERYONE {
            let client = next.client_mut(who);
            if matches!(client.step, Step::Holding(_) | Step::Over) {
                (client.told, client.open, client.floor) = ([UNKNOWN; SERVERS], 0, 0);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn together(state: &State) -> Option<[u8; 2]> {
            match state.readers.map(|reader| reader.step) {
                [Step::Holding(first), Step::Holding(second)] => Some([first, second]),
                _ => None,
            }
        }
        fn is_in(client: &Client) -> bool {
            matches!(client.step, Step::Holding(_))
        }
        let mut properties = vec![
            Property::always(TOGETHER, |_, state: &State| {
                together(state).is_none_or(|[first, second]| first == second)
            }),
            Property::always(AFTER, |_, state: &State| {
                state.readers.iter().all(|reader| match reader.step {
                    Step::Holding(fence) => fence >= reader.after,
                    _ => true,
                })
            }),
            Property::always(ABOVE, |_, state: &State| match state.writer.step {
                Step::Holding(fence) => fence > state.above,
                _ => true,
            }),
        ];
        // What has to happen somewhere, or nothing was searched.
        properties.extend(match self.readers {
            1 => [
                Property::sometimes("a reader comes after a writer", |_, state: &State| {
                    state.readers[0].after > 0 && is_in(&state.readers[0])
                }),
                Property::sometimes("a writer comes after a reader", |_, state: &State| {
                    state.above > 0 && is_in(&state.writer)
                }),
            ],
            _ => [
                Property::sometimes("two read together after a writer", |_, state: &State| {
                    state.readers.iter().all(|reader| reader.after > 0 && is_in(reader))
                }),
                Property::sometimes("two read together, one server apart", |_, state: &State| {
                    together(state).is_some_and(|[fence, _]| {
                        state.servers.iter().any(|server| server.counter != fence)
                    })
                }),
            ],
        });
        properties
    }
}

const TOGETHER: &str = "those who read together have one fence";
const AFTER: &str = "a reader's fence is not below that of a writer before it";
const ABOVE: &str = "a writer's fence is above that of readers before it";

fn assert_sound(readers: usize, skews: &'static [[u8; SERVERS]]) {
    let protocol = Protocol { variant: Variant::Right, readers, skews };
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{} states, all of them", checker.unique_state_count());
    assert!(checker.is_done() && checker.unique_state_count() > 10_000, "that was not all");
}

#[test]
fn readers_that_hold_together_carry_one_fence() {
    // The others pass as well, and take as long again.
    assert_sound(2, &[[1, 1, 2], [0, 0, 1]]);
}

#[test]
fn a_readers_fence_is_between_those_of_the_writers() {
    assert_sound(1, &SKEWS);
}

fn assert_unsound(variant: Variant) {
    let protocol = Protocol { variant, readers: 2, skews: &[[1, 1, 2]] };
    let checker = protocol.checker();
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let Some(path) = checker.discovery(TOGETHER) else { panic!("{variant:?} was not found out") };
    println!("{variant:?}: not so that {TOGETHER}, after {:?}", path.into_actions());
}

#[test]
fn with_the_highest_counter_of_a_majority_readers_carry_different_fences() {
    assert_unsound(Variant::Highest);
}

#[test]
fn when_a_counter_changes_under_other_readers_they_carry_different_fences() {
    assert_unsound(Variant::RaisedBesideOthers);
}

#[test]
fn a_reader_that_forgets_what_it_requested_may_carry_another_fence_than_the_rest() {
    assert_unsound(Variant::ForgetsWhatItAsked);
}
