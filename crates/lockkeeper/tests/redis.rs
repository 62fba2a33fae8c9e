//! Every case of the test kit against Redis.
#![cfg(feature = "redis")]

#[path = "redis/server.rs"]
mod server;

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;
use server::Server;

conformance!(standalone, {
    let server = Server::start();
    Store::at(server.url()).keep(server)
});

conformance!(string, {
    let server = Server::start();
    Store::at(server.url() + "?layout=string").keep(server)
});
