//! Many processes, all kinds of locks, and everything that can happen to a database at once, for every
//! strategy of PostgreSQL and MariaDB.

use lockkeeper_testkit::holder::Program;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::server::{DatabaseServer, Dialect, Mariadb, Postgres};
use lockkeeper_testkit::storm::{Fault, Kind, Plan, Storm};

#[test]
fn helper_process() {
    lockkeeper_testkit::holder::main_of_test();
}

/// One storm for each strategy: what its locks can be, and how a foreign transaction of this database
/// deadlocks with us.
macro_rules! storms {
    ($($test:ident: $server:ident, $way:literal, $kinds:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            rage(<$server>::start(), $way, $kinds).await;
        }
    )*};
}

const ALL: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::ReadWrite, Kind::Permits];

storms! {
    a_storm_on_leases_of_postgres: Postgres, "lease", ALL;
    a_storm_on_advisory_locks_of_postgres: Postgres, "advisory", &[Kind::Mutex, Kind::Fair, Kind::ReadWrite];
    a_storm_on_rows_of_postgres: Postgres, "row", &[Kind::Mutex, Kind::Fair];
    a_storm_on_leases_of_mariadb: Mariadb, "lease", ALL;
    a_storm_on_named_locks_of_mariadb: Mariadb, "named", &[Kind::Mutex, Kind::Fair];
    a_storm_on_rows_of_mariadb: Mariadb, "row", &[Kind::Mutex, Kind::Fair];
}

/// Rows in the wrong order: we lock the lock's row first.
const DEADLOCK: &str = "BEGIN; SELECT token FROM lockkeeper_claim FOR UPDATE;
                        SELECT fence FROM lockkeeper_lock FOR UPDATE; COMMIT";

async fn rage<D: Dialect>(server: DatabaseServer<D>, way: &str, kinds: &[Kind]) {
    let url = server.url();
    let name = url.rsplit('/').next().expect("it names one").to_owned();
    let port = server.address().port();
    let mut proxies = Vec::new();
    for _ in 0..4 {
        proxies.push(Proxy::start(server.address()).await);
    }
    let through = |proxy: &Proxy| {
        let place = url.replace(&port.to_string(), &proxy.address().port().to_string());
        format!("{place}?strategy={way}")
    };
    let urls: Vec<_> = proxies.iter().map(through).collect();
    let plan = Plan { kinds: kinds.to_vec(), ..Plan::default() };
    let mut storm = Storm::start(&Program::test(module_path!()), &urls, plan);
    let (server, name) = (&server, &*name);
    // The result of such a statement does not matter here, nor whether it is the deadlock victim.
    let say = move |statement: &str| drop(D::client(port, name, statement).output());
    let mut faults = [
        Fault::new("connections ended", move || async move {
            D::end_sessions(server, name, false);
        }),
        Fault::new("statements ended", move || async move {
            D::end_sessions(server, name, true);
        }),
        Fault::new("server killed and started again", move || async move {
            server.kill();
            server.restart();
        }),
        Fault::new("server paused", move || async move {
            server.pause();
            tokio::time::sleep(std::time::Duration::from_millis(fastrand::u64(50..2500))).await;
            server.resume();
        }),
        Fault::new("deadlock", move || async move { say(DEADLOCK) }),
    ];
    storm.rage(&proxies, &mut faults).await;
    let judgement = storm.judge(&format!("{url}?strategy={way}")).await;
    println!("{way}: {judgement}");
    assert!(judgement.grants > 0 && judgement.violations.is_empty(), "{way}: {judgement}");
    // A server frees the locks of a connection as soon as it ends, and the holder is signalled
    // later.
    assert!(judgement.overlaps.is_empty() || way != "lease", "{way}: {judgement}");
}
