//! What would hurt in a real deployment.

use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use crate::backend::{Finding, Severity};
use crate::backends::sql::{STATEMENT, Sessions, within};
use crate::error::Result;

/// Looks at the server and its settings.
pub(super) async fn look(sessions: &Sessions<MySqlConnection>) -> Result<Vec<Finding>> {
    let mut session = sessions.any().await?;
    let asking = sqlx::query(
        "SELECT VERSION() AS version, CAST(@@global.innodb_flush_log_at_trx_commit AS SIGNED) AS flush,
           CAST(@@global.log_bin AS SIGNED) AS binlog, CAST(@@global.sync_binlog AS SIGNED) AS sync,
           CAST(@@max_connections AS SIGNED) AS connections,
           (SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status
              WHERE variable_name = 'Threads_connected') AS used,
           (SELECT variable_value FROM information_schema.global_status
              WHERE variable_name = 'wsrep_cluster_size') AS galera,
           TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) AS moved,
           ABS(UNIX_TIMESTAMP(SYSDATE(6)) - ?) AS skew
         FROM (SELECT SLEEP(0.02)) AS a_moment",
    )
    .bind(seconds_since_1970())
    .fetch_one(session.wire());
    let answer = within(STATEMENT, asking).await;
    let row = session.settle(answer, "look at the server")?;
    let mut findings = vec![finding(Severity::Fine, row.get::<&str, _>("version"), "")];
    let mut judge = |fine: bool, otherwise: Severity, what: String, advice: &str| {
        let severity = if fine { Severity::Fine } else { otherwise };
        findings.push(finding(severity, &what, if fine { "" } else { advice }));
    };
    judge(
        row.get::<i64, _>("moved") > 10_000,
        Severity::Problem,
        "whether SYSDATE() is the time of its call".into(),
        "start the server without --sysdate-is-now: leases would be counted from a stale time",
    );
    let flush: i64 = row.get("flush");
    judge(
        flush == 1,
        Severity::Warning,
        format!("innodb_flush_log_at_trx_commit is {flush}"),
        "set it to 1: a power failure may forget the grants of the last second",
    );
    let (binlog, sync): (i64, i64) = (row.get("binlog"), row.get("sync"));
    judge(
        binlog == 0 || sync == 1,
        Severity::Warning,
        format!(
            "sync_binlog is {sync}, and the binary log is {}",
            ["off", "on"][usize::from(binlog != 0)]
        ),
        "set it to 1 where replicas take over: they may miss the last grants",
    );
    judge(
        row.get::<Option<&str>, _>("galera").is_none_or(|size| size == "0"),
        Severity::Warning,
        "whether the server is a member of a Galera cluster".into(),
        "let all clients use one member: two members may let two in, and one is rolled back later",
    );
    let (connections, used): (i64, Option<i64>) = (row.get("connections"), row.get("used"));
    if let Some(used) = used {
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

fn seconds_since_1970() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

fn finding(severity: Severity, what: &str, advice: &str) -> Finding {
    Finding { severity, what: what.to_owned(), advice: advice.to_owned() }
}
