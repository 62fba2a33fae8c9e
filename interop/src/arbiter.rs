//! Observes every critical section of every process, and reports violations.
//!
//! It also is what the locks protect: to enter is to read, and to leave is to write on top of that. It
//! counts the updates that were lost by this, and what would have been lost if it had refused fences
//! that are lower than one it has seen.
//!
//! A driver sends `enter SIDE MODE FENCE NAME` when it has a lock and `leave` before it releases
//! it, and continues only when that was acknowledged. So two that are inside together here really
//! were, whatever the network and the scheduler did in between. A driver that continues after a
//! failure sends `trouble SIDE NAME lost|twice|failed WHY…`: its lock was gone at its release, or
//! still there after it, or something else failed.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// How many permits a semaphore of these tests has. Every driver knows it.
pub(crate) const PERMITS: usize = 3;

/// Records which drivers are inside.
#[derive(Debug, Clone)]
pub(crate) struct Arbiter {
    port: u16,
    rooms: Arc<Mutex<HashMap<String, Room>>>,
}

/// How long a visit takes. The arbiter decides it, so that all languages behave alike.
type Stay = dyn Fn() -> Duration + Send + Sync;

/// The record of one name.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    /// Sections of ours and of theirs.
    pub(crate) ours: usize,
    pub(crate) theirs: usize,
    /// All violations.
    pub(crate) wrongs: Vec<Wrong>,
    /// The failures of drivers that continue after them.
    pub(crate) troubles: Vec<Trouble>,
    /// The time from each leave to an enter of the other side.
    pub(crate) hand_offs: Vec<Duration>,
    /// How many had a fence.
    pub(crate) fenced: usize,
    /// How many updates were written, and how many of these were overwritten by one that did not
    /// know them.
    pub(crate) written: u64,
    pub(crate) lost: u64,
    /// How many updates their fence would have stopped, and how many would have been lost all the
    /// same.
    pub(crate) refused: u64,
    pub(crate) lost_fenced: u64,
}

impl Tally {
    /// How often a client was let in beside another one.
    pub(crate) fn overlaps(&self) -> usize {
        self.wrongs.iter().filter(|wrong| !wrong.sides.is_empty()).count()
    }
}

/// A violation.
#[derive(Debug, Clone)]
pub(crate) struct Wrong {
    pub(crate) at: Instant,
    /// Which sides overlapped, the newcomer first; empty if it is about fences.
    pub(crate) sides: Vec<Side>,
    pub(crate) text: String,
}

/// A call that failed.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    pub(crate) at: Instant,
    pub(crate) side: Side,
    /// `lost`, `twice` or `failed`.
    pub(crate) what: String,
    pub(crate) text: String,
}

#[derive(Debug, Default)]
struct Room {
    inside: Vec<Visit>,
    /// When each guest last entered.
    entered: HashMap<usize, (Side, Instant)>,
    left: Option<(Side, Instant)>,
    fence: u64,
    /// The number of the last update, and of the last one that a fence did not stop.
    values: [u64; 2],
    tally: Tally,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    Theirs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    Permit,
}

#[derive(Debug, Clone)]
struct Visit {
    /// Which connection it came over.
    guest: usize,
    side: Side,
    mode: Mode,
    fence: u64,
    /// The values that it found.
    saw: [u64; 2],
}

impl Arbiter {
    /// Starts to listen on a port of this machine.
    pub(crate) fn start() -> Self {
        // Long enough for another driver to enter, if that is possible.
        Self::with(|| Duration::from_micros(fastrand::u64(0..400)))
    }

    /// An arbiter whose visits take most of the time, and sometimes last: two servers that both
    /// grant a lock are soon noticed, and so is a lock that was forgotten while it was held.
    pub(crate) fn patient() -> Self {
        Self::with(|| {
            let long = fastrand::u8(..64) == 0;
            Duration::from_millis(if long { 2500 } else { fastrand::u64(0..20) })
        })
    }

    /// An arbiter whose visits are long enough for a process to be stopped in them.
    pub(crate) fn slow() -> Self {
        Self::with(|| Duration::from_millis(fastrand::u64(0..100)))
    }

    /// An arbiter whose visits are short, except for the next one after the flag was set: that one
    /// lasts this long, and clears the flag when it has begun.
    pub(crate) fn arranged(long: Duration) -> (Self, Arc<AtomicBool>) {
        let next = Arc::new(AtomicBool::new(false));
        let armed = next.clone();
        let arbiter = Self::with(move || match armed.swap(false, Ordering::SeqCst) {
            true => long,
            false => Duration::from_millis(fastrand::u64(0..20)),
        });
        (arbiter, next)
    }

    fn with(stay: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        let stay: Arc<Stay> = Arc::new(stay);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let arbiter = Self { port, rooms: Arc::default() };
        let rooms = arbiter.rooms.clone();
        thread::spawn(move || {
            for (guest, stream) in listener.incoming().flatten().enumerate() {
                let (rooms, stay) = (rooms.clone(), stay.clone());
                thread::spawn(move || attend(guest, stream, &rooms, &*stay));
            }
        });
        arbiter
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How many of ours and of theirs have entered since then.
    pub(crate) fn active(&self, name: &str, since: Instant) -> (usize, usize) {
        let rooms = lock(&self.rooms);
        let entered = rooms.get(name).into_iter().flat_map(|room| room.entered.values());
        let sides: Vec<_> = entered.filter(|(_, at)| *at > since).map(|(side, _)| *side).collect();
        let ours = sides.iter().filter(|side| **side == Side::Ours).count();
        (ours, sides.len() - ours)
    }

    /// A client with this fence reads what the lock protects. For scenes that decide who does what
    /// and when.
    pub(crate) fn enter(&self, name: &str, guest: usize, side: Side, fence: u64) {
        let mut rooms = lock(&self.rooms);
        let room = rooms.entry(name.to_owned()).or_default();
        room.enter(guest, side, Mode::Exclusive, fence);
    }

    /// It writes on top of what it read.
    pub(crate) fn leave(&self, name: &str, guest: usize) {
        if let Some(room) = lock(&self.rooms).get_mut(name) {
            room.write(guest);
            room.leave(guest);
        }
    }

    /// The record of a name so far.
    pub(crate) fn look(&self, name: &str) -> Tally {
        lock(&self.rooms).get(name).map(|room| room.tally.clone()).unwrap_or_default()
    }

    /// The record of a name since the last call.
    pub(crate) fn tally(&self, name: &str) -> Tally {
        lock(&self.rooms).remove(name).map(|room| room.tally).unwrap_or_default()
    }
}

/// Records for one driver until it disconnects.
fn attend(guest: usize, stream: TcpStream, rooms: &Mutex<HashMap<String, Room>>, stay: &Stay) {
    let mut place = None;
    let mut serve = || -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut answers = stream.try_clone()?;
        for line in BufReader::new(&stream).lines() {
            let line = line?;
            let words: Vec<_> = line.split(' ').collect();
            match words.as_slice() {
                ["enter", side, mode, fence, name] => {
                    let fence = fence.parse().expect("a fence is a number");
                    let (side, mode) = (side_of(side), mode_of(mode));
                    lock(rooms)
                        .entry((*name).to_owned())
                        .or_default()
                        .enter(guest, side, mode, fence);
                    place = Some((*name).to_owned());
                    thread::sleep(stay());
                }
                ["leave"] => {
                    if let Some(name) = &place
                        && let Some(room) = lock(rooms).get_mut(name)
                    {
                        room.write(guest);
                    }
                    leave(rooms, &mut place, guest);
                }
                ["trouble", side, name, what, why @ ..] => {
                    let (side, what, text) = (side_of(side), (*what).to_owned(), why.join(" "));
                    let trouble = Trouble { at: Instant::now(), side, what, text };
                    let mut rooms = lock(rooms);
                    rooms.entry((*name).to_owned()).or_default().tally.troubles.push(trouble);
                }
                other => panic!("a driver said {other:?}"),
            }
            answers.write_all(b".")?;
        }
        Ok(())
    };
    // A driver that was killed inside is no longer inside.
    let _ = serve();
    leave(rooms, &mut place, guest);
}

fn leave(rooms: &Mutex<HashMap<String, Room>>, place: &mut Option<String>, guest: usize) {
    if let Some(name) = place.take()
        && let Some(room) = lock(rooms).get_mut(&name)
    {
        room.leave(guest);
    }
}

fn side_of(word: &str) -> Side {
    match word {
        "ours" => Side::Ours,
        "theirs" => Side::Theirs,
        other => panic!("no side is called {other:?}"),
    }
}

fn mode_of(word: &str) -> Mode {
    match word {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        "permit" => Mode::Permit,
        other => panic!("no mode is called {other:?}"),
    }
}

impl Room {
    fn enter(&mut self, guest: usize, side: Side, mode: Mode, fence: u64) {
        let visit = Visit { guest, side, mode, fence, saw: self.values };
        let (tally, at) = (&mut self.tally, Instant::now());
        let clash = match visit.mode {
            Mode::Permit => self.inside.len() >= PERMITS,
            mode => self
                .inside
                .iter()
                .any(|other| mode == Mode::Exclusive || other.mode == Mode::Exclusive),
        };
        if clash {
            let text = format!("{visit:?} was let in beside {:?}", self.inside);
            let inside = self.inside.iter().map(|other| other.side);
            let sides = [visit.side].into_iter().chain(inside).collect();
            tally.wrongs.push(Wrong { at, sides, text });
        }
        // A reader carries the fence of the last writer, and a permit may be held next to others.
        if fence > 0 && visit.mode == Mode::Exclusive {
            if fence <= self.fence {
                let text = format!("fence {fence} came after {}", self.fence);
                tally.wrongs.push(Wrong { at, sides: Vec::new(), text });
            }
            self.fence = self.fence.max(fence);
            tally.fenced += 1;
        }
        match visit.side {
            Side::Ours => tally.ours += 1,
            Side::Theirs => tally.theirs += 1,
        }
        if let Some((side, at)) = self.left
            && side != visit.side
        {
            tally.hand_offs.push(at.elapsed());
        }
        self.left = None;
        self.entered.insert(visit.guest, (visit.side, at));
        self.inside.push(visit);
    }

    fn write(&mut self, guest: usize) {
        let Some(visit) = self.inside.iter().find(|visit| visit.guest == guest) else { return };
        let [value, fenced] = &mut self.values;
        self.tally.written += 1;
        self.tally.lost += *value - visit.saw[0];
        *value += 1;
        if visit.fence > 0 && visit.fence < self.fence {
            self.tally.refused += 1;
        } else {
            self.tally.lost_fenced += *fenced - visit.saw[1];
            *fenced += 1;
        }
    }

    fn leave(&mut self, guest: usize) {
        if let Some(at) = self.inside.iter().position(|visit| visit.guest == guest) {
            let visit = self.inside.swap_remove(at);
            self.left = Some((visit.side, Instant::now()));
        }
    }
}

fn lock(rooms: &Mutex<HashMap<String, Room>>) -> MutexGuard<'_, HashMap<String, Room>> {
    rooms.lock().expect("nothing panics under this lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(visits: &[(usize, Mode, u64)]) -> Room {
        let mut room = Room::default();
        for (guest, mode, fence) in visits {
            room.enter(*guest, Side::Ours, *mode, *fence);
        }
        room
    }

    #[test]
    fn two_inside_are_noticed_unless_both_only_share() {
        use Mode::{Exclusive, Permit, Shared};
        for (first, second, wrongs) in [
            (Exclusive, Exclusive, 1),
            (Exclusive, Shared, 1),
            (Shared, Exclusive, 1),
            (Shared, Shared, 0),
            (Permit, Permit, 0),
        ] {
            let tally = room(&[(1, first, 0), (2, second, 0)]).tally;
            assert_eq!(tally.wrongs.len(), wrongs, "{first:?} {second:?}");
        }
        let visits = [1, 2, 3, 4].map(|guest| (guest, Permit, 0));
        assert_eq!(room(&visits[..PERMITS]).tally.wrongs.len(), 0);
        assert_eq!(room(&visits).tally.wrongs.len(), 1);
    }

    #[test]
    fn one_after_the_other_is_right_and_a_fence_that_does_not_rise_is_wrong() {
        let mut room = Room::default();
        for (guest, fence, wrongs) in [(1, 5, 0), (2, 6, 0), (1, 6, 1), (2, 0, 1), (1, 4, 2)] {
            room.enter(guest, Side::Theirs, Mode::Exclusive, fence);
            room.leave(guest);
            assert_eq!(room.tally.wrongs.len(), wrongs, "{:?}", room.tally.wrongs);
        }
        assert_eq!((room.tally.theirs, room.tally.fenced), (5, 4));
    }

    #[test]
    fn a_stale_write_loses_updates_unless_its_fence_stops_it() {
        for (fences, wanted) in [([0, 0, 0], (2, 0, 2)), ([4, 5, 6], (2, 1, 0))] {
            let mut room = Room::default();
            room.enter(0, Side::Theirs, Mode::Exclusive, fences[0]);
            for guest in [1, 2] {
                room.enter(guest, Side::Theirs, Mode::Exclusive, fences[guest]);
                room.write(guest);
                room.leave(guest);
            }
            room.write(0);
            let tally = room.tally;
            assert_eq!(tally.written, 3);
            assert_eq!((tally.lost, tally.refused, tally.lost_fenced), wanted, "{fences:?}");
        }
    }

    #[test]
    fn hand_offs_count_between_the_sides_only() {
        let mut room = Room::default();
        for (guest, side) in [(1, Side::Ours), (2, Side::Ours), (3, Side::Theirs), (1, Side::Ours)]
        {
            room.enter(guest, side, Mode::Exclusive, 0);
            room.leave(guest);
        }
        assert_eq!(room.tally.hand_offs.len(), 2);
    }

    #[test]
    fn only_the_next_visit_after_the_flag_was_set_is_long() {
        const LONG: Duration = Duration::from_millis(100);
        let (arbiter, next) = Arbiter::arranged(LONG);
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, arbiter.port())).unwrap();
        next.store(true, Ordering::SeqCst);
        let started = Instant::now();
        stream.write_all(b"enter ours exclusive 0 x\n").unwrap();
        io::Read::read_exact(&mut stream, &mut [0]).unwrap();
        assert!(started.elapsed() >= LONG, "{:?}", started.elapsed());
        assert!(!next.load(Ordering::SeqCst));
    }

    #[test]
    fn visits_that_a_scene_orders_are_recorded() {
        let arbiter = Arbiter::start();
        arbiter.enter("x", 1, Side::Ours, 5);
        arbiter.enter("x", 2, Side::Ours, 6);
        arbiter.leave("x", 2);
        arbiter.leave("x", 1);
        let tally = arbiter.look("x");
        assert_eq!((tally.overlaps(), tally.lost), (1, 1));
        assert_eq!((tally.refused, tally.lost_fenced), (1, 0));
        assert_eq!(arbiter.tally("x").written, 2);
    }

    #[test]
    fn a_driver_that_dies_inside_is_inside_no_longer() {
        let arbiter = Arbiter::start();
        let enter = || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, arbiter.port())).unwrap();
            stream.write_all(b"enter ours exclusive 0 x\n").unwrap();
            io::Read::read_exact(&mut stream, &mut [0]).unwrap();
            stream
        };
        drop(enter());
        while lock(&arbiter.rooms).get("x").is_some_and(|room| !room.inside.is_empty()) {
            thread::yield_now();
        }
        let (_one, _two) = (enter(), enter());
        let tally = arbiter.tally("x");
        assert_eq!((tally.ours, tally.wrongs.len()), (3, 1));
    }
}
