//! PostgreSQL and MariaDB with every strategy: killed connections, crashes, freezes, lost replies,
//! stopped waiters, blocking transactions, and heavy contention.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use lockkeeper::{Client, Error, Loss, Release};
use lockkeeper_testkit::holder::{Holder, Program, main_of_test};
use lockkeeper_testkit::load::Load;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::server::{DatabaseServer, Dialect, Mariadb, Postgres};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::{replies, schema};

/// Long enough that a busy machine does not let a lease expire by accident.
pub(super) const LEASE: Duration = Duration::from_secs(3);

/// How long something immediate may take on a busy machine.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// Every test once for each database: its kind, its strategies that bind a lock to a connection,
/// statements that block the row of a key for longer than the row lock timeout, and how a
/// transaction is guarded, and kept open for longer than any call may take; then tables of the
/// first version, what turns the existing ones into tables of the second and of a later one, and
/// what counts them.
macro_rules! databases {
    ($($module:ident: $server:ident, $bound:expr, $in_the_way:expr, $guard:expr, $linger:expr,
       $first:expr, $second:expr, $later:expr, $tables:expr;)*) => {$(
        mod $module {
            use super::*;

            const BOUND: [&str; 2] = $bound;

            /// One server for all tests that do not harm it; each has its own database.
            fn server() -> &'static $server {
                static SERVER: OnceLock<$server> = OnceLock::new();
                SERVER.get_or_init(<$server>::start)
            }

            #[test]
            fn helper_process() {
                main_of_test();
            }

            #[tokio::test]
            async fn a_lease_outlives_the_connections_of_its_client() {
                lease_outlives_connections(server()).await;
            }

            #[tokio::test]
            async fn a_bound_lock_is_lost_with_its_connection_and_a_waiter_asks_again() {
                for way in BOUND {
                    bound_lock_is_lost(server(), way).await;
                }
            }

            #[tokio::test]
            async fn a_waiter_that_was_stopped_when_its_turn_came_does_not_think_that_it_holds() {
                for way in BOUND {
                    stopped_waiter(server(), way, &Program::test(module_path!())).await;
                }
            }

            #[tokio::test]
            async fn a_server_that_crashed_remembers_leases_and_fences() {
                crashed_server_remembers(<$server>::start(), BOUND).await;
            }

            #[tokio::test]
            async fn a_frozen_server_cannot_hide_a_loss() {
                frozen_server(<$server>::start(), BOUND).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn crashes_and_freezes_under_load_do_not_hurt_what_is_fenced() {
                crashes_under_load(<$server>::start(), BOUND).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn replies_that_are_lost_cost_time_and_nothing_else() {
                lost_replies(server(), BOUND).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn every_reply_may_be_lost_once() {
                for way in ["lease", BOUND[0], BOUND[1]] {
                    replies::every_reply_is_lost_once(server(), way).await;
                }
            }

            #[tokio::test]
            async fn a_transaction_in_the_way_is_waited_for() {
                transaction_in_the_way(server(), $in_the_way).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn a_guarded_transaction_keeps_its_own_lock_from_others_and_no_other_lock() {
                guarded_transaction(server(), BOUND, $guard, $linger).await;
            }

            #[tokio::test]
            async fn tables_of_an_earlier_version_are_refused_and_can_be_brought_up_to_date() {
                schema::an_earlier_version(server(), $first).await;
            }

            #[tokio::test]
            async fn tables_of_the_second_version_are_brought_up_to_date_with_their_fences() {
                schema::the_second_version(server(), BOUND, $second).await;
            }

            #[tokio::test]
            async fn tables_of_a_later_version_are_refused_and_left_as_they_are() {
                schema::a_later_version(server(), $later).await;
            }

            #[tokio::test]
            async fn only_a_lock_creates_the_tables() {
                for way in ["lease", BOUND[0], BOUND[1]] {
                    schema::looking_creates_nothing(server(), way, $tables).await;
                }
            }

            #[tokio::test]
            async fn a_release_on_a_connection_that_the_server_ended_is_confirmed() {
                release_after_silence(server()).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn a_crowd_of_processes_meets_no_error() {
                let server = <$server>::roomy();
                crowd(&server, &Program::test(module_path!())).await;
            }
        }
    )*};
}

databases! {
    postgres: Postgres, ["advisory", "row"],
        "BEGIN; SELECT FROM lockkeeper_lock FOR UPDATE; SELECT pg_sleep(6); COMMIT",
        "SELECT lockkeeper_guard", "SELECT pg_sleep(20)",
        schema::FIRST_OF_POSTGRES, schema::SECOND_OF_POSTGRES, schema::LATER_OF_POSTGRES,
        schema::TABLES_OF_POSTGRES;
    mariadb: Mariadb, ["named", "row"],
        "START TRANSACTION; SELECT fence FROM lockkeeper_lock FOR UPDATE; DO SLEEP(6); COMMIT",
        "CALL lockkeeper_guard", "DO SLEEP(20)",
        schema::FIRST_OF_MARIADB, schema::SECOND_OF_MARIADB, schema::LATER_OF_MARIADB,
        schema::TABLES_OF_MARIADB;
}

pub(super) fn strategy(url: &str, way: &str) -> String {
    format!("{url}?strategy={way}")
}

pub(super) fn database(url: &str) -> &str {
    url.rsplit('/').next().expect("it names one")
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < SOON, "not within {SOON:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn lease_outlives_connections<D: Dialect>(server: &DatabaseServer<D>) {
    let url = server.url();
    let client = Client::connect(&url).await.unwrap();
    let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
    let waiting = tokio::spawn(Client::connect(&url).await.unwrap().mutex("key").acquire());
    server.end_sessions(database(&url));
    sleep(LEASE * 2).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

async fn bound_lock_is_lost<D: Dialect>(server: &DatabaseServer<D>, way: &str) {
    let url = server.url();
    let place = strategy(&url, way);
    let client = Client::connect(&place).await.unwrap();
    // Renewals wait for the statements of this test.
    let guard = client.mutex("key").ttl(LEASE * 4).acquire().await.unwrap();
    let other = Client::connect(&place).await.unwrap();
    let waiting = tokio::spawn(other.mutex("key").ttl(LEASE).acquire());
    let blocked = || server.busy_sessions(database(&url)) == 1;
    until("the waiter is blocked", blocked).await;
    server.end_busy_sessions(database(&url));
    until("the waiter is blocked again", blocked).await;
    guard.check().unwrap();
    server.end_sessions(database(&url));
    let next = timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), Loss::Gone, "{way}");
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost);
    next.check().unwrap();
}

async fn stopped_waiter<D: Dialect>(server: &DatabaseServer<D>, way: &str, program: &Program) {
    let url = server.url();
    let place = strategy(&url, way);
    let client = Client::connect(&place).await.unwrap();
    let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
    let mut waiter = Holder::start(program, &place, "key", &["--ttl", "2s"]);
    until("the waiter is blocked", || server.busy_sessions(database(&url)) == 1).await;
    waiter.stop();
    guard.release().await.unwrap();
    // The server granted it to the stopped one, and then ended that silent session.
    let next = client.mutex("key").ttl(LEASE).acquire_within(SOON).await.unwrap();
    waiter.resume();
    let fence = next.fence().get();
    next.release().await.unwrap();
    assert!(waiter.granted().await > fence, "{way}: it believed an old answer");
}

async fn crashed_server_remembers<D: Dialect>(server: DatabaseServer<D>, bound: [&str; 2]) {
    let url = server.url();
    let client = Client::connect(&url).await.unwrap();
    let guard = client.mutex("held").ttl(Duration::from_secs(600)).acquire().await.unwrap();
    let fence = guard.fence();
    // A crash may lose a release, which then takes effect when its lease expires.
    let free = client.mutex("free").ttl(LEASE).acquire().await.unwrap();
    let before = free.fence();
    free.release().await.unwrap();
    let mut lost = Vec::new();
    for way in bound {
        let client = Client::connect(strategy(&url, way)).await.unwrap();
        lost.push((client.mutex(way).ttl(LEASE).acquire().await.unwrap(), client));
    }
    server.kill();
    for (guard, _) in &lost {
        assert!(timeout(LEASE, guard.lost()).await.is_ok(), "not told within its lease");
    }
    server.restart();
    guard.check().unwrap();
    let other = Client::connect(&url).await.unwrap();
    assert!(other.mutex("held").try_acquire().await.unwrap().is_none());
    assert!(other.mutex("free").acquire().await.unwrap().fence() > before);
    for (guard, client) in lost {
        let again = client.mutex(guard.key().as_str()).acquire_within(SOON).await.unwrap();
        assert!(again.fence() > guard.fence());
    }
    // Its connection was gone; the release is repeated until it is confirmed.
    drop(guard);
    let freed = other.mutex("held").acquire_within(SOON).await.unwrap();
    assert!(freed.fence() > fence);
}

async fn frozen_server<D: Dialect>(server: DatabaseServer<D>, bound: [&str; 2]) {
    let url = server.url();
    for way in ["lease", bound[0], bound[1]] {
        let client = Client::connect(strategy(&url, way)).await.unwrap();
        let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
        server.pause();
        let told = timeout(LEASE, guard.lost()).await;
        server.resume();
        assert!(told.is_ok(), "{way}: not told within its lease");
        assert!(matches!(guard.check(), Err(Error::Lost { .. })));
        let next = client.mutex("key").acquire_within(SOON).await.unwrap();
        assert!(next.fence() > guard.fence());
    }
}

async fn clients(url: &str, n: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..n {
        clients.push(Client::connect(url).await.unwrap());
    }
    clients
}

async fn crashes_under_load<D: Dialect>(server: DatabaseServer<D>, bound: [&str; 2]) {
    for way in ["lease", bound[0], bound[1]] {
        let url = strategy(&server.url(), way);
        let load = Load::start(clients(&url, 3).await, 2, 2, LEASE);
        load.goes_on(20).await;
        server.kill();
        server.restart();
        load.goes_on(20).await;
        server.pause();
        sleep(Duration::from_millis(fastrand::u64(100..2500))).await;
        server.resume();
        load.goes_on(20).await;
        let judged = load.judge().await;
        println!("{way}: {} grants, {} overlaps", judged.grants, judged.overlaps);
        assert!(judged.violations.is_empty(), "{way}: {:#?}", judged.violations);
        // A crash frees the locks of connections before their holders are signalled; leases survive
        // it.
        assert!(judged.overlaps == 0 || way != "lease", "{} overlaps", judged.overlaps);
    }
}

async fn lost_replies<D: Dialect>(server: &DatabaseServer<D>, bound: [&str; 2]) {
    for way in ["lease", bound[0], bound[1]] {
        let proxy = Proxy::start(server.address()).await;
        let direct = server.address().port().to_string();
        let through = proxy.address().port().to_string();
        let url = strategy(&server.url().replace(&direct, &through), way);
        let load = Load::start(clients(&url, 2).await, 2, 2, LEASE);
        for _ in 0..10 {
            load.goes_on(3).await;
            proxy.swallow_replies(fastrand::usize(1..4));
            sleep(Duration::from_millis(fastrand::u64(20..100))).await;
            proxy.heal().await;
        }
        load.goes_on(10).await;
        let judged = load.judge().await;
        println!("{way}: {} grants, {} overlaps", judged.grants, judged.overlaps);
        assert!(judged.violations.is_empty(), "{way}: {:#?}", judged.violations);
        assert!(judged.overlaps == 0 || way != "lease", "{} overlaps", judged.overlaps);
        assert!(judged.errors.is_empty(), "{way}: {:#?}", judged.errors);
    }
}

async fn transaction_in_the_way<D: Dialect>(
    server: &'static DatabaseServer<D>,
    statements: &'static str,
) {
    let url = server.url();
    let client = Client::connect(&url).await.unwrap();
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    let name = database(&url).to_owned();
    let foreign = std::thread::spawn(move || server.sql(&name, statements));
    until("a transaction is in the way", || server.sleeping_sessions(database(&url)) == 1).await;
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    foreign.join().unwrap();
}

/// A holder released its locks while a transaction that they guard was still open.
async fn guarded_transaction<D: Dialect>(
    server: &'static DatabaseServer<D>,
    bound: [&str; 2],
    guard: &str,
    linger: &str,
) {
    let url = server.url();
    let mut clients = Vec::new();
    let mut statements = "BEGIN;".to_owned();
    for way in ["lease", bound[0], bound[1]] {
        let place = format!("{}&connections=1", strategy(&url, way));
        let client = Client::connect(place).await.unwrap();
        let held = client.mutex(way).ttl(LEASE).acquire().await.unwrap();
        statements += &format!("{guard}('{way}', {});", held.fence());
        clients.push((way, client, held.fence()));
        held.release().await.unwrap();
    }
    let mut holders = Vec::new();
    for (way, client, _) in &clients {
        let held = client.mutex(format!("{way} held")).ttl(LEASE).acquire().await.unwrap();
        statements += &format!("{guard}('{way} held', {});", held.fence());
        holders.push((way, client, held));
    }
    statements += &format!("{linger}; COMMIT");
    let name = database(&url).to_owned();
    let foreign = std::thread::spawn(move || server.sql(&name, &statements));
    until("a transaction is guarded", || server.sleeping_sessions(database(&url)) == 1).await;
    for (way, client, held) in &holders {
        let asked = timeout(Duration::from_secs(2), client.request_yield(held.key())).await;
        assert_eq!(asked.expect("it waits for no transaction").unwrap().len(), 1, "{way}");
        timeout(SOON, held.yield_requested()).await.expect("the holder is told");
        held.check().unwrap();
    }
    let mut waiters = Vec::new();
    for (way, client, fence) in &clients {
        let other = client.clone();
        waiters.push((way, fence, tokio::spawn(other.mutex(way).ttl(LEASE).acquire())));
    }
    for (way, client, _) in &clients {
        for n in 0..12 {
            let lock = client.mutex(format!("{way} {n}")).ttl(LEASE);
            match lock.try_acquire().await {
                Ok(Some(free)) => drop(free.release().await.unwrap()),
                other => panic!("{way}: a free lock should be had: {other:?}"),
            }
        }
        let stranger = Client::connect(strategy(&url, way)).await.unwrap();
        let asked = Instant::now();
        assert!(stranger.mutex(way).try_acquire().await.unwrap().is_none(), "{way}");
        assert!(asked.elapsed() < Duration::from_secs(4), "{way}: it waited for a try");
    }
    assert!(!foreign.is_finished(), "the machine is too slow for this test");
    for (way, _, waiter) in &waiters {
        assert!(!waiter.is_finished(), "{way}: let in beside a guarded transaction");
    }
    foreign.join().unwrap();
    for (way, fence, waiter) in waiters {
        let next = timeout(SOON, waiter).await.unwrap().unwrap().unwrap();
        assert!(next.fence() > *fence, "{way}");
    }
}

async fn release_after_silence<D: Dialect>(server: &DatabaseServer<D>) {
    let url = server.url();
    let client = Client::connect(&url).await.unwrap();
    let guard = client.mutex("key").ttl(LEASE * 20).acquire().await.unwrap();
    server.end_sessions(database(&url));
    // As if it were the silence that ended them.
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// Many processes that want one key, for a while, and what the key protects. Set
/// `LOCKKEEPER_CROWD="200 60 lease"` for other numbers of processes and seconds, or another strategy.
async fn crowd<D: Dialect>(server: &DatabaseServer<D>, program: &Program) {
    let wanted = std::env::var("LOCKKEEPER_CROWD").unwrap_or("60 5 lease".to_owned());
    let mut wanted = wanted.split(' ');
    let (processes, seconds) = (number(wanted.next()), number(wanted.next()));
    let way = wanted.next().expect("a strategy");
    let url = format!("{}&connections=1", strategy(&server.url(), way));
    let mut crowd = Vec::new();
    while crowd.len() < processes {
        let mut few: Vec<_> =
            (0..10).map(|_| Holder::start(program, &url, "key", &["--ttl", "20s"])).collect();
        for holder in &mut few {
            holder.said("asking").await;
        }
        crowd.append(&mut few);
    }
    let until = Instant::now() + Duration::from_secs(seconds as u64);
    let fences = Arc::new(Mutex::new(Vec::new()));
    let inside = Arc::new(Mutex::new(()));
    let mut tasks = JoinSet::new();
    for mut holder in crowd {
        let (fences, inside) = (fences.clone(), inside.clone());
        tasks.spawn(async move {
            // A process that gets an error reports it, which ends this with a panic that shows it.
            loop {
                let fence = holder.granted().await;
                let alone = inside.try_lock().expect("another process is in as well");
                fences.lock().unwrap().push(fence);
                drop(alone);
                assert_eq!(holder.ask("release").await, "Released");
                if Instant::now() > until {
                    break holder.finish();
                }
                holder.tell("acquire");
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let fences = fences.lock().unwrap();
    println!("{processes} processes, {seconds} s, {way}: {} grants", fences.len());
    assert!(fences.is_sorted_by(|a, b| a < b), "fences do not rise");
    assert_eq!(fences.iter().collect::<BTreeSet<_>>().len(), fences.len());
    assert!(fences.len() >= processes, "somebody was never let in");
}

fn number(word: Option<&str>) -> usize {
    word.and_then(|word| word.parse().ok()).expect("a number")
}
