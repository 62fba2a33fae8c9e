//! Our own driver: what a Rust service does with a shared lock.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use lockkeeper::{Backoff, Client, Error, Guard, Lock, Multi, MultiGuard, Owner, Release, Result};
use tokio::runtime::Runtime;

use crate::resource::PERMITS;

/// How long it may take to reach the servers, which are already running.
const PATIENCE: Duration = Duration::from_secs(60);

/// Follows orders from the input until it ends.
pub(crate) fn serve(url: &str, lease: Duration, broken: bool) -> std::result::Result<(), String> {
    // The lease of all locks in ZooKeeper is the session.
    let session = format!("{url}?session={}ms", lease.as_millis());
    let url = if url.starts_with("zookeeper:") { &session } else { url };
    // Renewals run in parallel with the thread that reads orders.
    let runtime = Runtime::new().map_err(|error| error.to_string())?;
    let client = runtime.block_on(connect(url)).map_err(|error| error.to_string())?;
    let mut ours =
        Ours { runtime, client, lease, broken, owner: Owner::new(), held: HashMap::new() };
    println!("ready");
    for line in std::io::stdin().lines().map_while(std::result::Result::ok) {
        let words: Vec<_> = line.split(' ').collect();
        match ours.obey(&words) {
            Ok(answer) => println!("{answer}"),
            Err(problem) => println!("error {}", problem.replace('\n', " ")),
        }
    }
    Ok(())
}

/// A very busy machine may need more than one attempt to open a short session.
async fn connect(url: &str) -> Result<Client> {
    let started = Instant::now();
    loop {
        match Client::connect(url).await {
            Err(error) if error.is_retryable() && started.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            connected => return connected,
        }
    }
}

struct Ours {
    runtime: Runtime,
    client: Client,
    lease: Duration,
    /// Whether releases are those of a careless client.
    broken: bool,
    /// The process is one owner, as a thread is one for Redisson and Curator.
    owner: Owner,
    held: HashMap<String, Vec<Held>>,
}

enum Held {
    One(Guard),
    Several(MultiGuard),
}

impl Held {
    fn fence(&self) -> u64 {
        match self {
            Held::One(guard) => guard.fence().get(),
            Held::Several(_) => 0,
        }
    }

    async fn release(self) -> Result<Release> {
        match self {
            Held::One(guard) => guard.release().await,
            Held::Several(guards) => guards.release().await,
        }
    }
}

impl Ours {
    fn obey(&mut self, order: &[&str]) -> std::result::Result<String, String> {
        let said = |error: Error| error.to_string();
        match order {
            ["acquire", kind, name] => {
                let held = self.runtime.block_on(self.take(kind, name, true)).map_err(said)?;
                Ok(self.keep(kind, name, held.expect("it was waited for")))
            }
            ["try", kind, name] => {
                let held = self.runtime.block_on(self.take(kind, name, false)).map_err(said)?;
                Ok(held.map_or("busy".to_owned(), |held| self.keep(kind, name, held)))
            }
            ["release", kind, name] => {
                let held = self.held.get_mut(&format!("{kind} {name}")).and_then(Vec::pop);
                let held = held.ok_or("it is not held")?;
                self.runtime.block_on(held.release()).map_err(said)?;
                Ok("released".to_owned())
            }
            ["beside", kind, name] => {
                // Another task of this process is another owner.
                let guard = self.runtime.block_on(self.lock(kind, name).acquire()).map_err(said)?;
                let held = Held::One(guard);
                Ok(self.keep("beside", name, held))
            }
            [how @ ("hammer" | "endure"), kind, name, count, port, pause] => {
                let count = count.parse().map_err(|_| "how often?")?;
                let port = port.parse().map_err(|_| "which port?")?;
                let pause = pause.parse().map_err(|_| "how long?")?;
                self.hammer(kind, name, count, port, pause, *how == "endure")?;
                Ok("done".to_owned())
            }
            ["revoke", name] => {
                self.runtime.block_on(self.client.request_yield(name)).map_err(said)?;
                Ok("revoked".to_owned())
            }
            ["asked", name] => {
                let held = self.held.get(&format!("mutex {name}")).and_then(|held| held.last());
                let Some(Held::One(guard)) = held else { return Err("it is not held".to_owned()) };
                let asked = guard.yield_requested();
                let limit = Duration::from_secs(30);
                let asked =
                    self.runtime.block_on(async { tokio::time::timeout(limit, asked).await });
                Ok(if asked.is_ok() { "asked" } else { "never" }.to_owned())
            }
            other => Err(format!("what is {other:?}?")),
        }
    }

    fn keep(&mut self, kind: &str, name: &str, held: Held) -> String {
        let answer = format!("held {}", held.fence());
        self.held.entry(format!("{kind} {name}")).or_default().push(held);
        answer
    }

    async fn take(&self, kind: &str, name: &str, wait: bool) -> Result<Option<Held>> {
        if kind == "multi" {
            let both = self.both(name);
            return match wait {
                true => both.acquire().await.map(|held| Some(Held::Several(held))),
                false => both.try_acquire().await.map(|held| held.map(Held::Several)),
            };
        }
        let lock = self.lock(kind, name).owner(&self.owner);
        match wait {
            true => lock.acquire().await.map(|guard| Some(Held::One(guard))),
            false => lock.try_acquire().await.map(|guard| guard.map(Held::One)),
        }
    }

    fn lock(&self, kind: &str, name: &str) -> Lock {
        let client = &self.client;
        let lock = match kind {
            "spin" => client.mutex(name).spin(Backoff::default()),
            "fair" => client.mutex(name).fair(),
            "read" => client.read(name),
            "write" => client.write(name),
            "permit" => client.semaphore(name, PERMITS as u32),
            "semaphoremutex" => client.semaphore(name, 1),
            _ => client.mutex(name),
        };
        lock.ttl(self.lease)
    }

    fn both(&self, name: &str) -> Multi {
        Multi::new(["a", "b"].map(|end| self.lock("mutex", &format!("{name}-{end}"))))
    }

    /// Enters this many times; if it `endures`, it reports failures to the arbiter and continues.
    fn hammer(
        &self,
        kind: &str,
        name: &str,
        count: usize,
        port: u16,
        pause: u64,
        endures: bool,
    ) -> std::result::Result<(), String> {
        let mut arbiter =
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(|error| error.to_string())?;
        arbiter.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut ask = |line: String| {
            let asked = arbiter.write_all(line.as_bytes());
            asked.and_then(|()| arbiter.read_exact(&mut [0])).map_err(|error| error.to_string())
        };
        for _ in 0..count {
            match self.visit(kind, name, &mut ask)? {
                Ok(Release::AlreadyLost) if endures => {
                    ask(format!("trouble ours {name} lost at its release\n"))?;
                }
                Err(error) if endures => {
                    let why = error.to_string().replace('\n', " ");
                    ask(format!("trouble ours {name} failed {why}\n"))?;
                }
                visited => drop(visited.map_err(|error| error.to_string())?),
            }
            std::thread::sleep(Duration::from_millis(fastrand::u64(0..pause)));
        }
        Ok(())
    }

    /// One critical section. A refusal of the arbiter is the outer error.
    fn visit(
        &self,
        kind: &str,
        name: &str,
        ask: &mut impl FnMut(String) -> std::result::Result<(), String>,
    ) -> std::result::Result<Result<Release>, String> {
        let mode = match kind {
            "read" => "shared",
            "permit" => "permit",
            _ => "exclusive",
        };
        let held = match kind {
            "multi" => self.runtime.block_on(self.both(name).acquire()).map(Held::Several),
            _ => self.runtime.block_on(self.lock(kind, name).acquire()).map(Held::One),
        };
        let held = match held {
            Ok(held) => held,
            Err(error) => return Ok(Err(error)),
        };
        ask(format!("enter ours {mode} {} {name}\n", held.fence()))?;
        ask("leave\n".to_owned())?;
        Ok(self.runtime.block_on(async {
            let released = held.release().await?;
            if self.broken {
                // Whichever client holds it now: the mistake of a client that does not check the
                // owner.
                self.client.break_lock(name).await?;
            }
            Ok(released)
        }))
    }
}
