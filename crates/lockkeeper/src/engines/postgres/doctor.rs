//! Checks a real deployment for problems.

use sqlx::Row;
use sqlx::postgres::PgConnection;

use super::statement::Sending;
use crate::engine::{Finding, Severity};
use crate::engines::sql::{STATEMENT, Sessions, seconds_since_1970, version_finding, within};
use crate::error::Result;

/// Checks the server, its settings, and the connection to it.
pub(super) async fn look(sessions: &Sessions<PgConnection>) -> Result<Vec<Finding>> {
    let mut session = sessions.any().await?;
    let sending = if sessions.is_lent() { Sending::Plain } else { Sending::Prepared };
    let asking = sending.ask(
        session.wire(),
        "SELECT version() AS version, pg_is_in_recovery() AS standby,
           current_setting('transaction_isolation') AS isolation,
           (SELECT coalesce(reset_val, '') FROM pg_settings WHERE name = 'synchronous_commit') AS commit,
           current_setting('fsync') AS fsync, current_setting('full_page_writes') AS pages,
           current_setting('synchronous_standby_names') AS standbys,
           (SELECT count(*) FROM pg_stat_replication) AS replicas,
           current_setting('max_connections')::bigint AS connections,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
           (SELECT reset_val FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout') AS idle,
           has_table_privilege('lockkeeper_all', 'SELECT') AND NOT EXISTS (
             SELECT FROM unnest(ARRAY['lock', 'claim', 'bound', 'last', 'row']) AS name,
                    unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS right_to
             WHERE NOT has_table_privilege('lockkeeper_' || name, right_to)) AS allowed,
           (SELECT relnamespace::regnamespace::text FROM pg_class
            WHERE oid = 'lockkeeper_lock'::regclass) AS schema,
           (SELECT string_agg(relnamespace::regnamespace::text, ', ') FROM pg_class
            WHERE relname = 'lockkeeper_lock' AND relkind = 'r' AND oid <> 'lockkeeper_lock'::regclass
              AND (SELECT source FROM pg_settings WHERE name = 'search_path') <> 'client') AS others,
           lockkeeper_version() AS tables, extract(epoch FROM clock_timestamp())::float8 AS clock",
        &[],
    );
    let answer = within(STATEMENT, asking).await;
    let ours = seconds_since_1970();
    let rows = session.settle(answer, "look at the server")?;
    let row = rows.first().expect("a statement without a table has one row");
    let mut findings = vec![
        Finding::fine(row.get::<&str, _>("version")),
        version_finding::<PgConnection>(row.get("tables")),
    ];
    let mut judge = |is_fine, otherwise, what: String, advice: &str| {
        findings.push(Finding::check(is_fine, otherwise, what, advice));
    };
    let allowed: bool = row.get("allowed");
    let may = if allowed { "may" } else { "may not" };
    judge(
        allowed,
        Severity::Problem,
        format!("the user {may} read and write the tables of lockkeeper"),
        "grant SELECT on lockkeeper_all, and SELECT, INSERT, UPDATE and DELETE on the tables named \
         lockkeeper_*",
    );
    let (schema, others): (&str, Option<&str>) = (row.get("schema"), row.get("others"));
    judge(
        others.is_none(),
        Severity::Warning,
        match others {
            None => format!("the tables are in the schema {schema}"),
            Some(others) => {
                format!("the tables are in the schema {schema}, and there are others in {others}")
            }
        },
        "clients exclude each other only in the same schema: name it by the option schema, or give all \
         users the same search_path",
    );
    let standby: bool = row.get("standby");
    judge(
        !standby,
        Severity::Problem,
        format!("the server is {}", if standby { "a standby" } else { "the primary" }),
        "name the primary: locks on a standby exclude nobody",
    );
    judge(
        row.get::<&str, _>("fsync") == "on",
        Severity::Warning,
        format!("fsync is {}", row.get::<&str, _>("fsync")),
        "switch fsync on: a power failure may forget locks and fences, or ruin the database",
    );
    judge(
        row.get::<&str, _>("commit") != "off",
        Severity::Warning,
        format!("synchronous_commit is {} by default", row.get::<&str, _>("commit")),
        "grants are committed durably all the same; your own data is not",
    );
    judge(
        row.get::<&str, _>("isolation") == "read committed",
        Severity::Problem,
        format!("isolation of our sessions is {}", row.get::<&str, _>("isolation")),
        "something between us and the server resets sessions; connect without it",
    );
    let replicas: i64 = row.get("replicas");
    let standbys: &str = row.get("standbys");
    judge(
        replicas == 0 || !standbys.is_empty(),
        Severity::Warning,
        match (replicas, standbys) {
            (0, _) => "the server has no standbys".to_owned(),
            (_, "") => format!("the server has {replicas} standbys, and commits wait for none"),
            _ => format!("the server has {replicas} standbys, and commits wait for {standbys:?}"),
        },
        "a failover to a standby that lags forgets the last grants; name synchronous_standby_names",
    );
    let (connections, used): (i64, i64) = (row.get("connections"), row.get("used"));
    judge(
        used * 10 < connections * 8,
        Severity::Warning,
        format!("{used} of {connections} connections are in use"),
        "raise max_connections, or lower the option connections of clients",
    );
    let idle: &str = row.get("idle");
    judge(
        idle == "0",
        Severity::Warning,
        format!("idle_in_transaction_session_timeout is {idle} ms by default"),
        "locks are not hurt: strategy row sets its own for its sessions",
    );
    let skew = (row.get::<f64, _>("clock") - ours).abs();
    judge(
        skew < 5.0,
        Severity::Warning,
        format!("the server's clock and ours differ by {skew:.1} s"),
        "leases are counted by the server's clock alone; but keep clocks in step for fences",
    );
    if sessions.is_lent() {
        findings.push(Finding::warning(
            "a pooler lends connections by transaction: waiters poll, and only strategy=lease works",
            "connect past the pooler, and waiters are notified at once",
        ));
        return Ok(findings);
    }
    // Not the one for renewals, which must not wait for us.
    let (mut session, mut second) = (sessions.any().await?, sessions.connect().await?);
    let answer = within(STATEMENT, is_direct(session.wire(), &mut second)).await;
    let direct = session.settle(answer, "look for a pooler")?;
    judge(
        direct,
        Severity::Problem,
        match direct {
            true => "every connection has a server process of its own".into(),
            false => "connections have no server process of their own".into(),
        },
        "a pooler lends connections by transaction; add pooler=transaction to the URL, or connect past it",
    );
    Ok(findings)
}

/// Whether two open connections each have a server process, and keep it. Behind a transaction-mode
/// pooler, the second gets the one that the first just returned; or, if the pooler assigns them in
/// turn, one of those that ask twice in a row gets two. Other clients may use some in between, so
/// we ask more than once, also at the same time: of two assigned processes, the first to be
/// returned is not the first to be assigned again.
///
/// Asked on connections that stay the same throughout: a replaced one has another process too.
pub(super) async fn is_direct(
    first: &mut PgConnection,
    second: &mut PgConnection,
) -> sqlx::Result<bool> {
    let (one, two) = (process(first).await?, process(second).await?);
    if one == two || two != process(second).await? || one != process(first).await? {
        return Ok(false);
    }
    for _ in 0..5 {
        if (one, two) != tokio::try_join!(process(first), process(second))? {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn process(wire: &mut PgConnection) -> sqlx::Result<i32> {
    // A simple query: a pooler may not support prepared statements.
    sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(wire).await?.try_get(0)
}
