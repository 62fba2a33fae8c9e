//! What `lockkeeper ui` costs a Redis server, compared with the locks themselves.
//!
//! 1,000 held mutexes with 10 waiters each, at default settings; the server's own CPU time, without the
//! page, with one browser and with twenty. The locks only renew and wait: with work to do they cost more.
//! The page is too cheap to be seen in the difference, so looks are measured one after the other, and
//! multiplied by their number.
//!
//! ```sh
//! cargo build --release && cargo run --release --example ui_cost -- target/release/lockkeeper
//! ```

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::Client;
use lockkeeper_testkit::server::redis::Server;

const LOCKS: usize = 1_000;
const WAITERS: usize = 10;
const LOOKS: u32 = 100;
/// Long enough for several renewals of every lease, and several looks.
const MEASURED: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let program = std::env::args().nth(1).ok_or("name the program lockkeeper")?;
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let clients = runtime.block_on(hold_and_wait(&server))?;
    let locks = measure(&server, || thread::sleep(MEASURED));
    println!("the locks alone: {:.2} % of a core", 100.0 * locks);
    let looker = runtime.block_on(connect(&server))?;
    let started = Instant::now();
    let busy = measure(&server, || {
        for _ in 0..LOOKS {
            let looked = runtime.block_on(async {
                looker.list("").await?;
                looker.broken("").await
            });
            looked.expect("the server answers");
        }
    });
    let look = (busy - locks) * started.elapsed().as_secs_f64() / f64::from(LOOKS);
    println!("one look: {:.1} ms", 1000.0 * look);
    for browsers in [1, 20] {
        let page = Page::start(&program, &server.url(), browsers)?;
        // The first poll finds everything new.
        while page.looks()? < 1.0 {
            thread::sleep(Duration::from_millis(100));
        }
        let before = page.looks()?;
        let with = measure(&server, || thread::sleep(MEASURED));
        let looks = page.looks()? - before;
        let share = looks * look / (locks * MEASURED.as_secs_f64());
        println!(
            "with {browsers} browsers: {looks} looks in {MEASURED:?}, {:.1} % of what the locks cost; all of it {:.2} % of a core",
            100.0 * share,
            100.0 * with,
        );
    }
    drop(clients);
    // Ten thousand releases are not needed.
    std::process::exit(0);
}

async fn hold_and_wait(server: &Server) -> lockkeeper::Result<Vec<Client>> {
    let key = |n: usize| format!("job/{n:04}");
    let holder = Client::connect(server.url()).await?;
    for n in 0..LOCKS {
        std::mem::forget(holder.mutex(key(n)).acquire().await?);
    }
    let mut clients = vec![holder];
    for _ in 0..WAITERS {
        let client = connect(server).await?;
        for n in 0..LOCKS {
            let lock = client.mutex(key(n));
            tokio::spawn(async move { lock.acquire().await.map(std::mem::forget) });
        }
        clients.push(client);
    }
    let waiting = async || -> lockkeeper::Result<usize> {
        let all = clients[0].list("").await?;
        Ok(all.iter().filter_map(|lock| lock.waiters.as_ref()).map(Vec::len).sum())
    };
    // On a slow machine, the records of some are always late.
    let enough = LOCKS * WAITERS * 9 / 10;
    let mut seen = waiting().await?;
    while seen < enough {
        tokio::time::sleep(Duration::from_millis(500)).await;
        seen = waiting().await?;
    }
    println!("{LOCKS} locks held, {seen} waiters of {}", LOCKS * WAITERS);
    Ok(clients)
}

/// On a busy machine, the waiters of the clients before may keep us from being answered in time.
async fn connect(server: &Server) -> lockkeeper::Result<Client> {
    loop {
        match Client::connect(server.url()).await {
            Err(error) if error.is_retryable() => {}
            connected => return connected,
        }
    }
}

/// The share of a core that the server used meanwhile.
fn measure(server: &Server, work: impl FnOnce()) -> f64 {
    let used = || -> f64 {
        let info = server.ask(&["INFO", "cpu"]);
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
        };
        field("used_cpu_user:").unwrap_or(0.0) + field("used_cpu_sys:").unwrap_or(0.0)
    };
    let (before, started) = (used(), Instant::now());
    work();
    (used() - before) / started.elapsed().as_secs_f64()
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

    /// How often the engine was polled.
    fn looks(&self) -> Result<f64, Box<dyn Error>> {
        let mut text = String::new();
        self.ask("/metrics")?.read_to_string(&mut text)?;
        let line = text.lines().find(|line| line.starts_with("lockkeeper_looks_total"));
        let count =
            line.and_then(|line| line.rsplit(' ').next()).ok_or("there is no such metric")?;
        Ok(count.parse()?)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
