//! Checks a real deployment for problems.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use super::cluster::{Cluster, cluster};
use super::connect::is_replicated_memory;
use super::error::number;
use super::waiters::waiters;
use crate::engine::{Finding, Severity};
use crate::engines::sql::{
    Dialect, STATEMENT, Sessions, seconds_since_1970, version_finding, within,
};
use crate::error::Result;

/// Checks the server, its settings, and our permissions.
pub(super) async fn look(sessions: &Sessions<MySqlConnection>) -> Result<Vec<Finding>> {
    let mut session = sessions.any().await?;
    let asking = async {
        let wire = session.wire();
        let mut settings = settings(wire).await?;
        let allowed = may_write(wire).await?;
        let tables = wire.tables().await?.unwrap_or(0);
        let cluster = cluster(wire).await?;
        let is_replicated_memory = is_replicated_memory(wire).await?;
        let waiters = waiters(wire).await?;
        if waiters.is_ok() && !settings.contains_key(REPLICAS) {
            let number: i64 = sqlx::query_scalar(DUMPS).fetch_one(&mut *wire).await?;
            settings.insert(REPLICAS.to_owned(), number.to_string());
        }
        let asking = sqlx::query(
            "SELECT VERSION() AS version, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) AS moved,
               ABS(UNIX_TIMESTAMP(SYSDATE(6)) - ?) AS skew
             FROM (SELECT SLEEP(0.02)) AS a_moment",
        );
        let row = asking.bind(seconds_since_1970()).fetch_one(wire).await?;
        Ok((settings, allowed, tables, cluster, is_replicated_memory, waiters, row))
    };
    let answer = within(STATEMENT, asking).await;
    let (settings, allowed, tables, cluster, is_replicated_memory, waiters, row) =
        session.settle(answer, "look at the server")?;
    let setting = |name: &str| settings.get(name).map_or("unknown", String::as_str);
    let count = |name: &str| setting(name).parse::<i64>().ok();
    let mut findings = vec![
        Finding::fine(product(row.get("version"))),
        version_finding::<MySqlConnection>(tables),
        // Locks work without it.
        Finding::fine(match waiters {
            Ok(_) => "waiters of strategy=named are shown".to_owned(),
            Err(why) => format!("waiters of strategy=named are unknown: {why}"),
        }),
    ];
    let mut judge = |is_fine, otherwise, what: String, advice: &str| {
        findings.push(Finding::check(is_fine, otherwise, what, advice));
    };
    judge(
        allowed,
        Severity::Problem,
        format!(
            "this user {} read and write the tables of lockkeeper, and call its procedures",
            if allowed { "may" } else { "may not" }
        ),
        "grant SELECT, INSERT, UPDATE, DELETE and EXECUTE on the database",
    );
    let writable = setting("read_only") == "OFF";
    judge(
        writable,
        Severity::Problem,
        format!("the server {}", if writable { "takes writes" } else { "is read-only" }),
        "name the primary: locks on a replica exclude nobody",
    );
    let isolation = setting("isolation");
    judge(
        isolation == "READ-COMMITTED",
        Severity::Problem,
        format!("isolation of our sessions is {isolation}"),
        "something between us and the server resets sessions; connect without it",
    );
    let moves = row.get::<i64, _>("moved") > 10_000;
    judge(
        moves,
        Severity::Problem,
        format!(
            "SYSDATE() is the time of its {}",
            if moves { "call" } else { "statement's start" }
        ),
        "start the server without --sysdate-is-now: leases would be counted from a stale time",
    );
    let flush = setting("innodb_flush_log_at_trx_commit");
    judge(
        flush == "1",
        Severity::Warning,
        format!("innodb_flush_log_at_trx_commit is {flush}"),
        "set it to 1: a power failure may forget the grants of the last second",
    );
    let (binlog, sync) = (setting("log_bin"), setting("sync_binlog"));
    judge(
        binlog == "OFF" || sync == "1",
        Severity::Warning,
        format!("sync_binlog is {sync}, and the binary log is {binlog}"),
        "set it to 1 where replicas take over: they may miss the last grants",
    );
    let format = setting("binlog_format");
    judge(
        binlog == "OFF" || format != "STATEMENT",
        Severity::Problem,
        format!("binlog_format is {format}, and the binary log is {binlog}"),
        "set it to MIXED or ROW: the server refuses our writes otherwise",
    );
    judge(
        !is_replicated_memory,
        Severity::Warning,
        match is_replicated_memory {
            true => "there is a binary log, and lockkeeper_freed is in memory".into(),
            false => "no table in memory is written to a binary log".into(),
        },
        "uncontended locks take longer, because a replica that restarts would miss its rows; run what \
         `lockkeeper explain --schema mysql:` prints, which moves it to the disk",
    );
    // MySQL has another name for waiting, or none if the plugin is not installed, and does not
    // report the number of replicas to every user: there may be some if there is a binary log.
    let waits = ["rpl_semi_sync_source_enabled", "rpl_semi_sync_master_enabled"];
    let waits = waits.iter().find_map(|name| settings.get(*name)).map_or("OFF", String::as_str);
    let replicas = count(REPLICAS);
    let has_replicas =
        !cluster.is_group() && replicas.map_or(binlog == "ON", |replicas| replicas > 0);
    let number = replicas.map_or_else(|| "unknown".to_owned(), |replicas| replicas.to_string());
    judge(
        !has_replicas || waits == "ON",
        Severity::Warning,
        format!(
            "the number of connected replicas is {number}, and semi-synchronous replication is {waits}"
        ),
        "a failover to a replica that lags forgets the last grants; enable semi-synchronous replication",
    );
    let primaries = cluster.of_primaries();
    judge(
        primaries.is_none(),
        Severity::Warning,
        match (primaries, cluster) {
            (Some(cluster), _) => format!("the server is a member of {cluster}"),
            (_, Cluster::SinglePrimary) => {
                "the server is the primary of a group (Group Replication)".into()
            }
            _ => "no other server takes writes".into(),
        },
        "only strategy=lease works here, and every member counts by its own clock: keep their clocks \
         within a third of the shortest ttl",
    );
    let idle = count("wait_timeout");
    judge(
        idle.is_none_or(|idle| idle >= 60),
        Severity::Warning,
        format!("connections may be idle for {} s (wait_timeout)", setting("wait_timeout")),
        "locks are not hurt, but connections are opened again and again; raise it",
    );
    let (connections, used) = (count("max_connections"), count("threads_connected"));
    if let (Some(connections), Some(used)) = (connections, used) {
        judge(
            used * 10 < connections * 8,
            Severity::Warning,
            format!("{used} of {connections} connections are in use"),
            "raise max_connections, or lower the option connections of clients",
        );
    }
    let skew: f64 = row.get("skew");
    judge(
        skew < 5.0,
        Severity::Warning,
        format!("the server's clock and ours differ by {skew:.1} s"),
        "leases are counted by the server's clock alone; but keep clocks in step for fences",
    );
    Ok(findings)
}

/// The number of connected replicas. MySQL has no variable for it.
const REPLICAS: &str = "slaves_connected";
const DUMPS: &str = "SELECT CAST(COUNT(*) AS SIGNED) FROM performance_schema.threads
                     WHERE processlist_command LIKE 'Binlog Dump%'";

/// The server and its version: they differ in more than their versions tell.
fn product(version: &str) -> String {
    let name = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
    format!("{name} {}", version.split('-').next().unwrap_or(version))
}

/// The server's variables, by lower-case names; `isolation` is that of our own session.
async fn settings(wire: &mut MySqlConnection) -> sqlx::Result<HashMap<String, String>> {
    let mut settings = HashMap::new();
    for statement in [
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'log_bin',
           'sync_binlog', 'binlog_format', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled',
           'wait_timeout', 'max_connections', 'read_only')",
        "SHOW GLOBAL STATUS WHERE Variable_name IN ('Slaves_connected', 'Threads_connected')",
        "SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')",
    ] {
        for row in sqlx::query(statement).fetch_all(&mut *wire).await? {
            let name = row.try_get::<String, _>(0)?.to_lowercase();
            let name = if name.ends_with("_isolation") { "isolation".to_owned() } else { name };
            settings.insert(name, row.try_get(1)?);
        }
    }
    Ok(settings)
}

/// Tries every statement that we use, on no row at all.
async fn may_write(wire: &mut MySqlConnection) -> sqlx::Result<bool> {
    for statement in [
        "DELETE FROM lockkeeper_lock WHERE FALSE",
        "DELETE FROM lockkeeper_claim WHERE FALSE",
        "DELETE FROM lockkeeper_freed WHERE FALSE",
        "DELETE FROM lockkeeper_bound WHERE FALSE",
        "UPDATE lockkeeper_lock SET fence = 0 WHERE FALSE",
        "UPDATE lockkeeper_claim SET fence = 0 WHERE FALSE",
        "UPDATE lockkeeper_freed SET token = '' WHERE FALSE",
        "UPDATE lockkeeper_bound SET fence = 0 WHERE FALSE",
        "UPDATE lockkeeper_row SET pid = 0 WHERE FALSE",
        "INSERT INTO lockkeeper_lock SELECT * FROM lockkeeper_lock WHERE FALSE",
        "INSERT INTO lockkeeper_claim SELECT * FROM lockkeeper_claim WHERE FALSE",
        "INSERT INTO lockkeeper_freed SELECT * FROM lockkeeper_freed WHERE FALSE",
        "INSERT INTO lockkeeper_bound SELECT * FROM lockkeeper_bound WHERE FALSE",
        "INSERT INTO lockkeeper_row SELECT * FROM lockkeeper_row WHERE FALSE",
        "CALL lockkeeper_renew('[]')",
    ] {
        match sqlx::query(statement).execute(&mut *wire).await {
            Ok(_) => {}
            // Refused by table, or by procedure.
            Err(sqlx::Error::Database(error)) if matches!(number(&*error), Some(1142 | 1370)) => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
