//! The fence of a quorum, checked exhaustively: three servers, two acquisitions, every order of events.
//!
//! Messages are lost, or arrive at any later time; a server may drop a lock at any moment, which
//! covers any behaviour of clocks. The protocol must never grant one fence twice, nor a lower one
//! to a later request. Each of its parts is needed: without it, the search finds how two holders
//! get the same fence.

use stateright::{Checker, HasDiscoveries, Model, Property};

const SERVERS: usize = 3;
const MAJORITY: usize = 2;

/// The protocol, correct or with one part missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// As the engine does it.
    Right,
    /// The highest fence of the majority is used directly.
    NoWriteBack,
    /// A server accepts the fence from any client.
    AnyoneWritesBack,
    /// A server acknowledges even if its counter is higher.
    AlwaysAcknowledged,
    /// A server forgets its lock and its counter.
    Forgetful,
    /// The same, but its clock continues the counter.
    ForgetfulWithClock,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    servers: [Server; SERVERS],
    clients: [Client; 2],
    forgot: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Server {
    holder: Option<usize>,
    counter: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Client {
    step: Step,
    /// Whether the other one had its lock before this one asked.
    is_later: bool,
    /// One bit for every server that was asked and has not executed the request yet.
    asked: u8,
    /// The counter that each server returned; 0 is none.
    told: [u8; SERVERS],
    /// One bit for every fence that is on its way to a server.
    raising: [u8; SERVERS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Idle,
    Voting,
    Agreeing(u8),
    Holding(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Event {
    /// A client asks all servers.
    Ask(usize),
    /// The request arrives, now or much later; the answer arrives or is lost.
    Grant { client: usize, server: usize, heard: bool },
    /// A client that has a majority chooses the highest fence, or a higher one that it learned.
    Choose(usize),
    /// The fence arrives at a server.
    Raise { client: usize, server: usize, fence: u8, heard: bool },
    /// A lock runs out.
    Expire(usize),
    /// A server loses everything.
    Forget(usize),
}

struct Protocol(Variant);

impl Protocol {
    /// Sends the highest known fence to the servers that do not have it; done if a majority has.
    fn choose(&self, client: &mut Client) {
        let fence = client.told.into_iter().max().expect("there are servers");
        client.step = Step::Agreeing(fence);
        for server in 0..SERVERS {
            if client.told[server] != fence {
                client.raising[server] |= 1 << fence;
            }
        }
        self.settle(client);
    }

    fn settle(&self, client: &mut Client) {
        let Step::Agreeing(fence) = client.step else { return };
        let agreed = client.told.iter().filter(|told| **told == fence).count();
        if agreed >= MAJORITY || self.0 == Variant::NoWriteBack {
            client.step = Step::Holding(fence);
        }
    }

    /// What a server does with a fence, and what it answers; `None` is a refusal.
    fn raise(&self, server: &mut Server, client: usize, fence: u8) -> Option<u8> {
        let is_ours = server.holder == Some(client) || self.0 == Variant::AnyoneWritesBack;
        if !is_ours {
            return None;
        }
        if server.counter > fence && self.0 != Variant::AlwaysAcknowledged {
            return Some(server.counter);
        }
        server.counter = server.counter.max(fence);
        Some(fence)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let idle = Client {
            step: Step::Idle,
            is_later: false,
            asked: 0,
            told: [0; SERVERS],
            raising: [0; SERVERS],
        };
        let mut states = Vec::new();
        // Counters that differ, as after lost messages. Servers are interchangeable: sorted order
        // suffices.
        let skews: &[[u8; SERVERS]] = match self.0 {
            Variant::ForgetfulWithClock => &[[0, 0, 0]],
            _ => &[[0, 0, 0], [0, 0, 1], [0, 1, 1], [0, 1, 2]],
        };
        for counters in skews {
            let servers = counters.map(|counter| Server { holder: None, counter });
            states.push(State { servers, clients: [idle; 2], forgot: false });
        }
        states
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        let is_holding = |client: &Client| matches!(client.step, Step::Holding(_));
        if state.clients.iter().all(is_holding) {
            return;
        }
        for (client, now) in state.clients.iter().enumerate() {
            // The clients are interchangeable: the first one asks first.
            if now.step == Step::Idle && (client == 0 || state.clients[0].step != Step::Idle) {
                events.push(Event::Ask(client));
            }
            let known = now.told.iter().filter(|told| **told > 0).count();
            let highest = now.told.into_iter().max().expect("there are servers");
            let may_choose = match now.step {
                Step::Voting => known >= MAJORITY,
                Step::Agreeing(fence) => highest > fence,
                _ => false,
            };
            if may_choose {
                events.push(Event::Choose(client));
            }
            for server in 0..SERVERS {
                // A request that arrives while another client holds does nothing, as if it came
                // later.
                if now.asked & (1 << server) != 0 && state.servers[server].holder.is_none() {
                    events.push(Event::Grant { client, server, heard: false });
                    if now.step == Step::Voting {
                        events.push(Event::Grant { client, server, heard: true });
                    }
                }
                for fence in (0..8).filter(|fence| now.raising[server] & (1 << fence) != 0) {
                    events.push(Event::Raise { client, server, fence, heard: false });
                    if now.step == Step::Agreeing(fence) {
                        events.push(Event::Raise { client, server, fence, heard: true });
                    }
                }
            }
        }
        for server in 0..SERVERS {
            if state.servers[server].holder.is_some() {
                events.push(Event::Expire(server));
            }
            let may_forget = match self.0 {
                Variant::Forgetful => true,
                // They start alike, so any one of them will do.
                Variant::ForgetfulWithClock => server == 0,
                _ => false,
            };
            if may_forget && !state.forgot {
                events.push(Event::Forget(server));
            }
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Ask(client) => {
                let other = &state.clients[1 - client];
                let asking = &mut next.clients[client];
                asking.is_later = matches!(other.step, Step::Holding(_));
                asking.step = Step::Voting;
                asking.asked = (1 << SERVERS) - 1;
            }
            Event::Grant { client, server, heard } => {
                let (there, asking) = (&mut next.servers[server], &mut next.clients[client]);
                there.holder = Some(client);
                there.counter += 1;
                asking.asked &= !(1 << server);
                if heard {
                    asking.told[server] = there.counter;
                }
            }
            Event::Choose(client) => self.choose(&mut next.clients[client]),
            Event::Raise { client, server, fence, heard } => {
                let answer = self.raise(&mut next.servers[server], client, fence);
                let asking = &mut next.clients[client];
                asking.raising[server] &= !(1 << fence);
                if heard {
                    asking.told[server] = answer.unwrap_or(0);
                    self.settle(asking);
                }
            }
            Event::Expire(server) => next.servers[server].holder = None,
            Event::Forget(server) => {
                // A clock that does not go back is past every fence that was granted before.
                let clock = next.servers.iter().map(|server| server.counter).max();
                let is_carried_on = self.0 == Variant::ForgetfulWithClock;
                let counter = clock.filter(|_| is_carried_on).unwrap_or(0);
                next.servers[server] = Server { holder: None, counter };
                next.forgot = true;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn fences(state: &State) -> Option<[u8; 2]> {
            match state.clients.map(|client| client.step) {
                [Step::Holding(first), Step::Holding(second)] => Some([first, second]),
                _ => None,
            }
        }
        vec![
            Property::always("no fence is given twice", |_, state: &State| {
                fences(state).is_none_or(|[first, second]| first != second)
            }),
            Property::always("whoever asks later gets a higher one", |_, state: &State| {
                fences(state).is_none_or(|[first, second]| {
                    (!state.clients[1].is_later || first < second)
                        && (!state.clients[0].is_later || second < first)
                })
            }),
            Property::sometimes("both get one", |_, state: &State| fences(state).is_some()),
            Property::sometimes("both get one, the first one last", |_, state: &State| {
                fences(state).is_some_and(|[first, second]| first > second)
            }),
        ]
    }
}

fn assert_sound(variant: Variant) {
    let checker = Protocol(variant).checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{variant:?}: {} states, all of them", checker.unique_state_count());
    assert!(checker.is_done() && checker.unique_state_count() > 100_000, "that was not all");
}

fn assert_unsound(variant: Variant) {
    let checker = Protocol(variant).checker();
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let broken = ["no fence is given twice", "whoever asks later gets a higher one"];
    let found = broken.iter().find_map(|property| Some((property, checker.discovery(property)?)));
    let Some((property, path)) = found else { panic!("{variant:?} was not found out") };
    println!("{variant:?}: not so that {property}, after {:?}", path.into_actions());
}

#[test]
fn the_protocol_grants_every_fence_once_and_in_order() {
    assert_sound(Variant::Right);
}

#[test]
fn a_server_that_forgets_does_no_harm_while_its_clock_goes_on() {
    assert_sound(Variant::ForgetfulWithClock);
}

#[test]
fn without_writing_back_a_fence_is_granted_twice() {
    assert_unsound(Variant::NoWriteBack);
}

#[test]
fn when_anyone_may_write_back_a_fence_is_granted_twice() {
    assert_unsound(Variant::AnyoneWritesBack);
}

#[test]
fn when_every_write_back_is_acknowledged_a_fence_is_granted_twice() {
    assert_unsound(Variant::AlwaysAcknowledged);
}

#[test]
fn a_server_that_forgets_a_plain_counter_grants_a_fence_twice() {
    assert_unsound(Variant::Forgetful);
}
