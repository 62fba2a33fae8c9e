//! What can be typed. What it means is elsewhere.
//!
//! A long flat file: the same shape for every verb, with one line for `-h`, a paragraph for `--help`
//! and an example.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use serde::{Deserialize, Serialize};

/// Shown by `lockkeeper` alone. All of it works on a machine with nothing installed.
pub(crate) const EXAMPLES: &str = "\
lockkeeper holds a lock while a command runs. Three examples that work right here:

  lockkeeper run backup -- sleep 60          one at a time; a second one waits for the first
  lockkeeper run -n backup -- echo done      do not wait: exit 75 if somebody is in
  lockkeeper show backup                     who holds it, and who waits

More: lockkeeper --help, lockkeeper run --help.
";

/// Mutual exclusion between processes and machines.
///
/// Locks live in an engine that a URL names. Without one they are files of this machine, which needs
/// nothing installed.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const EXIT_CODES: &str = "\
Exit codes: the command's own; 128+n if signal n ended it; 64 bad usage; 69 engine unreachable;
75 busy or timed out; 79 lock lost; 124 --max-hold reached; 125 own failure;
126 command not executable; 127 command not found.";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Hold a lock while a command runs
    ///
    /// The command runs in its own process group. The lock is released when the whole group is gone;
    /// if the lock is lost, the group is ended before anyone else can hold the lock.
    #[command(after_help = "\
Example: one nightly backup, however often cron starts it:
  lockkeeper run -n --skip-ok backup -- /usr/local/bin/backup --full")]
    Run(Box<Run>),

    /// Take a lock and return, for scripts that cannot nest
    ///
    /// Prints a handle for `renew` and `release`. A small process on this machine keeps the lock until
    /// the handle is released, its time is up, or the process named with --pid is gone.
    #[command(after_help = "\
Example:
  handle=$(lockkeeper acquire deploy --lease 10m --pid $$) || exit
  ./deploy && lockkeeper release \"$handle\"")]
    Acquire(Acquire),

    /// Give a handle more time
    ///
    /// Counts from now. Fails with 79 if the lock is not held any more.
    #[command(after_help = "\
Example:
  lockkeeper renew \"$handle\" --lease 10m")]
    Renew(Renew),

    /// Release a handle
    ///
    /// Exits with 0 if the lock was ours until now, and with 79 if it was lost before: then somebody
    /// else may have been in meanwhile.
    #[command(after_help = "\
Example:
  lockkeeper release \"$handle\"")]
    Release(Release),

    /// List the locks in use
    ///
    /// One line per holder and waiter. \"unknown\" means that the engine cannot tell.
    #[command(after_help = "\
Example:
  lockkeeper ls deploy/ --json | jq '.[].key'")]
    Ls(Ls),

    /// Show one lock: holders, and waiters in order
    ///
    /// Exits with 0 also if nobody holds it, and says so.
    #[command(after_help = "\
Example:
  lockkeeper show backup")]
    Show(Show),

    /// Follow the locks in use
    ///
    /// Redraws a table on a terminal; elsewhere prints one line per change.
    #[command(after_help = "\
Example:
  lockkeeper watch deploy/ --interval 500ms")]
    Watch(Watch),

    /// Free a lock that somebody else holds
    ///
    /// For operators. The holder learns of it at its next renewal, and may still be at work until then;
    /// the next grant has a higher fence, by which a resource can refuse the former holder.
    #[command(after_help = "\
Example:
  lockkeeper break backup --why 'host backup-3 is gone for good'")]
    Break(Break),

    /// Ask whoever holds a lock to give way
    ///
    /// Nothing is taken away: a holder that runs under `lockkeeper run` is sent TERM unless it was told
    /// otherwise with --on-yield, and releases the lock when it ends. Engines that cannot carry the
    /// question refuse.
    #[command(after_help = "\
Example:
  lockkeeper yield --url zookeeper://h1,h2,h3 reindex")]
    Yield(Yield),

    /// Run a command while being the leader
    ///
    /// Waits to be elected, runs the command, and stands again when leadership was lost.
    #[command(after_help = "\
Example:
  lockkeeper elect scheduler -- ./scheduler
  lockkeeper elect scheduler --observe")]
    Elect(Box<Elect>),

    /// Say what an engine promises, and what it does not
    ///
    /// In plain sentences, from the same data that the library itself obeys.
    #[command(after_help = "\
Example:
  lockkeeper explain file:
  lockkeeper explain --schema postgres: | psql locks")]
    Explain(Explain),

    /// Check a real deployment
    ///
    /// Looks for what would hurt: permissions, persistence, clocks, network file systems. Exits with 1
    /// if there is a problem.
    #[command(after_help = "\
Example:
  lockkeeper doctor file:///var/lib/app/locks")]
    Doctor(Doctor),

    /// Measure an engine against its own floor
    ///
    /// Uncontended cycle, hand-off between processes, fairness; beside them the least that the engine's
    /// own means would take, measured in the same run.
    #[command(after_help = "\
Example:
  lockkeeper bench file: --seconds 5")]
    Bench(Bench),

    /// Print completions for a shell
    #[command(after_help = "\
Example:
  lockkeeper completions bash > /etc/bash_completion.d/lockkeeper")]
    Completions(Completions),

    /// Print the manual page, or write one page per verb
    #[command(after_help = "\
Example:
  lockkeeper man | man -l -")]
    Man(Man),
}

/// Where the locks are.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Where {
    /// The engine [env: LOCKKEEPER_URL] [default: file:]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A file with the engine's password [env: LOCKKEEPER_PASSWORD_FILE]
    ///
    /// The password may also be in LOCKKEEPER_PASSWORD. It is never printed.
    #[arg(long, value_name = "PATH")]
    pub(crate) password_file: Option<PathBuf>,
}

/// How a lock is asked for.
#[derive(Debug, Args, Default, Serialize, Deserialize)]
pub(crate) struct Terms {
    /// Do not wait: exit 75 if the lock is busy
    #[arg(short = 'n', long, visible_alias = "nb", conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait at most so long; a bare number is seconds
    #[arg(short = 'w', long, visible_alias = "timeout", value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Share the lock with other --shared holders
    #[arg(short = 's', long, conflicts_with_all = ["exclusive", "limit"])]
    pub(crate) shared: bool,
    /// Hold the lock alone, also against --shared holders
    #[arg(short = 'x', long, visible_alias = "ex", short_alias = 'e', conflicts_with = "limit")]
    pub(crate) exclusive: bool,
    /// Let so many in at once; everyone must name the same number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
    /// First come, first served, also between processes
    #[arg(long)]
    pub(crate) fair: bool,
    /// How long the lock lasts after this machine died [env: LOCKKEEPER_TTL] [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Why, for people who look
    #[arg(long, value_name = "WHY")]
    pub(crate) note: Option<String>,
    /// Exit with N instead of 75 if the lock is busy
    #[arg(short = 'E', long, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,
}

/// What becomes of a command whose lock is held for it.
#[derive(Debug, Args)]
pub(crate) struct Care {
    /// From TERM to KILL when the command must end [env: LOCKKEEPER_GRACE] [default: 5s, at most ttl/4]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// What to do with the command when the lock is lost [default: term]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) on_lost: Option<OnLost>,
    /// What to do with the command when somebody asks for the lock with `yield`
    #[arg(long, value_enum, value_name = "WHAT", default_value = "term")]
    pub(crate) on_yield: OnYield,
    /// Say nothing
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say how long it waited and held
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// Say it as one JSON object on stderr at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Write one JSON object about how it went to this file
    #[arg(long, value_name = "PATH")]
    pub(crate) status_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, and KILL after the grace
    Term,
    /// KILL at once
    Kill,
    /// Let it run; the exit code is 79 all the same
    Ignore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnYield {
    /// TERM, once; when the command ends is up to it
    Term,
    /// USR1, for a command that knows what to do then
    Usr1,
    /// Let it run
    Ignore,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) place: Where,
    #[command(flatten)]
    pub(crate) terms: Terms,
    #[command(flatten)]
    pub(crate) care: Care,
    /// A fixed lease: not renewed, the command is ended with it
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "ttl")]
    pub(crate) lease: Option<Duration>,
    /// Enter again what an outer `run` holds under the same owner
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,
    /// End the command after so long, and exit 124
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the lock at least so long, also when the command ends sooner
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) min_hold: Option<Duration>,
    /// Run at most once per slot of so long, across machines
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) once_per: Option<Duration>,
    /// Exit 0 instead of 75 if the lock is busy
    #[arg(long, conflicts_with = "conflict_exit_code")]
    pub(crate) skip_ok: bool,
    /// Run a string with the shell
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "argv")]
    pub(crate) shell: Option<OsString>,
    /// The lock
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
    /// The command and its arguments, after `--`
    #[arg(value_name = "CMD", trailing_var_arg = true, required_unless_present = "shell")]
    pub(crate) argv: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) place: Where,
    #[command(flatten)]
    pub(crate) terms: Terms,
    /// Release by itself after so long, unless renewed
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5m")]
    pub(crate) lease: Duration,
    /// Release when this process is gone
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,
    /// The owner to hold it for [default: a random one]
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<String>,
    /// Print the handle and what belongs to it as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The lock
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// How long from now on
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5m")]
    pub(crate) lease: Duration,
    /// What `acquire` printed
    #[arg(value_name = "HANDLE")]
    pub(crate) handle: String,
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// What `acquire` printed
    #[arg(value_name = "HANDLE")]
    pub(crate) handle: String,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) place: Where,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
    /// Only locks whose key starts so
    #[arg(value_name = "PREFIX", default_value = "")]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) place: Where,
    /// For machines
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
    /// One JSON object per change
    #[arg(long)]
    pub(crate) json: bool,
    /// How often to look
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Only locks whose key starts so
    #[arg(value_name = "PREFIX", default_value = "")]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct Break {
    #[command(flatten)]
    pub(crate) place: Where,
    /// Why, which is said to stderr along with who was broken
    #[arg(long, value_name = "WHY")]
    pub(crate) why: String,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
    /// For machines
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
    /// For machines
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
    pub(crate) care: Care,
    /// How long a leader whose machine died stays leader [env: LOCKKEEPER_TTL] [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// What to tell about this candidate
    #[arg(long, value_name = "WHAT")]
    pub(crate) note: Option<String>,
    /// Do not stand again after leadership was lost
    #[arg(long)]
    pub(crate) once: bool,
    /// Stand again also when the command ended by itself
    #[arg(long, conflicts_with = "once")]
    pub(crate) forever: bool,
    /// Only print who leads, whenever that changes
    #[arg(long, conflicts_with_all = ["argv", "once", "forever"])]
    pub(crate) observe: bool,
    /// How often --observe looks
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1s")]
    pub(crate) interval: Duration,
    /// The election
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The command and its arguments, after `--`
    #[arg(value_name = "CMD", trailing_var_arg = true, required_unless_present = "observe")]
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
    /// A file with the engine's password
    #[arg(long, value_name = "PATH")]
    pub(crate) password_file: Option<PathBuf>,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
    /// The engine [default: as for `run`]
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// A file with the engine's password
    #[arg(long, value_name = "PATH")]
    pub(crate) password_file: Option<PathBuf>,
    /// How long all measurements take together
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10")]
    pub(crate) seconds: Duration,
    /// How many processes contend
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) processes: u32,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
    /// The engine [default: as for `run`]
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Write lockkeeper.1, lockkeeper-run.1, … to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

fn duration(text: &str) -> Result<Duration, String> {
    lockkeeper::url::parse_duration(text).map_err(|error| error.to_string())
}
