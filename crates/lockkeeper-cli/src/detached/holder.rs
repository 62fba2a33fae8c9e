//! The holder: a small process that keeps a lock for a script that cannot keep it itself.
//!
//! It is started with a request on its standard input, answers on the same socket, and from then on
//! listens on its own socket in a directory that only its user can enter. It releases the lock on
//! request, when its time is up, or when the process it was bound to is gone.

use std::cell::RefCell;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper::endpoint::Endpoint;
use lockkeeper::{Client, Error, Guard, Owner};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, setsid};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;

use crate::acquire::{self, Waits};
use crate::detached::handle::Handle;
use crate::detached::protocol::{Answer, Ask, Granted, Reply, Request, hear, say};
use crate::exit::{self, Failure};
use crate::output::Say;
use crate::run::guardian::boot_time;
use crate::run::signals::Signals;
use crate::waiting::{Line, Waiting};

/// The hidden verb.
pub(crate) const VERB: &str = "__holder";

/// How often to check whether the process it is bound to still exists.
const LOOK: Duration = Duration::from_millis(200);

/// Starts a holder, and waits for its answer as long as it waits for the lock.
pub(crate) async fn start(request: &Request, signals: &Signals) -> Result<Granted, Failure> {
    let refuse = |error: io::Error| {
        Failure::own("start /proc/self/exe as a process to hold the lock", error)
    };
    let (ours, theirs) = StdStream::pair().map_err(refuse)?;
    ours.set_nonblocking(true).map_err(refuse)?;
    let request = serde_json::to_string(request).expect("plain fields serialize") + "\n";
    // Not waited for: it outlives us. Init, or another subreaper, reaps it in the end.
    Command::new("/proc/self/exe")
        .arg0("lockkeeper")
        .arg(VERB)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()
        .map_err(refuse)?;
    let talk = async {
        let mut socket = BufStream::new(UnixStream::from_std(ours)?);
        socket.write_all(request.as_bytes()).await?;
        socket.flush().await?;
        let mut shown = Line::new(Say::default());
        loop {
            let mut line = String::new();
            socket.read_line(&mut line).await?;
            match serde_json::from_str(&line) {
                Ok(Reply::Line(texts)) => shown.show(&texts),
                Ok(Reply::Waits(what)) => {
                    shown.clear();
                    Say::default().warn(what);
                }
                reply => return Ok(reply.ok()),
            }
        }
    };
    // If a signal ends us first, the socket is closed too, and the holder gives up.
    let talk = async { talk.await.map_err(refuse) };
    let reply = acquire::interruptible(talk, signals).await?;
    match reply {
        Some(Reply::Granted(granted)) => Ok(granted),
        Some(Reply::Refused { code, message }) => Err(Failure::new(code, message)),
        _ => Err(Failure::new(exit::OWN, "the process that should hold the lock died")),
    }
}

/// Closes inherited descriptors that we do not need: a lock of `flock`, the end of a pipe that
/// another process waits for. Called before anything of our own is open.
pub(crate) fn close_inherited() {
    let Ok(listed) = fs::read_dir("/proc/self/fd") else { return };
    let names =
        listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    // All are listed before the first is closed: the list itself is an open file.
    for fd in names.collect::<Vec<_>>() {
        if fd > 2 {
            let _ = nix::unistd::close(fd);
        }
    }
}

/// The entry point of a holder.
pub(crate) async fn main() -> exit::Outcome {
    let own = |error: io::Error| Failure::own("hold a lock", error);
    // A new session: closing the terminal, or a shell that ends its jobs, does not end it.
    let _ = setsid();
    let signals = Signals::collect().map_err(own)?;
    let mut starter = StdStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(own)?);
    let mut text = String::new();
    let read = BufReader::new(&starter).read_line(&mut text);
    let request: Option<Request> = read.ok().and_then(|_| serde_json::from_str(&text).ok());
    let Some(request) = request else {
        return Err(Failure::usage(format!("{VERB} is not meant to be called; see acquire")));
    };
    let mut tell = |reply: &Reply| {
        let line = serde_json::to_string(reply).expect("plain fields serialize") + "\n";
        starter.write_all(line.as_bytes()).is_ok()
    };
    match hold(&request, &signals, &mut tell).await {
        Err(Failure { code, message, .. }) => {
            tell(&Reply::Refused { code, message });
            Ok(code)
        }
        Ok((client, guard, socket)) => {
            let handle = socket.handle.to_string();
            let fence = guard.fence().get();
            if tell(&Reply::Granted(Granted { handle, fence, pid: std::process::id() })) {
                // The descriptor stays in use, so that nothing else becomes standard input.
                let _ = fs::File::open("/dev/null").map(nix::unistd::dup2_stdin);
                keep(guard, &socket, &request, &signals).await;
            }
            client.close().await;
            Ok(0)
        }
    }
}

/// Acquires the lock, unless the process that started us is gone before.
async fn hold(
    request: &Request,
    signals: &Signals,
    tell: &mut impl FnMut(&Reply) -> bool,
) -> Result<(Client, Guard, Socket), Failure> {
    let starter =
        io::stdin().as_fd().try_clone_to_owned().map_err(|e| Failure::own("listen", e))?;
    let starter = StdStream::from(starter);
    let own = |error: io::Error| Failure::own("listen to the process that started this", error);
    starter.set_nonblocking(true).map_err(own)?;
    let mut starter = UnixStream::from_std(starter).map_err(own)?;
    let owner = Owner::named(&request.owner)?;
    // Before the lock is acquired: a lock that cannot be released must not be.
    let mut socket = Socket::open()?;
    let place = Endpoint::parse(&request.url)?.to_string();
    let mut waits = Waits::new(&place, request.terms.wait);
    let since = Instant::now();
    let (client, guard) = loop {
        let attempt = async {
            let connect = waits.in_time(async { Ok(Client::connect(&request.url).await?) });
            let client = unless_over(connect, signals, &mut starter).await?;
            client.set_command(request.command.as_deref());
            let lock = acquire::lock(&client, &request.key, &request.terms);
            let lock = lock.owner(&owner).ttl(request.ttl);
            let (key, terms) = (&request.key, &request.terms);
            if let Some(told) = waits.answered() {
                tell(&Reply::Waits(told));
            }
            let (until, drawn) = (waits.until, request.shown == Some(true));
            let waiting = Waiting { key, since, until, drawn };
            let acquire = async {
                let tell = RefCell::new(&mut *tell);
                let send = |reply| {
                    (tell.borrow_mut())(&reply);
                };
                let outages = waits.told.outages(&client, |told| send(Reply::Waits(told)));
                tokio::select! {
                    acquired = acquire::acquire_until(&client, lock, key, terms, until) => acquired,
                    never = waiting.tell(&client, |texts| send(Reply::Line(texts.to_vec()))),
                        if request.shown.is_some() => match never {},
                    never = outages => match never {},
                }
            };
            match unless_over(acquire, signals, &mut starter).await {
                Ok(guard) => {
                    // The grant may have been the answer that ended an outage.
                    if let Some(told) = waits.answered() {
                        tell(&Reply::Waits(told));
                    }
                    Ok((client, guard))
                }
                Err(failure) => {
                    // What is pending, such as undoing a claim, ends before we do.
                    acquire::close(client, !failure.retryable).await;
                    Err(failure)
                }
            }
        };
        match attempt.await {
            Ok(acquired) => break acquired,
            Err(failure) => {
                let say = |what, news| {
                    if news {
                        tell(&Reply::Waits(what));
                    }
                };
                unless_over(waits.again(failure, say), signals, &mut starter).await?;
            }
        }
    };
    socket.handle.fence = guard.fence().get();
    Ok((client, guard, socket))
}

/// Runs something, unless a signal arrives or the process that started us is gone.
async fn unless_over<T>(
    work: impl Future<Output = Result<T, Failure>>,
    signals: &Signals,
    starter: &mut UnixStream,
) -> Result<T, Failure> {
    tokio::select! {
        done = acquire::interruptible(work, signals) => done,
        // Nothing is ever sent here, so this is the end.
        _ = starter.read_u8() => Err(Failure::silent(exit::OWN)),
    }
}

/// Keeps the lock until it has to be released.
async fn keep(guard: Guard, socket: &Socket, request: &Request, signals: &Signals) {
    let after = |lease: Option<Duration>| {
        let nanos = lease.and_then(|lease| u64::try_from(lease.as_nanos()).ok());
        boot_time().saturating_add(nanos.unwrap_or(u64::MAX))
    };
    let mut until = after(request.lease);
    let mut asked = std::pin::pin!(guard.yield_requested());
    let mut yielding = None;
    let bound_to = request.pid.map(|pid| (pid, started_at(pid)));
    loop {
        let left = Duration::from_nanos(until.saturating_sub(boot_time()));
        let gone = bound_to.is_some_and(|(pid, start)| started_at(pid) != start || start.is_none());
        if left.is_zero() || gone {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(left.min(LOOK)) => {}
            _ = signals.next() => break,
            asker = &mut asked, if yielding.is_none() => {
                yielding = Some(asker.to_string());
                let signal = request.on_yield.and_then(|signal| Signal::try_from(signal).ok());
                if let (Some(pid), Some(signal)) = (request.pid, signal) {
                    // If it is gone, the lock is about to be released.
                    let _ = kill(Pid::from_raw(pid), signal);
                }
            }
            Ok((stream, _)) = socket.listener.accept() => {
                let mut stream = BufStream::new(stream);
                let Some(ask) = hear(&mut stream).await else { continue };
                let answer = match (acquire::why_lost(&guard).await, ask) {
                    (None, Ask::Renew { lease }) => match renew(&guard).await {
                        Answer::Done => {
                            until = after(lease.or(request.lease));
                            match yielding.clone() {
                                Some(by) => Answer::Asked { by },
                                None => Answer::Done,
                            }
                        }
                        answer => answer,
                    },
                    (None, Ask::Tell) => Answer::Told {
                        key: request.key.clone(),
                        fence: guard.fence().get(),
                        left: (until != u64::MAX).then_some(left),
                    },
                    (None, Ask::Release) => {
                        let lost = acquire::release(guard, Say { quiet: true, verbose: false }).await;
                        let answer = match lost {
                            Ok(()) => Answer::Done,
                            Err(Some(reason)) => Answer::Lost { reason },
                            Err(None) => Answer::Unconfirmed {
                                reason: "the engine did not confirm the release; it is repeated for a \
                                         while, and then the lock ends by itself"
                                    .to_owned(),
                            },
                        };
                        say(&mut stream, &answer).await;
                        return;
                    }
                    (Some(reason), _) => Answer::Lost { reason },
                };
                let over = matches!((&answer, ask), (Answer::Lost { .. }, Ask::Release));
                say(&mut stream, &answer).await;
                if over {
                    break;
                }
            }
        }
    }
    let _ = acquire::release(guard, Say { quiet: true, verbose: false }).await;
}

/// Asks the engine whether the lock is still held.
async fn renew(guard: &Guard) -> Answer {
    let renewed = tokio::time::timeout(acquire::CONFIRMATION, guard.renew()).await;
    let reason = match renewed {
        Ok(Ok(())) => return Answer::Done,
        Ok(Err(error @ Error::Lost { .. })) => return Answer::Lost { reason: error.to_string() },
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the engine does not answer".to_owned(),
    };
    Answer::Unconfirmed { reason: format!("the lock could not be renewed: {reason}") }
}

/// The command line of a process, as far as it is visible.
pub(crate) fn command_of(pid: i32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// When a process was started, which distinguishes it from a later one with the same pid.
pub(crate) fn started_at(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    // A zombie does nothing any more.
    words.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    words.nth(18)?.parse().ok()
}

/// The socket by which later calls reach a holder; removed with it.
struct Socket {
    listener: UnixListener,
    path: PathBuf,
    handle: Handle,
}

impl Socket {
    /// Creates it, with a handle that lacks the fence.
    fn open() -> Result<Self, Failure> {
        let handle = Handle::new(0)?;
        let path = handle.socket()?;
        let listener = UnixListener::bind(&path)
            .map_err(|error| Failure::own(format_args!("listen at {}", path.display()), error))?;
        Ok(Self { listener, path, handle })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
