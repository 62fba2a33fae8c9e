//! Observes every critical section of every process, and reports violations.
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

use crate::resource::{Mode, Resource, Side, Tally, Trouble};

/// Records which drivers are inside.
#[derive(Debug, Clone)]
pub(crate) struct Arbiter {
    port: u16,
    resources: Arc<Mutex<HashMap<String, Resource>>>,
}

/// How long a visit takes. The arbiter decides it, so that all languages behave alike.
type Stay = dyn Fn() -> Duration + Send + Sync;

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
        let arbiter = Self { port, resources: Arc::default() };
        let resources = arbiter.resources.clone();
        thread::spawn(move || {
            for (client, stream) in listener.incoming().flatten().enumerate() {
                let (resources, stay) = (resources.clone(), stay.clone());
                thread::spawn(move || attend(client, stream, &resources, &*stay));
            }
        });
        arbiter
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How many of ours and of theirs have entered since then.
    pub(crate) fn active(&self, name: &str, since: Instant) -> (usize, usize) {
        let resources = lock(&self.resources);
        let entered =
            resources.get(name).into_iter().flat_map(|resource| resource.entered.values());
        let sides: Vec<_> = entered.filter(|(_, at)| *at > since).map(|(side, _)| *side).collect();
        let ours = sides.iter().filter(|side| **side == Side::Ours).count();
        (ours, sides.len() - ours)
    }

    /// A client with this fence reads what the lock protects. For scenes that decide who does what
    /// and when.
    pub(crate) fn enter(&self, name: &str, client: usize, side: Side, fence: u64) {
        let mut resources = lock(&self.resources);
        let resource = resources.entry(name.to_owned()).or_default();
        resource.enter(client, side, Mode::Exclusive, fence);
    }

    /// It writes on top of what it read.
    pub(crate) fn leave(&self, name: &str, client: usize) {
        if let Some(resource) = lock(&self.resources).get_mut(name) {
            resource.write(client);
            resource.leave(client);
        }
    }

    /// The record of a name so far.
    pub(crate) fn look(&self, name: &str) -> Tally {
        lock(&self.resources).get(name).map(|resource| resource.tally.clone()).unwrap_or_default()
    }

    /// The record of a name since the last call.
    pub(crate) fn tally(&self, name: &str) -> Tally {
        lock(&self.resources).remove(name).map(|resource| resource.tally).unwrap_or_default()
    }
}

/// Records for one driver until it disconnects.
fn attend(
    client: usize,
    stream: TcpStream,
    resources: &Mutex<HashMap<String, Resource>>,
    stay: &Stay,
) {
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
                    lock(resources)
                        .entry((*name).to_owned())
                        .or_default()
                        .enter(client, side, mode, fence);
                    place = Some((*name).to_owned());
                    thread::sleep(stay());
                }
                ["leave"] => {
                    if let Some(name) = &place
                        && let Some(resource) = lock(resources).get_mut(name)
                    {
                        resource.write(client);
                    }
                    leave(resources, &mut place, client);
                }
                ["trouble", side, name, what, why @ ..] => {
                    let (side, what, text) = (side_of(side), (*what).to_owned(), why.join(" "));
                    let trouble = Trouble { at: Instant::now(), side, what, text };
                    let mut resources = lock(resources);
                    resources.entry((*name).to_owned()).or_default().tally.troubles.push(trouble);
                }
                other => panic!("a driver said {other:?}"),
            }
            answers.write_all(b".")?;
        }
        Ok(())
    };
    // A driver that was killed inside is no longer inside.
    let _ = serve();
    leave(resources, &mut place, client);
}

fn leave(resources: &Mutex<HashMap<String, Resource>>, place: &mut Option<String>, client: usize) {
    if let Some(name) = place.take()
        && let Some(resource) = lock(resources).get_mut(&name)
    {
        resource.leave(client);
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

fn lock(resources: &Mutex<HashMap<String, Resource>>) -> MutexGuard<'_, HashMap<String, Resource>> {
    resources.lock().expect("nothing panics under this lock")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        while lock(&arbiter.resources).get("x").is_some_and(|resource| !resource.inside.is_empty())
        {
            thread::yield_now();
        }
        let (_one, _two) = (enter(), enter());
        let tally = arbiter.tally("x");
        assert_eq!((tally.ours, tally.wrongs.len()), (3, 1));
    }
}
