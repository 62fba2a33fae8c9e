//! The command `lockkeeper`: mutual exclusion for scripts, cron jobs and people.
//!
//! [`run`] is the heart. [`detached`] has the locks that outlive the command that acquired them,
//! [`inspect`] shows holders and waiters, [`ui`] does so in a browser, [`bench`] measures, [`torture`]
//! tries whether an engine keeps its promises.

mod acquire;
mod args;
mod bench;
mod complete;
mod config;
mod detached;
mod doctor;
mod elect;
mod exit;
mod explain;
mod inspect;
mod manual;
mod output;
mod prompt;
mod run;
mod table;
mod top;
#[cfg(feature = "torture")]
mod torture;
mod ui;
mod waiting;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::args::{Cli, Verb};
use crate::exit::Failure;

fn main() -> ExitCode {
    let mut raw = std::env::args_os().skip(1);
    let verb = raw.next();
    // The hidden verbs, by which this program starts itself again. They come first because they
    // have to be fast.
    match verb.as_deref().and_then(OsStr::to_str) {
        Some(run::guardian::VERB) => run::guardian::main(raw),
        Some(detached::holder::VERB) => {
            detached::holder::close_inherited();
            return exit::report(block_on(detached::holder::main()));
        }
        Some(complete::VERB) => {
            let words = raw.map(|word| word.to_string_lossy().into_owned()).collect();
            return exit::report(block_on(complete::keys(words)));
        }
        #[cfg(feature = "torture")]
        Some(torture::VERB) => return torture::client(),
        Some(bench::worker::VERB) => return exit::report(block_on(bench::worker::main())),
        _ => {}
    }
    if verb.is_none() {
        return exit::report(output::print(args::EXAMPLES).map(|()| 0));
    }
    let cli = match args::read() {
        Ok(cli) => cli,
        Err(error) => return misread(&error),
    };
    exit::report(dispatch(cli))
}

fn block_on(work: impl Future<Output = exit::Outcome>) -> exit::Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::own("start", error))?;
    let outcome = runtime.block_on(work);
    // A thread may still be blocked in the kernel, waiting for a lock that is no longer wanted.
    runtime.shutdown_background();
    outcome
}

fn dispatch(cli: Cli) -> exit::Outcome {
    match cli.verb {
        Verb::Run(args) => block_on(run::run(*args)),
        Verb::Acquire(args) => block_on(detached::handle::acquire(args)),
        Verb::Renew(args) => detached::handle::renew(&args),
        Verb::Release(args) => detached::handle::release(&args),
        Verb::Ls(args) => block_on(inspect::ls(args)),
        Verb::Show(args) => block_on(inspect::show(args)),
        Verb::Watch(args) => block_on(inspect::watch(args)),
        Verb::Top(args) => block_on(top::top(args)),
        Verb::Ui(args) => block_on(ui::ui(*args)),
        Verb::Break(args) => block_on(inspect::break_lock(args)),
        Verb::Yield(args) => block_on(inspect::ask_to_yield(args)),
        Verb::Elect(args) => block_on(elect::elect(*args)),
        Verb::Explain(args) => explain::explain(args),
        Verb::Doctor(args) => block_on(doctor::doctor(args)),
        Verb::Bench(args) => block_on(bench::bench(args)),
        #[cfg(feature = "torture")]
        Verb::Torture(args) => torture::torture(&args),
        Verb::Completions(args) => complete::completions(&args),
        Verb::Man(args) => manual::man(args),
    }
}

/// Help goes to stdout; everything else is bad usage, and says what would have been accepted.
fn misread(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // In colour on a terminal only.
            let printed = error.print().and_then(|()| io::stdout().flush());
            exit::report(output::printed(printed).map(|()| 0))
        }
        _ => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            output::stderr(&format!("lockkeeper: {text}"));
            ExitCode::from(exit::USAGE)
        }
    }
}
