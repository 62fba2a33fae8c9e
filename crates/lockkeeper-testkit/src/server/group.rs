//! A MySQL group: servers that share their data by Group Replication, of a MySQL that was fetched with
//! its plugins.

use std::ops::Deref;
use std::process::Command;
use std::time::Duration;

use super::database::Dialect;
use super::galera::Member;
use super::mariadb::MariadbDialect;
use super::supervised::{Home, Supervised};
use super::{eventually_within, fetched, program, run};
use crate::ports::free_port;

/// How long a member may take to join again: it copies what it missed, and the others first have to
/// give up on it.
const JOINING: Duration = Duration::from_secs(120);

const START: &str = "START GROUP_REPLICATION";

/// Members of one group.
#[derive(Debug)]
pub struct Group(Vec<Member>);

impl Group {
    /// Starts a group in which the first member takes writes.
    ///
    /// # Panics
    /// When no MySQL with the plugin was fetched, or a member does not start or join.
    pub fn single_primary(members: usize) -> Self {
        Self::start(members, &["group-replication-single-primary-mode=ON"])
    }

    /// Starts a group in which all members take writes, and no table can be in memory, as MySQL's
    /// manual advises.
    ///
    /// # Panics
    /// Same as [`single_primary`](Group::single_primary).
    pub fn multi_primary(members: usize) -> Self {
        let settings = [
            "group-replication-single-primary-mode=OFF",
            "group-replication-enforce-update-everywhere-checks=ON",
            "disabled-storage-engines=MyISAM,BLACKHOLE,FEDERATED,ARCHIVE,MEMORY",
        ];
        Self::start(members, &settings)
    }

    fn start(members: usize, mode: &[&str]) -> Self {
        let plugin = "../root/usr/lib/mysql/plugin/group_replication.so";
        let there = fetched("mysqld").is_some_and(|it| it.with_file_name(plugin).exists());
        assert!(
            there,
            "Group Replication needs a MySQL of scripts/servers: scripts/test-versions mysql"
        );
        let ports: Vec<_> = (0..members).map(|_| free_port()).collect();
        let addresses: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let seeds = format!("group-replication-group-seeds={}", addresses.join(","));
        let group = Self(addresses.iter().map(|address| member(address, &seeds, mode)).collect());
        for (n, member) in group.iter().enumerate() {
            // The first makes the group.
            let bootstrap = if n == 0 { "ON" } else { "OFF" };
            member.sql(
                "mysql",
                &format!(
                    "CHANGE REPLICATION SOURCE TO SOURCE_USER = 'root'
                       FOR CHANNEL 'group_replication_recovery';
                     SET GLOBAL group_replication_bootstrap_group = {bootstrap};
                     {START};
                     SET GLOBAL group_replication_bootstrap_group = OFF"
                ),
            );
            group.join(n);
            let marker = member.directory().join("joined");
            std::fs::write(marker, "").expect("there is room for a file");
        }
        group
    }

    /// The URLs of a new database, one by each member.
    pub fn urls(&self, database: &str) -> Vec<String> {
        self[0].sql("mysql", &format!("CREATE DATABASE {database}"));
        self.iter().map(|member| MariadbDialect::url(member.port(), database)).collect()
    }

    /// Starts a member that was killed, and waits until it has joined again.
    pub fn restart(&self, n: usize) {
        // They refuse it until they have given up on the one that was killed, and such an attempt
        // may take a minute.
        let (next, port) = (&self[(n + 1) % self.len()], self[n].port());
        let listed = format!(
            "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE member_port = {port}"
        );
        eventually_within(JOINING, "the others have given up on the member", || {
            match next.sql("mysql", &listed).as_str() {
                "0" => Ok(()),
                _ => Err(next.log()),
            }
        });
        self[n].restart();
        self.join(n);
    }

    fn join(&self, n: usize) {
        let state = "SELECT member_state FROM performance_schema.replication_group_members
                     WHERE member_port = @@port";
        eventually_within(JOINING, "the member is in its group", || {
            match self[n].sql("mysql", state).as_str() {
                "ONLINE" => return Ok(()),
                "RECOVERING" => {}
                // Refused as long as the others wait for the member that was killed.
                _ => drop(MariadbDialect::client(self[n].port(), "mysql", START).output()),
            }
            Err(self[n].log())
        });
    }
}

/// A server that is not in its group yet.
fn member(address: &str, seeds: &str, mode: &[&str]) -> Member {
    let (home, port) = (Home::of(MariadbDialect::USER), free_port());
    let install = MariadbDialect::install(home.path());
    run(home.command(install.get_program()).args(install.get_args()));
    let (id, address) =
        (format!("server-id={port}"), format!("group-replication-local-address={address}"));
    let settings = [
        "innodb-flush-log-at-trx-commit=2",
        "sync-binlog=0",
        "log-bin=binary",
        "gtid-mode=ON",
        "enforce-gtid-consistency=ON",
        &id,
        "report-host=127.0.0.1",
        "plugin-load-add=group_replication.so",
        "group-replication-group-name=6c6f636b-6b65-6570-6572-000000000000",
        &address,
        seeds,
    ];
    let settings = [&settings[..], mode].concat();
    let server = MariadbDialect::server(home.path(), port, &settings);
    // As usual, a member that is started again takes no writes before it has joined.
    let start = "[ -e joined ] || set -- \"$@\" --group-replication-start-on-boot=OFF; exec \"$@\"";
    let mut command = Command::new(program("sh", "dash"));
    command.args(["-c", start, "sh"]).arg(server.get_program()).args(server.get_args());
    Member(Supervised::start(home, port, command, MariadbDialect::is_ready))
}

impl Deref for Group {
    type Target = [Member];

    fn deref(&self) -> &[Member] {
        &self.0
    }
}
