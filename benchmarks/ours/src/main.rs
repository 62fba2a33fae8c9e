//! The worker for lockkeeper itself, and for a bare socket beside it: see the library.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lockkeeper::{Client, Lock};
use lockkeeper_benchmarks::{Contender, Failure, Order, Section, serve};

fn main() -> Result<(), Failure> {
    let order = Order::from_arguments()?;
    let runtime = order.runtime(order.client == "socket")?;
    runtime.block_on(async {
        match order.client.as_str() {
            "socket" => serve(&order, sockets(&order)?).await,
            _ => serve(&order, ours(&order).await?).await,
        }
    })
}

/// How a guard is released.
#[derive(Clone, Copy)]
enum End {
    Awaited,
    Dropped,
}

/// How long a lock is kept: for the whole run, unless it is wanted.
const KEPT: Duration = Duration::from_secs(60);

struct Ours {
    lock: Lock,
    end: End,
    /// The same lock of another client, which keeps it between the visits.
    keeper: Option<Lock>,
}

async fn ours(order: &Order) -> Result<Vec<Ours>, Failure> {
    let end = match order.client.as_str() {
        "lockkeeper" | "lockkeeper-fair" | "lockkeeper-kept" | "lockkeeper-wanted" => End::Awaited,
        "lockkeeper-dropped" => End::Dropped,
        other => return Err(format!("there is no client {other}").into()),
    };
    let mut contenders = Vec::new();
    for _ in 0..order.clients {
        let client = Client::connect(&order.address).await?;
        let keeper = match order.client.as_str() {
            "lockkeeper-wanted" => Some(Client::connect(&order.address).await?),
            _ => None,
        };
        for task in 0..order.tasks {
            let lock = client.mutex(order.key(task));
            let lock = match order.client.as_str() {
                "lockkeeper-fair" => lock.fair(),
                "lockkeeper-kept" => lock.keep(KEPT),
                _ => lock,
            };
            let keeper = keeper.as_ref().map(|keeper| keeper.mutex(order.key(task)).keep(KEPT));
            contenders.push(Ours { lock, end, keeper });
        }
    }
    Ok(contenders)
}

impl Contender for Ours {
    async fn visit(&mut self, section: &mut Section) -> Result<(), Failure> {
        let guard = self.lock.clone().acquire().await?;
        section.enter().await?;
        match self.end {
            End::Awaited => {
                guard.release().await?;
            }
            End::Dropped => drop(guard),
        }
        if let Some(keeper) = &self.keeper {
            keeper.clone().acquire().await?.release().await?;
        }
        Ok(())
    }
}

/// Two round trips to a Redis server, by a thread that blocks: less is not possible with a request
/// to lock and another to unlock.
struct Socket(TcpStream);

fn sockets(order: &Order) -> Result<Vec<Socket>, Failure> {
    let connect = |_| {
        let stream = TcpStream::connect(&order.address)?;
        stream.set_nodelay(true)?;
        Ok(Socket(stream))
    };
    (0..order.clients * order.tasks).map(connect).collect()
}

impl Contender for Socket {
    async fn visit(&mut self, section: &mut Section) -> Result<(), Failure> {
        self.ping()?;
        section.enter().await?;
        self.ping()
    }
}

impl Socket {
    fn ping(&mut self) -> Result<(), Failure> {
        self.0.write_all(b"PING\r\n")?;
        Ok(self.0.read_exact(&mut [0; b"+PONG\r\n".len()])?)
    }
}
