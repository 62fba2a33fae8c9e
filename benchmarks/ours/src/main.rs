//! The worker for lockkeeper itself, and for a bare socket beside it: see the library.

use std::io::{Read, Write};
use std::net::TcpStream;

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

struct Ours {
    lock: Lock,
    end: End,
}

async fn ours(order: &Order) -> Result<Vec<Ours>, Failure> {
    let (fair, end) = match order.client.as_str() {
        "lockkeeper" => (false, End::Awaited),
        "lockkeeper-fair" => (true, End::Awaited),
        "lockkeeper-dropped" => (false, End::Dropped),
        other => return Err(format!("there is no client {other}").into()),
    };
    let mut contenders = Vec::new();
    for _ in 0..order.clients {
        let client = Client::connect(&order.address).await?;
        for task in 0..order.tasks {
            let lock = client.mutex(order.key(task));
            contenders.push(Ours { lock: if fair { lock.fair() } else { lock }, end });
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
