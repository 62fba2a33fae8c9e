//! The arguments of a guardian, and how it starts the command.

use std::ffi::{CString, OsString};
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use nix::errno::Errno;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;

use crate::run::guardian::VERB;
use crate::run::{nested, signals};

/// The arguments that the wrapper passes to a guardian.
#[derive(Debug)]
pub(crate) struct Brief {
    /// The descriptor of the command's standard input.
    pub(crate) stdin: RawFd,
    /// The lock's open file, kept but never used.
    pub(crate) lock: Option<RawFd>,
    /// Whether the command runs in the terminal's foreground.
    pub(crate) foreground: bool,
    /// The command's signal mask.
    pub(crate) mask: SigSet,
    /// The command.
    pub(crate) command: Vec<OsString>,
}

impl Brief {
    /// The command line, from the hidden verb on.
    pub(crate) fn to_args(&self) -> Vec<OsString> {
        let lock = self.lock.map_or_else(|| "-".to_owned(), |fd| fd.to_string());
        let place = if self.foreground { "foreground" } else { "background" };
        let mask = signals::mask_to_text(&self.mask);
        [VERB.to_owned(), self.stdin.to_string(), lock, place.to_owned(), mask]
            .into_iter()
            .map(OsString::from)
            .chain(self.command.iter().cloned())
            .collect()
    }

    pub(super) fn from_args(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let mut text = || args.next()?.into_string().ok();
        Some(Self {
            stdin: text()?.parse().ok()?,
            lock: text()?.parse().ok(),
            foreground: text()? == "foreground",
            mask: signals::mask_from_text(&text()?),
            command: args.collect(),
        })
    }

    /// Starts the command, in its own process group. `host` is the address for runs inside it.
    pub(super) fn spawn(&self, host: Option<&str>) -> nix::Result<Pid> {
        let mut files = PosixSpawnFileActions::init()?;
        files.add_dup2(self.stdin, 0)?;
        files.add_close(self.stdin)?;
        if let Some(lock) = self.lock {
            files.add_close(lock)?;
        }
        let mut attributes = PosixSpawnAttr::init()?;
        attributes.set_flags(
            PosixSpawnFlags::POSIX_SPAWN_SETPGROUP
                | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK
                | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF,
        )?;
        attributes.set_pgroup(Pid::from_raw(0))?;
        attributes.set_sigmask(&self.mask)?;
        // Ignored in every Rust program; other programs rely on being killed by it.
        attributes.set_sigdefault(&SigSet::from_iter([Signal::SIGPIPE]))?;
        let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| Errno::EINVAL);
        let args: Vec<CString> = self
            .command
            .iter()
            .map(|arg| text(arg.clone().into_vec()))
            .collect::<Result<_, _>>()?;
        let environment: Vec<CString> = std::env::vars_os()
            .filter(|(name, _)| name != nested::VARIABLE)
            .chain(host.map(|host| (nested::VARIABLE.into(), host.into())))
            .map(|(name, value)| text([name.as_bytes(), b"=", value.as_bytes()].concat()))
            .collect::<Result<_, _>>()?;
        posix_spawnp(&args[0], &files, &attributes, &args, &environment)
    }
}
