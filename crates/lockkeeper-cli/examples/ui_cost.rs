//! What `lockkeeper ui` costs a Redis server, compared with the locks themselves.
//!
//! 1,000 held locks with 10 waiters each; the server's own CPU time, without the page, with one browser
//! and with twenty.
//!
//! ```sh
//! cargo build && cargo run --example ui_cost -- target/debug/lockkeeper
//! ```

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use lockkeeper::Client;
use lockkeeper_testkit::server::redis::Server;

const LOCKS: usize = 1_000;
const WAITERS: usize = 10;
/// Long enough for several renewals of every lease.
const MEASURED: Duration = Duration::from_secs(40);
const LEASE: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let program = std::env::args().nth(1).ok_or("name the program lockkeeper")?;
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let _clients = runtime.block_on(hold_and_wait(&server))?;
    let locks = measure(&server, MEASURED);
    println!("the locks alone: {:.2} % of a core", 100.0 * locks);
    for browsers in [1, 20] {
        let page = Page::start(&program, &server.url(), browsers)?;
        // The first poll finds everything new.
        thread::sleep(Duration::from_secs(10));
        let with = measure(&server, MEASURED);
        let more = (with - locks).max(0.0);
        println!(
            "with the page and {browsers} browsers: {:.2} % of a core, {:.1} % more than the locks alone; a look takes {} s",
            100.0 * with,
            100.0 * more / locks,
            page.look()?
        );
    }
    // Ten thousand releases are not needed.
    std::process::exit(0);
}

async fn hold_and_wait(server: &Server) -> lockkeeper::Result<Vec<Client>> {
    let key = |n: usize| format!("job/{n:04}");
    let holder = Client::connect(server.url()).await?;
    for n in 0..LOCKS {
        std::mem::forget(holder.mutex(key(n)).fair().ttl(LEASE).acquire().await?);
    }
    let mut clients = vec![holder];
    for _ in 0..WAITERS {
        let client = Client::connect(server.url()).await?;
        for n in 0..LOCKS {
            let lock = client.mutex(key(n)).fair().ttl(LEASE);
            tokio::spawn(async move { lock.acquire().await.map(std::mem::forget) });
        }
        clients.push(client);
    }
    let waiting = async || -> lockkeeper::Result<usize> {
        let all = clients[0].list("").await?;
        Ok(all.iter().filter_map(|lock| lock.waiters.as_ref()).map(Vec::len).sum())
    };
    // On a slow machine, some are always late with their heartbeat, and queue again.
    let enough = LOCKS * WAITERS * 9 / 10;
    let mut seen = waiting().await?;
    while seen < enough {
        tokio::time::sleep(Duration::from_millis(500)).await;
        seen = waiting().await?;
    }
    println!("{LOCKS} locks held, {seen} waiters of {}", LOCKS * WAITERS);
    Ok(clients)
}

/// The share of a core that the server used.
fn measure(server: &Server, time: Duration) -> f64 {
    let used = || -> f64 {
        let info = server.ask(&["INFO", "cpu"]);
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
        };
        field("used_cpu_user:").unwrap_or(0.0) + field("used_cpu_sys:").unwrap_or(0.0)
    };
    let before = used();
    thread::sleep(time);
    (used() - before) / time.as_secs_f64()
}

/// `lockkeeper ui` with some connected browsers.
struct Page {
    child: Child,
    address: String,
}

impl Page {
    fn start(program: &str, url: &str, browsers: usize) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(program)
            .args(["ui", "--listen", "127.0.0.1:0", url])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut link = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut link)?;
        let address = link.trim_start_matches("http://").split('/').next().unwrap_or_default();
        let page = Self { child, address: address.to_owned() };
        for _ in 0..browsers {
            let mut stream = page.ask("/api/v1/events")?;
            thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
        }
        Ok(page)
    }

    fn ask(&self, path: &str) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        let address = &self.address;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        Ok(stream)
    }

    /// How long the last poll took.
    fn look(&self) -> std::io::Result<String> {
        let mut text = String::new();
        self.ask("/metrics")?.read_to_string(&mut text)?;
        let line = text.lines().find(|line| line.starts_with("lockkeeper_look_seconds"));
        Ok(line.and_then(|line| line.rsplit(' ').next()).unwrap_or("?").to_owned())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
