//! The contenders of `bench`: this program again, as often as requested, or tasks of one process.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper::{Client, Lock};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::exit::{self, Failure};

/// The hidden verb.
pub(crate) const VERB: &str = "__bench-worker";

/// What a worker contends for. Contains the URL with its secrets, which is why it is not in argv.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Work {
    Lock { url: String, key: String },
    Flock { path: PathBuf },
}

/// When a hold started and ended, by a clock that all processes of a machine share, in nanoseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Hold {
    pub(crate) granted: u64,
    pub(crate) released: u64,
}

/// How many contend, and for how long.
#[derive(Debug)]
pub(crate) struct Crew {
    pub(crate) contenders: u32,
    pub(crate) time: Duration,
}

impl Crew {
    /// Runs contending processes, and returns the holds of each.
    pub(crate) async fn run(&self, work: &Work) -> Result<Vec<Vec<Hold>>, Failure> {
        let refuse = |error: io::Error| Failure::own("run contending processes", error);
        let order = serde_json::to_string(&(work, self.time)).expect("plain fields serialize");
        let mut members = (0..self.contenders)
            .map(|_| Member::start(&order))
            .collect::<io::Result<Vec<_>>>()
            .map_err(refuse)?;
        // All are connected before any starts.
        for member in &mut members {
            member.ready().map_err(refuse)?;
        }
        for member in &mut members {
            member.go().map_err(refuse)?;
        }
        tokio::time::sleep(self.time).await;
        members.into_iter().map(|member| member.holds().map_err(refuse)).collect()
    }
}

/// Runs contending tasks of this process.
pub(crate) async fn tasks(crew: &Crew, lock: &Lock) -> Result<Vec<Vec<Hold>>, Failure> {
    let until = now() + nanos(crew.time);
    let tasks: Vec<_> = (0..crew.contenders)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move {
                let mut holds = Vec::new();
                while now() < until {
                    let guard = lock.clone().acquire().await?;
                    let granted = now();
                    // Lets the others queue, as other processes would meanwhile.
                    tokio::task::yield_now().await;
                    holds.push(Hold { granted, released: now() });
                    guard.release().await?;
                }
                Ok::<_, lockkeeper::Error>(holds)
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.map_err(|error| Failure::own("contend", error))??);
    }
    Ok(all)
}

/// The entry point of a worker.
pub(crate) async fn main() -> exit::Outcome {
    let own = |error: io::Error| Failure::own("contend", error);
    let mut lines = io::stdin().lock().lines();
    let order = lines.next().and_then(Result::ok).unwrap_or_default();
    let (work, time): (Work, Duration) = serde_json::from_str(&order)
        .map_err(|_| Failure::usage(format!("{VERB} is not meant to be called; see bench")))?;
    let mut begin = || {
        println!("ready");
        lines.next();
        now() + nanos(time)
    };
    let mut holds = Vec::new();
    match work {
        Work::Lock { url, key } => {
            let client = Client::connect(url).await?;
            let until = begin();
            while now() < until {
                let guard = client.mutex(&key).acquire().await?;
                let granted = now();
                holds.push(Hold { granted, released: now() });
                guard.release().await?;
            }
            client.close().await;
        }
        Work::Flock { path } => {
            let file = open(&path).map_err(own)?;
            let until = begin();
            while now() < until {
                file.lock().map_err(own)?;
                let granted = now();
                holds.push(Hold { granted, released: now() });
                file.unlock().map_err(own)?;
            }
        }
    }
    println!("{}", serde_json::to_string(&holds).expect("plain fields serialize"));
    Ok(0)
}

/// Opens a scratch file, and creates it if it does not exist.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path)
}

/// A contending process; it ends with us.
struct Member {
    process: Child,
}

impl Member {
    fn start(order: &str) -> io::Result<Self> {
        let mut process = Command::new("/proc/self/exe")
            .arg0("lockkeeper")
            .arg(VERB)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = process.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{order}")?;
        Ok(Self { process })
    }

    fn ready(&mut self) -> io::Result<()> {
        let stdout = self.process.stdout.as_mut().expect("it is piped");
        let mut word = [0; "ready\n".len()];
        stdout.read_exact(&mut word)
    }

    fn go(&mut self) -> io::Result<()> {
        writeln!(self.process.stdin.as_mut().expect("it is piped"))
    }

    fn holds(mut self) -> io::Result<Vec<Hold>> {
        let mut text = String::new();
        self.process.stdout.as_mut().expect("it is piped").read_to_string(&mut text)?;
        self.process.wait()?;
        Ok(serde_json::from_str(&text)?)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Has no effect on a process that has ended and was reaped.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| nanos(time.into()))
}
