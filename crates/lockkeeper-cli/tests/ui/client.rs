//! A server of the page, and requests to it, byte by byte where that matters.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::place::Place;

const PATIENCE: Duration = Duration::from_secs(60);

/// `lockkeeper ui`, running.
pub(crate) struct Page {
    child: Child,
    /// What it printed.
    pub(crate) link: String,
    pub(crate) address: SocketAddr,
}

impl Page {
    /// Starts it with these words, beside those that make it quick.
    pub(crate) fn start(place: &Place, words: &str) -> Self {
        let command =
            place.lockkeeper(&format!("ui --listen 127.0.0.1:0 --interval 100ms {words}"));
        Self::from(command)
    }

    pub(crate) fn from(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut link = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut link).unwrap();
        let link = link.trim_end().to_owned();
        let Some(rest) = link.strip_prefix("http://") else {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("lockkeeper ui printed {link:?} and said {said}");
        };
        let address = rest.split('/').next().unwrap().parse().unwrap();
        Self { child, link, address }
    }

    /// The token in the link, as a header has it.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.link.split_once("#token=").expect("a link with a token").1)
    }

    /// Asks as the page does, with the token if there is one.
    pub(crate) fn get(&self, path: &str) -> Reply {
        match self.link.contains("#token=") {
            true => self.send("GET", path, &[("Authorization", &self.bearer())], ""),
            false => self.send("GET", path, &[], ""),
        }
    }

    /// A request as a program sends it.
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        request(self.address, method, path, headers, body)
    }

    /// The answer, once it is as it should be.
    #[track_caller]
    pub(crate) fn until<T>(&self, path: &str, mut look: impl FnMut(&Value) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            let reply = self.get(path);
            if reply.status == 200
                && let Some(found) = look(&reply.json())
            {
                return found;
            }
            assert!(started.elapsed() < PATIENCE, "never: {path}: {}", reply.body);
            std::thread::sleep(Duration::from_millis(40));
        }
    }

    /// Waits until the page shows so many holders and waiters of a lock.
    #[track_caller]
    pub(crate) fn shows(&self, key: &str, holders: usize, waiters: usize) -> Value {
        self.until("/api/v1/locks", |answer| {
            let locks = answer["locks"].as_array().unwrap();
            let lock = locks.iter().find(|lock| lock["key"] == key)?;
            let count = |name: &str| lock[name].as_u64().unwrap_or(0) as usize;
            (count("held_by") == holders && count("waiting") == waiters).then(|| lock.clone())
        })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    /// As sent, in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Reply {
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text += &format!("Host: {address}\r\n");
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A server that refuses early may hang up while we still send.
    let _ = stream.write_all(text.as_bytes());
    read(stream)
}

/// Reads an answer whose length is given.
pub(crate) fn read(stream: TcpStream) -> Reply {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            break;
        }
    }
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let head = head.to_ascii_lowercase();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = Vec::new();
    match length {
        Some(length) => reader.take(length).read_to_end(&mut body).unwrap(),
        None => reader.read_to_end(&mut body).unwrap_or(0),
    };
    Reply { status, head, body: String::from_utf8_lossy(&body).into_owned() }
}
