//! Another kind of server at the address of an engine: the message says what was found there.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use lockkeeper_testkit::server::redis::Server;
use lockkeeper_testkit::server::zookeeper::Ensemble;
use lockkeeper_testkit::server::{Mariadb, Postgres, etcd};

use crate::place::{Done, Place};

/// A listener that treats every connection alike, until the test program ends.
fn listener(serve: fn(TcpStream)) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    port
}

/// Reads a request up to its empty line, and has no such page.
fn http(mut stream: TcpStream) {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => request.push(byte[0]),
            _ => return,
        }
    }
    let _ = stream.write_all(b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n");
}

/// Reads until the client gives up.
fn silent(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

fn other(mut stream: TcpStream) {
    let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
    silent(stream);
}

fn port_of(url: &str) -> u16 {
    let rest = url.split_once("127.0.0.1:").unwrap().1;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

fn ls(url: &str) -> Done {
    let done = Place::at(url).run("ls").exits(69);
    assert_eq!(done.stderr.lines().count(), 1, "{url}: {}", done.stderr);
    done
}

#[test]
fn what_answers_at_the_address_is_named() {
    let redis = Server::start();
    let etcd = etcd::Servers::start(1);
    let postgres = Postgres::start();
    let mariadb = Mariadb::start();
    let zookeeper = Ensemble::single();
    let servers = [
        ("Redis", "redis", port_of(&redis.url())),
        ("etcd", "etcd", port_of(&etcd.url(""))),
        ("PostgreSQL", "postgres", port_of(&postgres.url())),
        ("MariaDB or MySQL", "mysql", port_of(&mariadb.url())),
        ("ZooKeeper", "zookeeper", port_of(&zookeeper.hosts())),
        ("an HTTP server", "", listener(http)),
    ];
    let schemes = [
        ("redis", "Redis", ""),
        ("redis+sentinel", "Redis", "/main"),
        ("redis+cluster", "Redis", ""),
        ("redlock", "Redis", ",127.0.0.1:1,127.0.0.1:2"),
        ("rediss", "Redis", ""),
        ("etcd", "etcd", ""),
        ("etcds", "etcd", ""),
        ("postgres", "PostgreSQL", "/app"),
        ("mysql", "MariaDB or MySQL", "/app"),
        ("zookeeper", "ZooKeeper", ""),
    ];
    thread::scope(|scope| {
        for (scheme, kind, rest) in schemes {
            scope.spawn(move || {
                for (found, right, port) in servers.iter().filter(|server| server.0 != kind) {
                    let said = ls(&format!("{scheme}://127.0.0.1:{port}{rest}")).stderr;
                    let advice = match *right {
                        "" => format!("name the port of {kind}"),
                        _ => format!(
                            "write {right}: instead of {scheme}:, or name the port of {kind}"
                        ),
                    };
                    let wanted = format!(": 127.0.0.1:{port} is {found}, not {kind}; {advice}\n");
                    assert!(said.ends_with(&wanted), "{wanted:?} is not the end of {said}");
                    assert!(!said.contains("create="), "an option that nobody wrote: {said}");
                }
            });
        }
    });
    for (scheme, server, rest, says) in [
        ("rediss", 0, "", "answers without TLS; write redis: instead of rediss:"),
        ("etcds", 1, "", "answers without TLS; write etcd: instead of etcds:"),
        ("redis+sentinel", 0, "/main", "not a sentinel; write redis: instead of redis+sentinel:"),
        ("redis+cluster", 0, "", "not a node of a Cluster; write redis: instead of redis+cluster:"),
    ] {
        ls(&format!("{scheme}://127.0.0.1:{}{rest}", servers[server].2)).says(says);
    }
}

#[test]
fn what_answers_with_nothing_or_with_something_unknown_is_reported() {
    let unknown = |port: u16, kind: &str| {
        format!("what answers at 127.0.0.1:{port} does not speak the protocol of {kind}")
    };
    let (other, closes, silent) = (listener(other), listener(drop), listener(silent));
    thread::scope(|scope| {
        for (scheme, kind, rest) in [
            ("redis", "Redis", ""),
            ("etcd", "etcd", ""),
            ("postgres", "PostgreSQL", "/app"),
            ("mysql", "MariaDB or MySQL", "/app"),
            ("zookeeper", "ZooKeeper", ""),
        ] {
            scope.spawn(move || {
                let ls = |port: u16| ls(&format!("{scheme}://127.0.0.1:{port}{rest}"));
                ls(other).says(&unknown(other, kind));
                let says = "accepts connections and closes them without an answer";
                ls(closes).says(&format!("127.0.0.1:{closes} {says}"));
                let says = "accepts connections and does not answer";
                ls(silent).says(&format!("127.0.0.1:{silent} {says}"));
                ls(1).says("Connection refused");
            });
        }
    });
}
