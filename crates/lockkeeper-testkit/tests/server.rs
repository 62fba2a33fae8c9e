//! Servers that start, pause, die and come back.

use std::net::TcpStream;

use lockkeeper_testkit::server::redis::{DURABLE, Server};

#[test]
fn a_server_is_gone_when_dropped_with_its_directory() {
    let server = Server::start();
    let (address, directory) = (server.address(), server.directory().to_owned());
    assert_eq!(server.ask(&["PING"]), "PONG");
    drop(server);
    TcpStream::connect(address).unwrap_err();
    assert!(!directory.exists());
}

#[test]
fn a_paused_server_says_nothing_and_goes_on_afterwards() {
    let server = Server::start();
    server.pause();
    assert_eq!(server.ask(&["PING"]), "");
    server.resume();
    assert_eq!(server.ask(&["PING"]), "PONG");
    // It also ends when it is paused.
    server.pause();
}

#[test]
fn a_killed_server_keeps_what_it_has_on_disk() {
    for (server, kept) in [(Server::with(&DURABLE), "value"), (Server::start(), "")] {
        assert_eq!(server.ask(&["SET", "key", "value"]), "OK");
        server.kill();
        assert_eq!((server.pid(), server.ask(&["PING"])), (None, String::new()));
        server.restart();
        assert_eq!(server.ask(&["GET", "key"]), kept);
    }
}

#[test]
#[should_panic(expected = "Bad directive or wrong number of arguments")]
fn a_server_that_does_not_start_reports_why() {
    Server::with(&["--no-such-setting", "yes"]);
}
