//! Servers that start, stop, freeze and forget.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::time::Duration;

use lockkeeper_testkit::server::{Data, Persistence, Recipe, Server, redis};

/// Sends a command to a Redis server and gives the first line of its answer.
fn ask(server: &Server, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server.address())?;
    stream.set_read_timeout(Some(Duration::from_millis(300)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

#[test]
fn redis_starts_and_is_gone_when_dropped() {
    let server = Server::start(redis(Persistence::None));
    let address = server.address();
    assert_eq!(ask(&server, "PING").unwrap(), "+PONG");
    drop(server);
    let gone = TcpStream::connect(address).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_paused_server_says_nothing_and_goes_on_afterwards() {
    let server = Server::start(redis(Persistence::None));
    server.pause();
    assert_eq!(ask(&server, "PING").unwrap_err().kind(), ErrorKind::WouldBlock);
    server.resume();
    assert_eq!(ask(&server, "PING").unwrap(), "+PONG");
    // It stops in good time also when it is paused.
    server.pause();
}

#[test]
fn a_killed_server_keeps_or_forgets_its_data() {
    let mut server = Server::start(redis(Persistence::Always));
    assert_eq!(ask(&server, "SET key value").unwrap(), "+OK");
    server.kill();
    assert!(ask(&server, "PING").is_err());
    server.restart(Data::Kept);
    assert_eq!(ask(&server, "GET key").unwrap(), "$5");
    server.restart(Data::Lost);
    assert_eq!(ask(&server, "GET key").unwrap(), "$-1");

    let mut forgetful = Server::start(redis(Persistence::None));
    ask(&forgetful, "SET key value").unwrap();
    forgetful.restart(Data::Kept);
    assert_eq!(ask(&forgetful, "GET key").unwrap(), "$-1");
}

#[test]
#[should_panic(
    expected = "no-such-server is not installed; on Debian: apt-get install no-such-package"
)]
fn a_missing_program_names_its_package() {
    let recipe = redis(Persistence::None);
    Server::start(Recipe { program: "no-such-server", package: "no-such-package", ..recipe });
}

#[test]
#[should_panic(expected = "ended at once")]
fn a_server_that_does_not_start_says_why() {
    let recipe = redis(Persistence::None);
    Server::start(Recipe { arguments: |_, _| vec!["--no-such-setting".to_owned()], ..recipe });
}
