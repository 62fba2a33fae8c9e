//! The options of each verb.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use clap_complete::Shell;

use super::common::{
    OnYield, Secret, Supervision, Terms, Where, address, duration, host_name, pid, processes,
    some_time, waiters, words,
};

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) place: Where,
    #[command(flatten)]
    pub(crate) terms: Terms,
    #[command(flatten)]
    pub(crate) supervision: Supervision,
    /// Use a fixed lease: it is not renewed, and the command ends with it
    #[arg(long, value_name = "DURATION", value_parser = some_time, allow_negative_numbers = true, conflicts_with = "ttl")]
    pub(crate) lease: Option<Duration>,
    /// Re-enter a lock that the same owner holds, such as an outer `run`
    ///
    /// Runs with the same owner do not exclude each other.
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,
    /// End the command after this time, and exit 124
    #[arg(long, value_name = "DURATION", value_parser = some_time, allow_negative_numbers = true)]
    pub(crate) max_hold: Option<Duration>,
    /// Hold the lock at least this long, even if the command ends sooner
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) min_hold: Option<Duration>,
    /// Run at most once per time slot of this length, across machines
    #[arg(long, value_name = "DURATION", value_parser = some_time, allow_negative_numbers = true)]
    pub(crate) once_per: Option<Duration>,
    /// Allow a failed run to be repeated in its slot of --once-per
    #[arg(long, requires = "once_per")]
    pub(crate) retry_failed: bool,
    /// Exit 0 instead of 75 if the lock is busy
    #[arg(long, conflicts_with = "conflict_exit_code")]
    pub(crate) skip_ok: bool,
    /// Run this string with $SHELL, or with /bin/sh
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "argv")]
    pub(crate) shell: Option<OsString>,
    /// The lock
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
    /// The command and its arguments, after `--`
    #[arg(value_name = "CMD", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments, required_unless_present = "shell")]
    pub(crate) argv: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) place: Where,
    #[command(flatten)]
    pub(crate) terms: Terms,
    /// Release after this time unless renewed [default: 5m; none with --pid]
    #[arg(long, value_name = "DURATION", value_parser = some_time, allow_negative_numbers = true)]
    pub(crate) lease: Option<Duration>,
    /// Release when this process is gone; without --lease, only then
    ///
    /// In a script, `--pid $$` is the script itself, even inside ( ) and $( ), which are separate
    /// processes: bash calls those $BASHPID.
    #[arg(long, value_name = "PID", value_parser = pid, allow_negative_numbers = true)]
    pub(crate) pid: Option<i32>,
    /// What to send the process of --pid when the holder is asked to `yield`
    #[arg(long, value_name = "WHAT", value_enum, default_value = "ignore", requires = "pid")]
    pub(crate) on_yield: OnYield,
    /// The owner that holds it [default: a random one]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,
    /// Do not show on stderr what is waited for
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
    /// Print the handle with its fence, owner, lease and process as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The lock
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// The new lease, from now on [default: the initial length]
    #[arg(long, value_name = "DURATION", value_parser = some_time, allow_negative_numbers = true)]
    pub(crate) lease: Option<Duration>,
    /// The handle that `acquire` printed
    #[arg(value_name = "HANDLE")]
    pub(crate) handle: String,
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// The handle that `acquire` printed
    #[arg(value_name = "HANDLE")]
    pub(crate) handle: String,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) place: Where,
    /// List the locks that were broken lately instead: by whom, when and why
    ///
    /// An engine keeps the last 50, for seven days.
    #[arg(long)]
    pub(crate) broken: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Only locks whose key starts with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) place: Where,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The lock
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) place: Where,
    /// Print one JSON object per change
    #[arg(long)]
    pub(crate) json: bool,
    /// The polling interval
    #[arg(long, value_name = "DURATION", value_parser = some_time, allow_negative_numbers = true, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Only locks whose key starts with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) secret: Secret,
    /// The polling interval of each engine; longer if an engine is slow
    #[arg(long, value_name = "DURATION", value_parser = some_time, allow_negative_numbers = true, default_value = "2s")]
    pub(crate) interval: Duration,
    /// The engines: URLs, or names in the configuration [default: all of those, or as for `run`]
    #[arg(value_name = "URL")]
    pub(crate) urls: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Ui {
    #[command(flatten)]
    pub(crate) secret: Secret,
    /// The address to serve the page on
    ///
    /// An address that other machines can reach requires a token. Port 0 selects a free port.
    #[arg(long, value_name = "ADDR", value_parser = address, default_value = "127.0.0.1:7717")]
    pub(crate) listen: SocketAddr,
    /// A file with the token that browsers must send; or set LOCKKEEPER_UI_TOKEN to the token
    #[arg(long, value_name = "PATH")]
    pub(crate) token_file: Option<PathBuf>,
    /// A name under which browsers reach this server, besides its addresses; may be repeated
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    pub(crate) host: Vec<String>,
    /// The polling interval of each engine; longer if an engine is slow
    #[arg(long, value_name = "DURATION", value_parser = some_time, allow_negative_numbers = true, default_value = "2s")]
    pub(crate) interval: Duration,
    /// Report contention when more than this many wait
    #[arg(long, value_name = "N", value_parser = waiters, allow_negative_numbers = true, default_value = "0")]
    pub(crate) contention: usize,
    /// Allow operators to ask holders to yield, and to break locks, from the page
    ///
    /// Without a token of your own, a random one is created, and is part of the address that is
    /// printed.
    #[arg(long)]
    pub(crate) allow_changes: bool,
    /// Where to record changes [default: ~/.local/state/lockkeeper/audit.jsonl]
    #[arg(long, value_name = "FILE", requires = "allow_changes")]
    pub(crate) audit: Option<PathBuf>,
    /// Keep the history in this file across restarts
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// The engines: URLs, or names from the configuration [default: all of those, or as for `run`]
    #[arg(value_name = "URL")]
    pub(crate) urls: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Break {
    #[command(flatten)]
    pub(crate) place: Where,
    /// The reason: it is recorded in the engine, and the former holders are told
    #[arg(long, value_name = "WHY", value_parser = words)]
    pub(crate) why: String,
    /// Do not ask for confirmation
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The lock
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct Yield {
    #[command(flatten)]
    pub(crate) place: Where,
    /// Tell the holder why
    #[arg(long, value_name = "REASON", value_parser = words)]
    pub(crate) why: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The lock
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct Elect {
    #[command(flatten)]
    pub(crate) place: Where,
    #[command(flatten)]
    pub(crate) supervision: Supervision,
    /// How long a dead leader stays leader [env: LOCKKEEPER_TTL] [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) ttl: Option<Duration>,
    /// Stand at most this long; a bare number is in seconds [default: until elected]
    ///
    /// The limit includes the time for which the engine does not answer, and starts again with every
    /// candidacy.
    #[arg(short = 'w', long, visible_alias = "timeout", value_name = "DURATION", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) wait: Option<Duration>,
    /// A note about this candidate, which --observe prints
    #[arg(long, value_name = "WHAT")]
    pub(crate) note: Option<String>,
    /// Do not stand again after leadership was lost
    #[arg(long)]
    pub(crate) once: bool,
    /// Stand again even after the command has ended by itself
    #[arg(long, conflicts_with = "once")]
    pub(crate) forever: bool,
    /// Only print the leader, whenever it changes; with --json as JSON
    #[arg(long, conflicts_with_all = ["argv", "once", "forever", "wait"])]
    pub(crate) observe: bool,
    /// The polling interval of --observe
    #[arg(long, value_name = "DURATION", value_parser = some_time, allow_negative_numbers = true, default_value = "1s")]
    pub(crate) interval: Duration,
    /// The election
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The command and its arguments, after `--`
    #[arg(value_name = "CMD", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments, required_unless_present = "observe")]
    pub(crate) argv: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// All engines of this build, as a Markdown table
    #[arg(long, conflicts_with = "url")]
    pub(crate) table: bool,
    /// The tables and functions of postgres: or mysql:, for an administrator to run
    #[arg(long, conflicts_with = "table")]
    pub(crate) schema: bool,
    /// The engine [default: as for `run`]
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) secret: Secret,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The engine [default: as for `run`]
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) secret: Secret,
    /// The total time of all measurements
    #[arg(long, value_name = "DURATION", value_parser = some_time, allow_negative_numbers = true, default_value = "10s")]
    pub(crate) seconds: Duration,
    /// The number of contending processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = processes, allow_negative_numbers = true)]
    pub(crate) processes: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The engine [default: as for `run`]
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Write lockkeeper.1, lockkeeper-run.1, … to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}
