//! `acquire`, `renew`, `release`: locks of scripts, by a handle.

use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use lockkeeper::Owner;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{fstat, makedev};
use nix::unistd::{Uid, User, geteuid};
use serde_json::json;

use crate::args::{Acquire, Release, Renew};
use crate::config::Config;
use crate::detached::holder;
use crate::detached::protocol::{Answer, Ask, Request};
use crate::exit::{self, Failure};
use crate::output::{Say, stdout, tell};
use crate::run;
use crate::run::signals::Signals;
use crate::table::plain;
use crate::waiting::Line;

/// How long a handle lasts if no lease is set and it is not bound to a process.
const LEASE: Duration = Duration::from_secs(300);

/// How long to wait for a holder that is only asked for its state.
const PATIENCE: Duration = Duration::from_millis(300);

pub(crate) async fn acquire(args: Acquire) -> exit::Outcome {
    let signals = Signals::collect().map_err(|error| Failure::own("listen for signals", error))?;
    let config = Config::load()?;
    let endpoint = config.endpoint(&args.place)?;
    let owner = args.owner.map_or_else(|| Ok(Owner::new()), Owner::named)?;
    run::warn_of_path(&args.key, &endpoint, Say::default());
    if args.pid.is_none() && stdout_was_closed() {
        return Err(Failure::new(
            exit::OWN,
            "standard output is closed, and the handle is printed there; nothing was acquired",
        ));
    }
    if let Some(pid) = args.pid.filter(|pid| holder::started_at(*pid).is_none()) {
        if !Path::new("/proc/self/stat").exists() {
            return Err(Failure::own("look at processes", "there is no /proc/self/stat"));
        }
        return Err(Failure::usage(format!(
            "there is no process {pid}; --pid names the one that the lock ends with, for instance $$"
        )));
    }
    let busy = args.terms.conflict_exit_code;
    let command = match args.pid {
        Some(pid) => holder::command_of(pid),
        None => ["lockkeeper", "acquire", &args.key].map(str::to_owned).to_vec(),
    };
    let request = Request {
        url: endpoint.spell_out(),
        key: args.key,
        ttl: config.ttl(args.terms.ttl)?,
        terms: args.terms,
        owner: owner.id().to_owned(),
        command: config.command(command)?,
        shown: (!args.quiet).then(|| Line::new(Say::default()).drawn),
        lease: args.lease.or(args.pid.is_none().then_some(LEASE)),
        pid: args.pid,
        on_yield: args.on_yield.signal().map(|signal| signal as i32),
    };
    let granted = holder::start(&request, &signals).await.map_err(|mut failure| {
        if failure.code == exit::BUSY {
            failure.code = busy.unwrap_or(exit::BUSY);
        }
        failure
    })?;
    let told = if args.json {
        let told = json!({
            "handle": granted.handle,
            "key": request.key,
            "url": endpoint.to_string(),
            "owner": owner.id(),
            "fence": granted.fence,
            "lease": request.lease.map(|lease| lease.as_secs_f64()),
            "pid": granted.pid,
        });
        told.to_string()
    } else {
        granted.handle.clone()
    };
    if let Err(error) = stdout(&(told + "\n")) {
        // Nobody else could: without its handle, a lock is held until its time is up.
        let _ = release(&Release { handle: granted.handle });
        return Err(Failure::own("print the handle, so the lock was released", error));
    }
    Ok(0)
}

pub(crate) fn renew(args: &Renew) -> exit::Outcome {
    ask(&args.handle, Ask::Renew { lease: args.lease })
}

pub(crate) fn release(args: &Release) -> exit::Outcome {
    ask(&args.handle, Ask::Release)
}

fn ask(handle: &str, ask: Ask) -> exit::Outcome {
    let handle: Handle = handle.parse()?;
    handle.check_user()?;
    let gone = || {
        Failure::new(
            exit::LOST,
            "this handle is no longer held: its time was up, it was released, or its holder was killed",
        )
    };
    // It may have been acquired with other variables, as under cron.
    let path = used_places().map(|place| place.join(&handle.id)).find(|path| path.exists());
    let stream =
        UnixStream::connect(path.ok_or_else(gone)?).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => gone(),
            _ => Failure::own("reach the holder of this handle", error),
        })?;
    match talk(stream, ask) {
        Some(Answer::Lost { reason }) => Err(Failure::new(exit::LOST, reason)),
        Some(Answer::Unconfirmed { reason }) => Err(Failure::new(exit::UNAVAILABLE, reason)),
        Some(Answer::Asked { by }) => {
            // It is somebody else's text.
            let by = plain(&by);
            tell(format_args!("the holder was asked to yield{by}; release the lock when you can"));
            Ok(0)
        }
        Some(_) => Ok(0),
        None => Err(gone()),
    }
}

fn talk(mut stream: UnixStream, ask: Ask) -> Option<Answer> {
    let line = serde_json::to_string(&ask).expect("plain fields serialize") + "\n";
    let mut answer = String::new();
    stream.write_all(line.as_bytes()).ok()?;
    BufReader::new(stream).read_line(&mut answer).ok()?;
    serde_json::from_str(&answer).ok()
}

/// The remaining leases of this user's handles on this machine, with the key and the fence of each.
///
/// An engine knows how long a lock lasts after its holder died, but not for how long the holder was
/// asked to keep it.
pub(crate) fn leases() -> Vec<(String, u64, Option<Duration>)> {
    let listed = used_places().filter_map(|place| fs::read_dir(place).ok());
    let tell = |entry: io::Result<fs::DirEntry>| {
        let stream = UnixStream::connect(entry.ok()?.path()).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        match talk(stream, Ask::Tell)? {
            Answer::Told { key, fence, left } => Some((key, fence, left)),
            _ => None,
        }
    };
    listed.flatten().filter_map(tell).collect()
}

/// Whether standard output was closed when we were started. It is now /dev/null, open for reading
/// and writing, which the runtime opens in place of a missing descriptor.
fn stdout_was_closed() -> bool {
    let out = io::stdout();
    let null = fstat(out.as_fd()).is_ok_and(|about| about.st_rdev == makedev(1, 3));
    let flags = fcntl(out.as_fd(), FcntlArg::F_GETFL).unwrap_or_default();
    null && flags & OFlag::O_ACCMODE.bits() == OFlag::O_RDWR.bits()
}

/// What `acquire` prints: the name of a holder's socket, the user it belongs to, and the fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handle {
    id: String,
    user: u32,
    pub(crate) fence: u64,
}

/// The length of the first part, in hexadecimal digits.
const ID: usize = 16;

impl Handle {
    pub(crate) fn new(fence: u64) -> Result<Self, Failure> {
        let id = random_hex().map_err(|error| Failure::own("read /dev/urandom", error))?;
        Ok(Self { id, user: geteuid().as_raw(), fence })
    }

    /// Refuses a handle of another user, whose sockets we cannot see.
    fn check_user(&self) -> Result<(), Failure> {
        let (theirs, ours) = (Uid::from_raw(self.user), geteuid());
        if theirs == ours {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "this handle belongs to another user ({}), and you are {}: run this as that user",
            name_of(theirs),
            name_of(ours)
        )))
    }

    /// The path of the holder's socket.
    pub(crate) fn socket(&self) -> Result<PathBuf, Failure> {
        Ok(directory()?.join(&self.id))
    }
}

/// An unpredictable name.
pub(crate) fn random_hex() -> io::Result<String> {
    let mut random = [0; ID / 2];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.id, self.user, self.fence)
    }
}

impl FromStr for Handle {
    type Err = Failure;
    fn from_str(text: &str) -> Result<Self, Failure> {
        let parsed = text.split_once('-').and_then(|(id, rest)| {
            let hexadecimal = id.len() == ID && id.bytes().all(|b| b.is_ascii_hexdigit());
            let (user, fence) = rest.split_once('-')?;
            Some(Self {
                id: hexadecimal.then(|| id.to_owned())?,
                user: user.parse().ok()?,
                fence: fence.parse().ok()?,
            })
        });
        parsed.ok_or_else(|| {
            Failure::usage(format!("{text:?} is not a handle; `lockkeeper acquire KEY` prints one"))
        })
    }
}

/// Where the directory of sockets may be: under the runtime directory, under the state directory,
/// or in /tmp. A new one is created at the first of them.
///
/// A variable may name a directory of another user, as after `sudo -E`: that one is not used.
fn places() -> Vec<PathBuf> {
    let user = geteuid();
    let own = |path: &PathBuf| fs::metadata(path).is_ok_and(|about| about.uid() == user.as_raw());
    let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let below = |base: Option<PathBuf>, dir| Some(base.filter(own)?.join(dir));
    [
        below(named("XDG_RUNTIME_DIR"), "lockkeeper"),
        below(named("XDG_STATE_HOME"), "lockkeeper/holders"),
        below(named("HOME"), ".local/state/lockkeeper/holders"),
        Some(PathBuf::from(format!("/tmp/lockkeeper-{user}"))),
        // Not set under cron, but it exists while the user is logged in.
        below(Some(format!("/run/user/{user}").into()), "lockkeeper"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Those of them that exist, and our own.
fn used_places() -> impl Iterator<Item = PathBuf> {
    let mut places = places();
    places.sort_unstable();
    places.dedup();
    let own = |path: &PathBuf| {
        fs::symlink_metadata(path)
            .is_ok_and(|about| about.is_dir() && about.uid() == geteuid().as_raw())
    };
    places.into_iter().filter(own)
}

/// A user's name, for messages.
fn name_of(user: Uid) -> String {
    let known = User::from_uid(user).ok().flatten();
    known.map_or_else(|| format!("uid {user}"), |known| known.name)
}

/// Creates that directory. Only its owner may enter it, since any process that reaches a socket can
/// release the lock.
fn directory() -> Result<PathBuf, Failure> {
    let path = places().swap_remove(0);
    let shown = path.display();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&path)
        .map_err(|error| Failure::own(format_args!("make the directory {shown}"), error))?;
    let about = fs::symlink_metadata(&path)
        .map_err(|error| Failure::own(format_args!("look at {shown}"), error))?;
    if !about.is_dir() || about.uid() != geteuid().as_raw() || about.mode() & 0o077 != 0 {
        return Err(Failure::new(
            exit::OWN,
            format!(
                "{shown} must be a directory of your own that nobody else can enter (mode 0700)"
            ),
        ));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_it_was_printed() {
        let handle = Handle::new(42).unwrap();
        assert_eq!(handle.to_string().parse::<Handle>().unwrap(), handle);
    }

    #[test]
    fn other_text_is_not_a_handle() {
        for text in [
            "",
            "x",
            "../../etc/passwd-1-1",
            "0123456789abcdef",
            "0123456789abcdef-1",
            "0123456789abcdef-1-x",
        ] {
            let failure = text.parse::<Handle>().unwrap_err();
            assert_eq!(failure.code, exit::USAGE);
            assert!(failure.message.contains("lockkeeper acquire KEY"), "{}", failure.message);
        }
    }
}
