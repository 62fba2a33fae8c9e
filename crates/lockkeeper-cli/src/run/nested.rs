//! A run inside a run: how the inner one finds the outer one, and how the outer one waits for it.
//!
//! The environment alone proves nothing: a daemon that outlived its run still has it. So the
//! guardian of the outer run listens, and the inner run connects and counts as nested only once it
//! is accepted. The guardian does not end while such a connection is open. A run that comes too
//! late finds no listener, or is never accepted, and asks the engine like any other.

use std::env;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use lockkeeper::Owner;
use lockkeeper::endpoint::Endpoint;
use lockkeeper::engine::Mode;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;

use crate::exit::Failure;
use crate::run::descendants::is_below;
use crate::run::guardian::boot_time;

/// The variable with the address of the guardian's socket.
pub(crate) const VARIABLE: &str = "LOCKKEEPER_RUN";

/// The variable with the kind of lock that the outer run holds.
pub(crate) const KIND: &str = "LOCKKEEPER_KIND";

/// How long a guardian may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

const WELCOME: u8 = b'1';

/// The outer run's side, kept by its guardian.
#[derive(Debug)]
pub(crate) struct Host {
    listener: UnixListener,
    name: String,
    guests: Vec<UnixStream>,
}

impl Host {
    pub(crate) fn listen() -> io::Result<Self> {
        let name = format!("lockkeeper/{}/{}", std::process::id(), boot_time());
        let listener = UnixListener::bind_addr(&address(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, name, guests: Vec::new() })
    }

    /// The address, for the command's environment.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts connections of our own descendants: only they are ended with us.
    pub(crate) fn welcome(&mut self) {
        while let Ok((mut guest, _)) = self.listener.accept() {
            let below = getsockopt(&guest, PeerCredentials)
                .is_ok_and(|peer| is_below(Pid::from_raw(peer.pid()), Pid::this()));
            if below && guest.set_nonblocking(true).is_ok() && guest.write_all(&[WELCOME]).is_ok() {
                self.guests.push(guest);
            }
        }
    }

    /// Whether a run inside this one is still there.
    pub(crate) fn has_guests(&mut self) -> bool {
        self.welcome();
        // Guests send nothing: anything readable is their end.
        self.guests.retain_mut(|guest| {
            matches!(guest.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        });
        !self.guests.is_empty()
    }
}

/// Enters the run that the environment names. The lock is held at least until the connection is closed.
pub(crate) fn enter() -> Option<UnixStream> {
    let name = env::var(VARIABLE).ok()?;
    let mut host = UnixStream::connect_addr(&address(&name).ok()?).ok()?;
    host.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut answer = [0];
    host.read_exact(&mut answer).ok()?;
    (answer == [WELCOME]).then_some(host)
}

/// Refuses a stronger kind of lock than the outer run holds: others may share what it holds.
pub(crate) fn check_kind(key: &str, asked: &str) -> Result<(), Failure> {
    let outer = env::var(KIND).unwrap_or_default();
    match (outer.as_str(), asked) {
        (outer, asked) if outer == asked => Ok(()),
        ("write", "read") => Ok(()),
        _ => Err(Failure::usage(format!(
            "the run around this one holds lock {key:?} as {outer}, which cannot be entered as {asked}; \
             ask for the same kind in both"
        ))),
    }
}

/// The kind of lock that is held, for comparison by an inner run. Semaphores of different limits
/// differ.
pub(crate) fn kind(mode: Mode) -> String {
    match mode {
        Mode::Permits { limit, .. } => format!("semaphore of {limit}"),
        mode => mode.kind().to_owned(),
    }
}

/// Whether, by the environment, an outer run holds this lock for this owner.
pub(crate) fn held_by_an_outer_run(key: &str, owner: &Owner, place: &str) -> bool {
    below_a_run_of(key, place) && is_set("LOCKKEEPER_OWNER", owner.id())
}

/// Whether, by the environment, an outer run holds this lock, for any owner.
pub(crate) fn below_a_run_of(key: &str, place: &str) -> bool {
    is_set("LOCKKEEPER_HELD", "1")
        && is_set("LOCKKEEPER_KEY", key)
        && env::var("LOCKKEEPER_URL")
            .is_ok_and(|url| Endpoint::parse(&url).is_ok_and(|outer| outer.to_string() == place))
}

fn is_set(name: &str, value: &str) -> bool {
    env::var_os(name).is_some_and(|found| found == value)
}

/// An abstract name: it is gone with its listener.
fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}
