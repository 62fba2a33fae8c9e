//! A replica that follows the server.

use lockkeeper::engine::Severity;
use lockkeeper::{Client, Release};
use lockkeeper_testkit::server::{Dialect, Mariadb, MariadbDialect, eventually};

use super::{LEASE, database};

/// What is in the memory of a replica is gone after a restart. A replica that is told to change a
/// row that it does not have stops following.
#[tokio::test]
async fn a_replica_that_restarts_goes_on_following() {
    let [source, replica] = [1, 2].map(|id| {
        let id = format!("server-id={id}");
        Mariadb::with(&[
            "innodb-flush-log-at-trx-commit=2",
            "log-bin=binary",
            "relay-log-recovery=ON",
            &id,
        ])
    });
    // MySQL renamed these statements in 8.0.23, and removed the old names in 8.4.
    let is_renamed =
        source.is_mysql() && !source.sql("mysql", "SELECT VERSION()").starts_with("8.0");
    let (from, follower) = if is_renamed { ("SOURCE", "REPLICA") } else { ("MASTER", "SLAVE") };
    let logs = source.sql("mysql", "SHOW BINARY LOGS");
    let first = logs.split_whitespace().next().expect("it writes one");
    let change = match (is_renamed, source.is_mysql()) {
        (true, _) => format!(
            "CHANGE REPLICATION SOURCE TO GET_SOURCE_PUBLIC_KEY = 1, SOURCE_LOG_FILE = '{first}',
               SOURCE_LOG_POS = 4"
        ),
        (_, true) => format!("CHANGE MASTER TO MASTER_LOG_FILE = '{first}', MASTER_LOG_POS = 4"),
        _ => {
            "CHANGE MASTER TO MASTER_USE_GTID = slave_pos, MASTER_SSL_VERIFY_SERVER_CERT = 0".into()
        }
    };
    replica.sql(
        "mysql",
        &format!(
            "{change}, {from}_HOST = '127.0.0.1', {from}_PORT = {}, {from}_USER = 'root';
             START {follower}",
            source.port()
        ),
    );
    let url = source.url();
    let read = "SELECT fence FROM lockkeeper_lock";
    let follows = || {
        eventually("the replica has what the source has", || {
            // There may be no such table yet.
            let mut asking = MariadbDialect::client(replica.port(), database(&url), read);
            let found = asking.output().map_err(|error| error.to_string())?;
            match String::from_utf8_lossy(&found.stdout).trim_end()
                == source.sql(database(&url), read)
            {
                true => Ok(()),
                false => Err(replica.sql("mysql", &format!("SHOW {follower} STATUS"))),
            }
        });
    };
    // As created, and as a server has it that was started without a binary log before.
    for engine in ["InnoDB", "MEMORY"] {
        let [one, other] =
            [Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap()];
        for _ in 0..2 {
            for client in [&one, &one, &other] {
                let guard = client.mutex("key").ttl(LEASE).acquire().await.unwrap();
                assert_eq!(guard.release().await.unwrap(), Release::Released);
            }
            follows();
            // It follows again by itself.
            replica.restart();
        }
        follows();
        let findings = one.doctor().await.unwrap();
        let warned = findings.iter().any(|finding| {
            finding.severity == Severity::Warning
                && finding.what.contains("lockkeeper_freed is in memory")
        });
        assert_eq!(warned, engine == "MEMORY", "{findings:?}");
        source.sql(database(&url), "ALTER TABLE lockkeeper_freed ENGINE = MEMORY");
    }
}
