//! Many processes, all kinds of locks, and everything that can happen to a database at once, for every
//! strategy of PostgreSQL and MariaDB.

use lockkeeper_testkit::holder::Program;
use lockkeeper_testkit::server::{DatabaseServer, Dialect, Mariadb, Postgres};
use lockkeeper_testkit::storm::deployment::Database;
use lockkeeper_testkit::storm::{Kind, Plan, Storm};

#[test]
fn helper_process() {
    lockkeeper_testkit::holder::main_of_test();
}

/// One storm for each strategy, and what its locks can be.
macro_rules! storms {
    ($($test:ident: $server:ident, $way:literal, $kinds:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            rage(<$server>::start(), $way, $kinds).await;
        }
    )*};
}

const MUTEXES: [Kind; 3] = [Kind::Mutex, Kind::Reentrant, Kind::Fair];
const SHARED: [Kind; 4] = [Kind::Mutex, Kind::Reentrant, Kind::Fair, Kind::ReadWrite];
const ALL: [Kind; 5] = [Kind::Mutex, Kind::Reentrant, Kind::Fair, Kind::ReadWrite, Kind::Permits];

storms! {
    a_storm_on_leases_of_postgres: Postgres, "lease", &ALL;
    a_storm_on_advisory_locks_of_postgres: Postgres, "advisory", &SHARED;
    a_storm_on_rows_of_postgres: Postgres, "row", &MUTEXES;
    a_storm_on_leases_of_mariadb: Mariadb, "lease", &ALL;
    a_storm_on_named_locks_of_mariadb: Mariadb, "named", &MUTEXES;
    a_storm_on_rows_of_mariadb: Mariadb, "row", &MUTEXES;
}

async fn rage<D: Dialect>(server: DatabaseServer<D>, way: &'static str, kinds: &[Kind]) {
    let plan = Plan { kinds: kinds.to_vec(), ..Plan::default() };
    let database = Database::new(server, way);
    let judgement = Storm::over(&Program::test(module_path!()), &database, plan).await;
    println!("{way}: {judgement}");
    assert!(judgement.grants() > 0 && judgement.violations.is_empty(), "{way}: {judgement}");
    // A server frees the locks of a connection as soon as it ends, and the holder is signalled
    // later.
    assert!(judgement.overlaps.is_empty() || way != "lease", "{way}: {judgement}");
}
