//! Options that several verbs share.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// The engine that keeps the locks.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Where {
    /// The engine [env: LOCKKEEPER_URL] [default: file:]
    ///
    /// For instance file:///dir, redis://host or postgres://host/database; `lockkeeper explain
    /// --table` lists one URL of each kind.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) secret: Secret,
}

/// The source of the engine's password, if it needs one.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Secret {
    /// A file with the engine's password [env: LOCKKEEPER_PASSWORD_FILE]
    ///
    /// The password may also be in LOCKKEEPER_PASSWORD. It is never printed.
    #[arg(long, value_name = "PATH")]
    pub(crate) password_file: Option<PathBuf>,
    /// Ask for the engine's password at the terminal
    #[arg(long, conflicts_with = "password_file")]
    pub(crate) ask_password: bool,
}

impl Secret {
    /// The flag that was used.
    pub(crate) fn flag(&self) -> Option<&'static str> {
        match (&self.password_file, self.ask_password) {
            (Some(_), _) => Some("--password-file"),
            (None, true) => Some("--ask-password"),
            (None, false) => None,
        }
    }
}

/// How a lock is acquired.
#[derive(Debug, Args, Default, Serialize, Deserialize)]
pub(crate) struct Terms {
    /// Do not wait: exit 75 if the lock is busy
    #[arg(short = 'n', long, visible_alias = "nb", conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait at most this long; a bare number is in seconds
    ///
    /// The limit includes the time until the engine can be reached.
    #[arg(short = 'w', long, visible_alias = "timeout", value_name = "DURATION", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) wait: Option<Duration>,
    /// Share the lock with other --shared holders
    #[arg(short = 's', long, conflicts_with_all = ["exclusive", "limit"])]
    pub(crate) shared: bool,
    /// Hold the lock alone, also against --shared holders
    #[arg(short = 'x', long, visible_alias = "ex", short_alias = 'e', conflicts_with = "limit")]
    pub(crate) exclusive: bool,
    /// Allow N holders at once; all of them must use the same N
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    pub(crate) limit: Option<u32>,
    /// Grant the lock in order of arrival, across processes too
    #[arg(long)]
    pub(crate) fair: bool,
    /// How long the lock lasts if its holder dies [env: LOCKKEEPER_TTL] [default: 30s]
    ///
    /// It is renewed every third of this time. On an engine without leases, such as file:, the lock
    /// of a dead holder is free at once; there, the option sets how soon a holder detects that its
    /// lock was broken.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) ttl: Option<Duration>,
    /// A note, which `ls` and `show` print
    #[arg(long, value_name = "WHY")]
    pub(crate) note: Option<String>,
    /// Exit N instead of 75 if the lock is busy
    #[arg(short = 'E', long, value_name = "N", value_parser = exit_code, allow_negative_numbers = true)]
    pub(crate) conflict_exit_code: Option<u8>,
}

/// What happens to a command whose lock is held for it.
#[derive(Debug, Args)]
pub(crate) struct Supervision {
    /// Time from TERM to KILL when the command must end [env: LOCKKEEPER_GRACE] [default: 5s, at most a sixth of a lease]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) grace: Option<Duration>,
    /// What to do with the command when the lock is lost [default: term]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) on_lost: Option<OnLost>,
    /// What to do with the command when the holder is asked to `yield`
    #[arg(long, value_enum, value_name = "WHAT", default_value = "term")]
    pub(crate) on_yield: OnYield,
    /// Print no messages
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print how long it waited and held the lock, and every renewal that fails
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// Print the outcome as one JSON object on stderr
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the outcome as one JSON object to this file
    #[arg(long, value_name = "PATH")]
    pub(crate) status_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, and KILL after the grace
    Term,
    /// KILL at once
    Kill,
    /// Let it run; the exit code is still 79
    Ignore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnYield {
    /// TERM, once; the command decides when to end
    Term,
    /// USR1, for a command that handles it
    Usr1,
    /// Let it run
    Ignore,
}

impl OnYield {
    /// The signal to send.
    pub(crate) fn signal(self) -> Option<Signal> {
        match self {
            OnYield::Term => Some(Signal::SIGTERM),
            OnYield::Usr1 => Some(Signal::SIGUSR1),
            OnYield::Ignore => None,
        }
    }
}

/// Free text for people.
pub(super) fn words(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("give a reason, for instance 'host backup-3 is gone'".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// A name in the Host header, without a port.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let right = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    match !text.is_empty() && text.chars().all(right) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("it is a name such as locks.example, without a port".to_owned()),
    }
}

/// An address to listen on.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    let local = port.map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    local.or_else(|| text.parse().ok()).ok_or_else(|| {
        "it is an address and a port, for instance 127.0.0.1:7717 or [::1]:7717; port 0 takes a \
         free one"
            .to_owned()
    })
}

/// A number of waiters.
pub(super) fn waiters(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "it is a number of waiters, from 0 on".to_owned())
}

/// A process id, as shown by `ps`.
pub(super) fn pid(text: &str) -> Result<i32, String> {
    let advice = "it is the number of a process, from 1 on, for instance $$";
    text.parse().ok().filter(|pid| *pid > 0).ok_or_else(|| advice.to_owned())
}

pub(super) fn processes(text: &str) -> Result<u32, String> {
    let advice = "it is a whole number from 2 to 64";
    text.parse().ok().filter(|n| (2..=64).contains(n)).ok_or_else(|| advice.to_owned())
}

fn limit(text: &str) -> Result<u32, String> {
    let advice = format!("it is a whole number from 1 to {}", u32::MAX);
    text.parse().ok().filter(|limit| *limit > 0).ok_or(advice)
}

fn exit_code(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "an exit code is a number from 0 to 255".to_owned())
}

/// A duration greater than zero.
pub(super) fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be longer than 0, for instance 500ms, 30s, 5m".to_owned()),
        time => Ok(time),
    }
}

/// A duration, as in a URL or a file.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    lockkeeper::endpoint::parse_duration(text).map_err(|error| error.to_string())
}
