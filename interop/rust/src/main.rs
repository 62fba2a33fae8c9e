//! The driver for rslock, over one server or several: `driver ADDRESS[,ADDRESS…] LEASE_MS`.
//!
//! It takes orders from its input, one per line, and answers each with one line. A release of rslock
//! reports nothing, whatever happened, so neither does this.

use std::collections::HashMap;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use rslock::{Lock, LockError, LockManager};
use tokio::runtime::Runtime;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let addresses = arguments.next().ok_or("which servers?")?;
    let lease = arguments.next().ok_or("how long?")?.parse().map(Duration::from_millis)?;
    let uris = addresses.split(',').map(|address| format!("redis://{address}")).collect();
    let mut driver = Driver {
        runtime: Runtime::new()?,
        manager: LockManager::new::<String>(uris),
        lease,
        held: HashMap::new(),
        released: HashMap::new(),
        beside: Vec::new(),
    };
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        match driver.obey(&words) {
            Ok(answer) => println!("{answer}"),
            Err(problem) => println!("error {}", problem.to_string().replace('\n', " ")),
        }
    }
    Ok(())
}

struct Driver {
    runtime: Runtime,
    manager: LockManager,
    lease: Duration,
    held: HashMap<String, Lock>,
    /// What was released last, to be released again.
    released: HashMap<String, Lock>,
    /// The locks of other tasks of this process.
    beside: Vec<Lock>,
}

impl Driver {
    fn obey(&mut self, order: &[&str]) -> Outcome<String> {
        match order {
            [how @ ("acquire" | "try"), _, name] => {
                let lock = self.runtime.block_on(self.take(name, *how == "acquire"))?;
                Ok(lock.map_or("busy".to_owned(), |lock| {
                    self.held.insert((*name).to_owned(), lock);
                    "held 0".to_owned()
                }))
            }
            ["beside", _, name] => {
                self.beside.extend(self.runtime.block_on(self.take(name, true))?);
                Ok("held 0".to_owned())
            }
            ["release", _, name] => {
                let lock = self.held.remove(*name).ok_or("it is not held")?;
                self.runtime.block_on(self.manager.unlock(&lock));
                self.released.insert((*name).to_owned(), lock);
                Ok("released".to_owned())
            }
            ["again", _, name] => {
                let lock = self.released.get(*name).ok_or("it was not released")?;
                self.runtime.block_on(self.manager.unlock(lock));
                Ok("released".to_owned())
            }
            ["hammer", _, name, count, port, pause] => {
                self.hammer(name, count.parse()?, port.parse()?, pause.parse()?)?;
                Ok("done".to_owned())
            }
            other => Err(format!("what is {other:?}?").into()),
        }
    }

    /// A lock, or nothing if it is busy and must not be waited for. rslock gives up after three
    /// tries, so it is asked again here.
    async fn take(&self, name: &str, wait: bool) -> Outcome<Option<Lock>> {
        let mut manager = self.manager.clone();
        let tries = if wait { 3 } else { 1 };
        manager.set_retry(tries, Duration::from_millis(200));
        loop {
            match manager.lock(name, self.lease).await {
                Ok(lock) => return Ok(Some(lock)),
                Err(LockError::Unavailable | LockError::TtlExceeded) if wait => {}
                Err(LockError::Unavailable | LockError::TtlExceeded) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Enters this many times.
    fn hammer(&self, name: &str, count: usize, port: u16, pause: u64) -> Outcome {
        let mut arbiter = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        arbiter.set_nodelay(true)?;
        let mut ask = |line: &str| {
            arbiter.write_all(line.as_bytes()).and_then(|()| arbiter.read_exact(&mut [0]))
        };
        for _ in 0..count {
            let lock = self.runtime.block_on(self.take(name, true))?.ok_or("it was waited for")?;
            ask(&format!("enter theirs exclusive 0 {name}\n"))?;
            ask("leave\n")?;
            self.runtime.block_on(self.manager.unlock(&lock));
            std::thread::sleep(Duration::from_millis(fastrand::u64(0..pause)));
        }
        Ok(())
    }
}
