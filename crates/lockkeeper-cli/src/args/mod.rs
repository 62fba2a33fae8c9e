//! The command line: the verbs, each with one line for `-h`, a paragraph for `--help` and an
//! example.
//!
//! [`common`] has the options that several verbs share, [`verbs`] those of each. What they do is
//! implemented elsewhere.

mod common;
#[cfg(feature = "torture")]
mod torture;
mod verbs;

use std::env;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Error, Parser, Subcommand};

pub(crate) use self::common::{OnLost, OnYield, Secret, Supervision, Terms, Where};
#[cfg(feature = "torture")]
pub(crate) use self::torture::Torture;
pub(crate) use self::verbs::{
    Acquire, Bench, Break, Completions, Doctor, Elect, Explain, Ls, Man, Release, Renew, Run, Show,
    Top, Ui, Watch, Yield,
};

use crate::output::human;

/// Printed by `lockkeeper` alone. All of it works on a machine with nothing installed.
pub(crate) const EXAMPLES: &str = "\
lockkeeper holds a lock while a command runs. Three examples that work right here:

  lockkeeper run backup -- sleep 60          one at a time; a second one waits for the first
  lockkeeper run -n backup -- echo done      do not wait: exit 75 if it is held
  lockkeeper show backup                     who holds it, and who waits

More: lockkeeper --help, lockkeeper run --help.
";

/// The exit codes in short, for two help pages.
macro_rules! exit_codes {
    () => {
        "\
Exit codes: the command's own; 128+n if signal n ended it; 64 bad usage; 69 engine unreachable;
75 busy or timed out; 79 lock lost; 124 --max-hold reached; 125 own failure;
126 command not executable; 127 command not found."
    };
}

/// The environment variables of the commands of `run` and `elect`.
macro_rules! variables {
    () => {
        "\
Variables of the command: LOCKKEEPER_KEY, LOCKKEEPER_FENCE (send it with every write), LOCKKEEPER_OWNER,
LOCKKEEPER_URL (without its password), LOCKKEEPER_KIND, LOCKKEEPER_HELD=1."
    };
}

/// Mutual exclusion between processes and machines.
///
/// Locks are kept by an engine, which a URL selects. The default is files of this user on this
/// machine, which need nothing installed.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version, after_help = exit_codes!())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Parses the command line.
pub(crate) fn read() -> Result<Cli, Error> {
    let mut cli = Cli::try_parse()?;
    if let Verb::Run(args) = &cli.verb
        && let (Some(least), Some(most)) = (args.min_hold, args.max_hold)
        && least > most
    {
        let refused = format!(
            "--min-hold {} is longer than --max-hold {}, which ends the command; it must be shorter\n",
            human(least),
            human(most)
        );
        return Err(Error::raw(ErrorKind::ValueValidation, refused));
    }
    let (first, argv) = match &mut cli.verb {
        Verb::Run(args) => (&args.key, &mut args.argv),
        Verb::Elect(args) => (&args.name, &mut args.argv),
        _ => return Ok(cli),
    };
    // Only after `--` can a key start with a dash; no command does.
    if first.starts_with('-') {
        if argv.first().is_some_and(|word| word == "--") {
            argv.remove(0);
        }
        return Ok(cli);
    }
    // Everything after `--` is the command: its first word is not the missing key.
    if env::args_os().skip_while(|word| word != "--").nth(1).is_some_and(|word| word == **first)
        && let Err(error) = Cli::try_parse_from(env::args_os().take_while(|word| word != "--"))
        && let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg)
        && let Some(name) = missing.iter().find(|name| *name == "<KEY>" || *name == "<NAME>")
    {
        let verb = if name == "<KEY>" { "run" } else { "elect" };
        let refused = format!(
            "{name} is missing: all that follows `--` is the command\n\n  \
             tip: put it before the dashes: lockkeeper {verb} {name} -- CMD [ARG]...; \
             only one that starts with a dash may follow them\n"
        );
        return Err(Error::raw(ErrorKind::MissingRequiredArgument, refused));
    }
    Ok(cli)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Hold a lock while a command runs
    ///
    /// The command runs in its own process group. The lock is released when the command and all
    /// processes left in its session have ended. If the lock is lost, all descendants of the
    /// command are ended, daemons included, before anyone else can acquire the lock; only `break`
    /// frees the lock at once.
    #[command(
        override_usage = "\
lockkeeper run [OPTIONS] <KEY> -- <CMD> [ARG]...
       lockkeeper run [OPTIONS] -c <STRING> <KEY>",
        after_help = concat!(
            "\
Example: one nightly backup, however often cron starts it:
  lockkeeper run -n --skip-ok backup -- /usr/local/bin/backup --full

",
            variables!(),
            "\n\n",
            exit_codes!()
        )
    )]
    Run(Box<Run>),

    /// Acquire a lock and return, for scripts that cannot nest
    ///
    /// Prints a handle for `renew` and `release`. A small process on this machine keeps the lock
    /// until the handle is released, its time is up, or the process named with --pid is gone.
    #[command(after_help = "\
Example:
  handle=$(lockkeeper acquire deploy --lease 10m --pid $$) || exit
  ./deploy && lockkeeper release \"$handle\"")]
    Acquire(Acquire),

    /// Extend the lease of a handle
    ///
    /// Counts from now. Exits 79 if the lock is no longer held, and 69 if the engine does not
    /// answer.
    #[command(after_help = "\
Example:
  lockkeeper renew \"$handle\" --lease 10m")]
    Renew(Renew),

    /// Release a handle
    ///
    /// Exits 0 if the lock was held until now, 79 if it was lost before, so that someone else may
    /// have held it meanwhile, and 69 if the engine does not confirm the release.
    #[command(after_help = "\
Example:
  lockkeeper release \"$handle\"")]
    Release(Release),

    /// List the locks in use
    ///
    /// One line per holder and waiter. "unknown" means that the engine does not have the
    /// information.
    #[command(after_help = "\
Example:
  lockkeeper ls deploy/ --json | jq '.[].key'")]
    Ls(Ls),

    /// Show one lock: holders, and waiters in order
    ///
    /// Exits 0 if it is held, and 1 if it is not.
    #[command(after_help = "\
Example:
  lockkeeper show backup")]
    Show(Show),

    /// Follow the locks in use
    ///
    /// Redraws a table on a terminal, and prints one line per change elsewhere.
    #[command(after_help = "\
Example:
  lockkeeper watch deploy/ --interval 500ms")]
    Watch(Watch),

    /// Show holders and waiters on the terminal, live, for several engines
    ///
    /// Sort with s, filter with /, Enter shows the details of a lock, ? lists the keys. A holder is asked
    /// to yield with y, and a lock is broken with b, after a confirmation. `watch` is for pipes.
    #[command(after_help = "\
Example:
  lockkeeper top redis://cache.example postgres://db.example/app")]
    Top(Top),

    /// Show the locks of several engines in a browser, live
    ///
    /// Serves a page on this machine: current and past holders, waiters, since when, and who blocks
    /// whom. It changes nothing unless --allow-changes is given. Prints the address to open.
    #[command(after_help = "\
Example:
  lockkeeper ui redis://cache.example postgres://db.example/locks
  lockkeeper ui --allow-changes --record history.jsonl")]
    Ui(Box<Ui>),

    /// Free a lock that someone else holds
    ///
    /// For operators. The holder detects it at its next renewal, and may still be working until
    /// then; the next grant has a higher fence, so a resource that checks fences rejects the former
    /// holder.
    #[command(after_help = "\
Example:
  lockkeeper break backup --why 'host backup-3 is gone for good'")]
    Break(Break),

    /// Ask the holders of a lock to release it
    ///
    /// Nothing is taken away: a holder that runs under `lockkeeper run` is sent TERM, unless
    /// --on-yield says otherwise, and releases the lock when it ends. A holder of another library
    /// cannot be asked.
    #[command(after_help = "\
Example:
  lockkeeper yield --url zookeeper://h1,h2,h3 reindex")]
    Yield(Yield),

    /// Run a command while leading
    ///
    /// Waits to be elected, runs the command, and stands for election again if leadership is lost.
    #[command(
        override_usage = "\
lockkeeper elect [OPTIONS] <NAME> -- <CMD> [ARG]...
       lockkeeper elect [OPTIONS] <NAME> --observe",
        after_help = concat!("\
Example:
  lockkeeper elect scheduler -- ./scheduler
  lockkeeper elect scheduler --observe

", variables!())
    )]
    Elect(Box<Elect>),

    /// Explain what an engine promises, and what it does not
    ///
    /// In plain sentences, generated from the data that the library itself uses.
    #[command(after_help = "\
Example:
  lockkeeper explain file:
  lockkeeper explain --schema postgres: | psql locks")]
    Explain(Explain),

    /// Check a real deployment
    ///
    /// Checks permissions, persistence, clocks and network file systems. Exits 1 if there is a
    /// problem; warnings do not count.
    #[command(after_help = "\
Example:
  lockkeeper doctor file:///var/lib/app/locks")]
    Doctor(Doctor),

    /// Measure an engine against its own floor
    ///
    /// Measures the uncontended cycle, the hand-off between processes and fairness, next to the
    /// minimum that the engine's own operations take in the same run.
    #[command(after_help = "\
Example:
  lockkeeper bench file: --seconds 5")]
    Bench(Bench),

    /// Test whether an engine keeps its promises under faults
    ///
    /// Client processes of lockkeeper use locks at the engine, while they are stopped and killed and
    /// their connections are cut, delayed and deprived of replies. Every grant and every access to a
    /// resource that the locks protect is recorded and checked. Exits 1 if a promise was broken, and
    /// shows the smallest part of the history that proves it.
    #[cfg(feature = "torture")]
    #[command(after_help = "\
Example:
  lockkeeper torture redis://127.0.0.1 --seconds 1m
  lockkeeper torture --local etcd
  lockkeeper torture --mutant release-without-owner-check")]
    Torture(Box<Torture>),

    /// Print completions for a shell
    ///
    /// Those for bash, zsh and fish also complete the keys of locks in use, and commands after
    /// `--`.
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
