//! `bench`: how fast an engine is, next to the minimum that its own operations take.
//!
//! Everything is measured in the same run, on the same machine, under the same load, because
//! figures from elsewhere cannot be compared. Contention is between real processes, unless the
//! engine is limited to one process.

mod redis;
mod redis_floor;
pub(crate) mod worker;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper::engine::{Scope, Support};
use serde::Serialize;
use tokio::sync::Mutex;

use crate::acquire::interruptible;
use crate::args::{Bench, Where};
use crate::bench::worker::{Crew, Hold, Work};
use crate::config::Config;
use crate::exit::{self, Failure};
use crate::output::print;
use crate::run::signals::Signals;
use crate::table::Table;

/// The figures.
#[derive(Debug, Serialize)]
struct Figures {
    url: String,
    /// Acquire and release, awaited, by one task alone.
    cycle: Spread,
    /// Acquire, and drop the guard.
    cycle_dropped: Spread,
    /// The engine's own operations, without the library.
    cycle_floor: Option<Spread>,
    /// From the call of one contender's release to the next one's grant.
    hand_off: Spread,
    hand_off_floor: Option<Spread>,
    /// Jain's index over the grants per contender: 1 is even, 1/n is all for one.
    fairness: f64,
    fairness_floor: Option<f64>,
    contenders: u32,
    /// What contended: processes, or tasks if the engine is limited to one process.
    between: &'static str,
    /// The same between tasks of one process that hand the lock over among themselves, if the
    /// engine supports that, and through the store.
    handed_over: Option<Spread>,
    through_the_store: Spread,
    /// Figures for Redis only.
    #[serde(skip_serializing_if = "Option::is_none")]
    redis: Option<redis::Figures>,
}

/// Microseconds, and operations per second.
#[derive(Debug, Serialize)]
struct Spread {
    p50: f64,
    p99: f64,
    per_second: f64,
    samples: usize,
}

pub(crate) async fn bench(args: Bench) -> exit::Outcome {
    let signals = Signals::collect().map_err(|error| Failure::own("listen for signals", error))?;
    if args.seconds < Duration::from_millis(500) {
        return Err(Failure::usage("--seconds must be at least 0.5"));
    }
    let figures = interruptible(measure(&args), &signals).await?;
    if args.json {
        print(&(serde_json::to_string(&figures).expect("plain fields serialize") + "\n"))?;
    } else {
        print(&figures.to_text())?;
    }
    Ok(0)
}

async fn measure(args: &Bench) -> Result<Figures, Failure> {
    let place = Where { url: args.url.clone(), secret: args.secret.clone() };
    let endpoint = Config::load()?.endpoint(&place)?;
    let url = endpoint.spell_out();
    let client = Client::connect(&url).await?;
    let key = format!("lockkeeper-bench-{}", std::process::id());
    let slice = args.seconds / 6;
    let lock = || client.mutex(&key);

    let cycle = cycle(slice, async || {
        lock().acquire().await?.release().await?;
        Ok(())
    });
    let cycle = cycle.await?;
    let cycle_dropped = self::cycle(slice, async || {
        drop(lock().acquire().await?);
        Ok(())
    });
    let cycle_dropped = cycle_dropped.await?;

    let scratch = Scratch::of(&client);
    let cycle_floor = match (&scratch, client.guarantees().scope) {
        (Some(scratch), _) => Some(self::cycle(slice, async || scratch.open_lock_close()).await?),
        (None, Scope::Process) => {
            let mutex = Mutex::new(());
            let locked = async || {
                drop(mutex.lock().await);
                Ok(())
            };
            Some(self::cycle(slice, locked).await?)
        }
        _ => None,
    };

    let crew = Crew { contenders: args.processes, time: slice };
    let holds = match client.guarantees().scope {
        Scope::Process => worker::tasks(&crew, &lock().hand_over(false)).await?,
        _ => crew.run(&Work::Lock { url, key: key.clone() }).await?,
    };
    let floor = match &scratch {
        Some(scratch) => Some(crew.run(&Work::Flock { path: scratch.path.clone() }).await?),
        None => None,
    };
    let (handed_over, through_the_store) = between_tasks(&client, &key, slice).await?;
    let redis = redis::measure(&endpoint, &client, args.seconds).await?;
    let between = if client.guarantees().scope == Scope::Process { "tasks" } else { "processes" };
    let figures = Figures {
        url: client.place().to_owned(),
        cycle,
        cycle_dropped,
        cycle_floor,
        hand_off: hand_off(&holds, slice),
        hand_off_floor: floor.as_ref().map(|floor| hand_off(floor, slice)),
        fairness: fairness(&holds),
        fairness_floor: floor.as_ref().map(|floor| fairness(floor)),
        contenders: args.processes,
        between,
        handed_over,
        through_the_store,
        redis,
    };
    client.close().await;
    Ok(figures)
}

/// Repeats something for a time, and returns how long each took.
async fn cycle(
    time: Duration,
    work: impl AsyncFnMut() -> Result<(), Failure>,
) -> Result<Spread, Failure> {
    let mut meter = Meter::default();
    meter.run(time, work).await?;
    Ok(meter.spread())
}

/// Collects durations, in one go or in several.
#[derive(Debug, Default)]
struct Meter {
    took: Vec<f64>,
    spent: Duration,
}

impl Meter {
    /// Repeats something for a time.
    async fn run(
        &mut self,
        time: Duration,
        mut work: impl AsyncFnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let started = Instant::now();
        while started.elapsed() < time {
            let before = Instant::now();
            work().await?;
            self.took.push(before.elapsed().as_nanos() as f64 / 1e3);
        }
        self.spent += started.elapsed();
        Ok(())
    }

    fn spread(self) -> Spread {
        let per_second = self.took.len() as f64 / self.spent.as_secs_f64();
        Spread::of(self.took, per_second)
    }
}

/// How many tasks of one process contend.
const TASKS: u32 = 16;

/// The hand-off between tasks of one process, handed over and through the store, in turns: what
/// else the machine does hits both alike.
async fn between_tasks(
    client: &Client,
    key: &str,
    time: Duration,
) -> Result<(Option<Spread>, Spread), Failure> {
    let crew = Crew { contenders: TASKS, time: time / 8 };
    let is_supported = client.guarantees().hand_over == Support::Yes;
    let mut holds = [vec![Vec::new(); TASKS as usize], vec![Vec::new(); TASKS as usize]];
    for round in 0..8 {
        let hand_over = round % 2 == 0 && is_supported;
        let some = worker::tasks(&crew, &client.mutex(key).hand_over(hand_over)).await?;
        for (all, some) in holds[usize::from(hand_over)].iter_mut().zip(some) {
            all.extend(some);
        }
    }
    let [through_the_store, handed_over] = holds;
    let time = if is_supported { time / 2 } else { time };
    let handed_over = is_supported.then(|| hand_off(&handed_over, time));
    Ok((handed_over, hand_off(&through_the_store, time)))
}

/// From each release to the next grant, if that went to another contender.
fn hand_off(holds: &[Vec<Hold>], time: Duration) -> Spread {
    let mut all: Vec<(usize, Hold)> = holds
        .iter()
        .enumerate()
        .flat_map(|(n, holds)| holds.iter().map(move |h| (n, *h)))
        .collect();
    all.sort_by_key(|(_, hold)| hold.granted);
    let gaps: Vec<f64> = all
        .windows(2)
        .filter(|pair| pair[0].0 != pair[1].0)
        .map(|pair| pair[1].1.granted.saturating_sub(pair[0].1.released) as f64 / 1e3)
        .collect();
    let per_second = gaps.len() as f64 / time.as_secs_f64();
    Spread::of(gaps, per_second)
}

fn fairness(holds: &[Vec<Hold>]) -> f64 {
    let counts = || holds.iter().map(|holds| holds.len() as f64);
    let squares: f64 = counts().map(|n| n * n).sum();
    if squares == 0.0 {
        0.0
    } else {
        counts().sum::<f64>().powi(2) / (holds.len() as f64 * squares)
    }
}

impl Spread {
    fn of(mut samples: Vec<f64>, per_second: f64) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let n = (samples.len() as f64 * share) as usize;
            samples.get(n.min(samples.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
        };
        Self { p50: at(0.5), p99: at(0.99), per_second, samples: samples.len() }
    }
}

impl Figures {
    fn to_text(&self) -> String {
        let mut table = Table::new(["", "P50", "P99", "PER SECOND", "AGAINST THE FLOOR"]);
        let micros = |value: f64| format!("{value:.1} µs");
        let mut row = |name: &str, spread: &Spread, floor: Option<&Spread>| {
            let ratio = floor.map(|floor| format!("{:.2}×", spread.p50 / floor.p50));
            table.row([
                name.to_owned(),
                micros(spread.p50),
                micros(spread.p99),
                format!("{:.0}", spread.per_second),
                ratio.unwrap_or_default(),
            ]);
        };
        let floor = self.cycle_floor.as_ref();
        row("cycle, release awaited", &self.cycle, floor);
        row("cycle, guard dropped", &self.cycle_dropped, floor);
        if let Some(floor) = floor {
            row("floor: the engine's own means", floor, None);
        }
        row("hand-off", &self.hand_off, self.hand_off_floor.as_ref());
        if let Some(floor) = &self.hand_off_floor {
            row("floor: flock on one file", floor, None);
        }
        row(&format!("{TASKS} tasks, through the store"), &self.through_the_store, None);
        if let Some(handed_over) = &self.handed_over {
            row(&format!("{TASKS} tasks, handed over"), handed_over, None);
        }
        let fairness = match self.fairness_floor {
            Some(floor) => format!("{:.3} (flock: {floor:.3})", self.fairness),
            None => format!("{:.3}", self.fairness),
        };
        let (n, between) = (self.contenders, self.between);
        let redis = self.redis.as_ref().map(redis::Figures::to_text).unwrap_or_default();
        format!("{}\n{table}fairness over {n} {between} (1 is even): {fairness}\n{redis}", self.url)
    }
}

/// A file next to those of the engine, for the floor. Removed at the end.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// `None` for engines that do not use files of this machine.
    fn of(client: &Client) -> Option<Self> {
        let path = client.place().strip_prefix("file:")?.split('?').next()?.to_owned();
        let named = path.trim_start_matches("//");
        let directory = match named {
            "" | "/" => {
                let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
                let home = || {
                    std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"))
                };
                state.or_else(home)?.join("lockkeeper/locks")
            }
            named => PathBuf::from(named),
        };
        Some(Self { path: directory.join(format!(".bench-{}", std::process::id())) })
    }

    fn open_lock_close(&self) -> Result<(), Failure> {
        let locked = worker::open(&self.path).and_then(|file| file.lock());
        locked.map_err(|error| Failure::own("lock a scratch file", error))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(granted: u64, released: u64) -> Hold {
        Hold { granted, released }
    }

    #[test]
    fn only_hand_offs_between_contenders_count() {
        let holds = [vec![hold(0, 1_000), hold(2_000, 3_000)], vec![hold(8_000, 9_000)]];
        let spread = hand_off(&holds, Duration::from_secs(1));
        assert_eq!((spread.samples, spread.p50), (1, 5.0));
    }

    #[test]
    fn jains_index_is_one_when_even_and_one_nth_when_not() {
        let some = vec![hold(0, 0); 5];
        assert_eq!(fairness(&[some.clone(), some.clone()]), 1.0);
        assert_eq!(fairness(&[some, vec![]]), 0.5);
    }
}
