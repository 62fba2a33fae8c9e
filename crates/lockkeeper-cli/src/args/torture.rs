//! The options of `torture`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use lockkeeper_testkit::bugs::Bug;
use lockkeeper_testkit::storm::Kind;

use super::common::{Secret, duration, processes, some_time};

#[derive(Debug, Args)]
pub(crate) struct Torture {
    #[command(flatten)]
    pub(crate) secret: Secret,
    /// Start this engine on this machine, and torture that; may be repeated
    #[arg(long, value_name = "ENGINE", value_delimiter = ',', conflicts_with = "url", value_parser = PossibleValuesParser::new(crate::torture::LOCAL))]
    pub(crate) local: Vec<String>,
    /// Simulate clients, network and store in one process, in simulated time
    ///
    /// Thousands of small systems, each determined by its seed.
    #[arg(long, conflicts_with_all = ["url", "local", "clients", "tasks", "keys", "ttl", "kinds", "faults", "rate", "each"])]
    pub(crate) simulate: bool,
    /// How long to cause faults, for each engine
    #[arg(long, value_name = "DURATION", value_parser = some_time, allow_negative_numbers = true, default_value = "30s")]
    pub(crate) seconds: Duration,
    /// Stop after this many cycles of acquire and release, if that is earlier
    ///
    /// With --simulate, the number of systems.
    #[arg(long, value_name = "N")]
    pub(crate) cycles: Option<usize>,
    /// The number of client processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = processes, allow_negative_numbers = true)]
    pub(crate) clients: u32,
    /// The number of tasks of each client process
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) tasks: u32,
    /// The number of keys for each kind of lock
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) keys: u32,
    /// The lease of every lock
    #[arg(long, value_name = "DURATION", value_parser = lease, allow_negative_numbers = true, default_value = "2s")]
    pub(crate) ttl: Duration,
    /// The kinds of locks [default: all that the engine has]
    ///
    /// `mutex=5,fair` uses five mutexes for each fair lock.
    #[arg(long, value_name = "KIND[=WEIGHT]", value_delimiter = ',', value_parser = kind)]
    pub(crate) kinds: Vec<(Kind, u8)>,
    /// The faults, or none [default: all that are possible]
    ///
    /// The message about a fault that is not known lists the others.
    #[arg(long, value_name = "FAULT", value_delimiter = ',')]
    pub(crate) faults: Vec<String>,
    /// How many brief faults each client process has in a second: drop, reset, swallow-reply
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rate: u32,
    /// Cause each fault alone, round by round, and all of them together in a last round
    ///
    /// The result then has a row for each fault. Begins again as long as there is time.
    #[arg(long)]
    pub(crate) each: bool,
    /// Repeat the choices of an earlier run
    ///
    /// With --simulate, a seed repeats a run exactly. Otherwise it repeats the choice of faults, locks
    /// and keys; the timing of processes is never the same twice.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Put this bug into the engine: the run must find it
    ///
    /// Without URL and --local, implies --simulate.
    #[arg(long, value_name = "NAME", value_parser = bug)]
    pub(crate) mutant: Option<Bug>,
    /// Write the result to this file, as a page for a browser that needs no other file
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Do not ask, even if the servers are not on this machine
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The engine [default: as for `run`]
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,
}

fn kind(text: &str) -> Result<(Kind, u8), String> {
    let (name, weight) = text.split_once('=').unwrap_or((text, "1"));
    let names = || Kind::ALL.map(Kind::name).join(", ");
    let kind = Kind::named(name).ok_or_else(|| format!("it is one of: {}", names()))?;
    match weight.parse() {
        Ok(weight @ 1..=100) => Ok((kind, weight)),
        _ => Err(format!("a weight is a number from 1 to 100, as in {name}=5")),
    }
}

fn bug(text: &str) -> Result<Bug, String> {
    let names = || Bug::ALL.iter().map(|bug| bug.name()).collect::<Vec<_>>().join(", ");
    let found = Bug::ALL.iter().copied().find(|bug| bug.name() == text);
    found.ok_or_else(|| format!("it is one of: {}", names()))
}

fn lease(text: &str) -> Result<Duration, String> {
    let shortest = Duration::from_millis(500);
    duration(text)?.checked_sub(shortest).map_or_else(
        || Err("it is at least 500ms: processes are stopped and resumed within a lease".to_owned()),
        |more| Ok(more + shortest),
    )
}
