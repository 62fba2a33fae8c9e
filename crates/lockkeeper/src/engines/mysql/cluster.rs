//! Servers that share their data with others as equals: Galera, and MySQL Group Replication.
//!
//! Easy to get wrong: members exchange commits and nothing else. What is in a server's memory
//! (named locks, row locks, tables of the engine `MEMORY`) is known to that member only. And a
//! server that has left its group may take writes that the members never see.

use std::collections::HashMap;
use std::io;

use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use super::error::is_denied;
use crate::engines::sql::{STATEMENT, Sessions, within};
use crate::error::Result;

/// How a server shares its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cluster {
    /// Alone, or with replicas that only follow.
    None,
    /// A member of a Galera cluster.
    Galera,
    /// A member of a group in which all members take writes.
    MultiPrimary,
    /// A member of a group in which one member takes writes; the others are read-only.
    SinglePrimary,
}

impl Cluster {
    /// What the server is, if other members take writes too.
    pub(super) fn of_primaries(self) -> Option<&'static str> {
        match self {
            Cluster::Galera => Some("a Galera cluster"),
            Cluster::MultiPrimary => Some("a multi-primary group (Group Replication)"),
            Cluster::None | Cluster::SinglePrimary => None,
        }
    }

    /// Whether the server refuses to write tables that it keeps in memory.
    pub(super) fn is_group(self) -> bool {
        matches!(self, Cluster::MultiPrimary | Cluster::SinglePrimary)
    }
}

/// Finds out on one of these connections.
pub(super) async fn cluster_of(sessions: &Sessions<MySqlConnection>) -> Result<Cluster> {
    let mut session = sessions.any().await?;
    let cluster = within(STATEMENT, cluster(session.wire())).await;
    session.settle(cluster, "look for a cluster")
}

/// Finds out how the server of a connection shares its data. An error if it should and does not.
pub(super) async fn cluster(wire: &mut MySqlConnection) -> sqlx::Result<Cluster> {
    let asking = sqlx::query(
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN
           ('wsrep_on', 'group_replication_group_name', 'group_replication_single_primary_mode')",
    );
    let rows = asking.fetch_all(&mut *wire).await?;
    let cell = |row: &sqlx::mysql::MySqlRow, n| row.try_get::<String, _>(n);
    let variables = rows.iter().map(|row| Ok((cell(row, 0)?, cell(row, 1)?)));
    let cluster = described(&variables.collect::<sqlx::Result<_>>()?);
    if cluster.is_group() && !is_online(wire).await? {
        let why = "the server is configured for a group (group_replication_group_name), and not a \
                   member of it now: it would grant locks that the members grant too";
        return Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::NotConnected, why)));
    }
    Ok(cluster)
}

/// What a server's settings make of it.
fn described(variables: &HashMap<String, String>) -> Cluster {
    let variable = |name: &str| variables.get(name).map_or("", String::as_str);
    if variable("wsrep_on") == "ON" {
        Cluster::Galera
    } else if variable("group_replication_group_name").is_empty() {
        Cluster::None
    } else if variable("group_replication_single_primary_mode") == "ON" {
        Cluster::SinglePrimary
    } else {
        Cluster::MultiPrimary
    }
}

/// Whether a server that is configured for a group takes part in it. If this user may not ask, it
/// is assumed: with `group_replication_start_on_boot` a server takes no writes before it has joined.
async fn is_online(wire: &mut MySqlConnection) -> sqlx::Result<bool> {
    let asking = sqlx::query_scalar::<_, i64>(
        "SELECT COUNT(*) FROM performance_schema.replication_group_members
         WHERE member_id = @@server_uuid AND member_state = 'ONLINE'",
    );
    match asking.fetch_one(wire).await {
        Err(error) if is_denied(&error) => Ok(true),
        members => Ok(members? > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_a_server_tell_its_cluster() {
        let described = |variables: &[(&str, &str)]| {
            let owned = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
            described(&owned.collect())
        };
        let (group, mode) =
            ("group_replication_group_name", "group_replication_single_primary_mode");
        assert_eq!(described(&[]), Cluster::None);
        assert_eq!(described(&[("wsrep_on", "OFF")]), Cluster::None);
        assert_eq!(described(&[("wsrep_on", "ON")]), Cluster::Galera);
        // The plugin is loaded, and not configured.
        assert_eq!(described(&[(group, ""), (mode, "ON")]), Cluster::None);
        assert_eq!(described(&[(group, "a"), (mode, "ON")]), Cluster::SinglePrimary);
        assert_eq!(described(&[(group, "a"), (mode, "OFF")]), Cluster::MultiPrimary);
    }
}
