//! Redis: a recipe for one server, and servers that stand together: with sentinels, in a Cluster.

mod cluster;
mod data;
mod sentinels;
mod server;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use super::Recipe;

pub use cluster::Cluster;
pub use data::with_data;
pub use sentinels::Sentinels;
pub use server::{DURABLE, Server, VOLATILE, eventually};

/// What a Redis server writes to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing: a restart forgets everything.
    None,
    /// Every command, before it is answered.
    Always,
}

/// How to run a Redis server.
pub fn redis(persistence: Persistence) -> Recipe {
    Recipe {
        program: "redis-server",
        package: "redis-server",
        arguments: match persistence {
            Persistence::None => |port, dir| arguments(port, dir, "no"),
            Persistence::Always => |port, dir| arguments(port, dir, "yes"),
        },
        ready,
    }
}

fn arguments(port: u16, dir: &Path, append: &str) -> Vec<String> {
    let (port, dir) = (port.to_string(), dir.display().to_string());
    let settings = [
        ["--port", &port],
        ["--bind", "127.0.0.1"],
        ["--dir", &dir],
        ["--save", ""],
        ["--appendonly", append],
        ["--appendfsync", "always"],
        ["--daemonize", "no"],
    ];
    settings.concat().into_iter().map(str::to_owned).collect()
}

/// One that still reads its files accepts connections, and answers with an error.
fn ready(mut stream: TcpStream) -> io::Result<bool> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    Ok(&answer == b"+PONG\r\n")
}
