//! A Galera cluster: MariaDB servers that share their data, from Debian's packages `mariadb-server` and
//! `galera-4`.

use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use super::database::Dialect;
use super::mariadb::MariadbDialect;
use super::supervised::{Home, Supervised};
use super::{program, run};
use crate::ports::free_port;

const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";

/// Members of one cluster.
#[derive(Debug)]
pub struct Galera(Vec<Member>);

/// One of them.
#[derive(Debug)]
pub struct Member(pub(super) Supervised);

impl Galera {
    /// Three members, of which one may fail.
    ///
    /// # Panics
    /// When they do not start, with the log of one.
    pub fn three() -> Self {
        assert!(Path::new(PROVIDER).exists(), "{PROVIDER} is missing; apt-get install galera-4");
        let group: Vec<_> = (0..3).map(|_| free_port()).collect();
        let addresses: Vec<_> = group.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let cluster = format!("gcomm://{}", addresses.join(","));
        let member = |port: &u16| Member::start(*port, &cluster, *port == group[0]);
        // One after the other: the first has the data that the others copy.
        Self(group.iter().map(member).collect())
    }

    /// The URLs of a new database, one by each member.
    pub fn urls(&self, database: &str) -> Vec<String> {
        self[0].sql("mysql", &format!("CREATE DATABASE {database}"));
        self.iter().map(|member| MariadbDialect::url(member.port(), database)).collect()
    }
}

impl Member {
    fn start(group: u16, cluster: &str, is_first: bool) -> Self {
        let (home, port) = (Home::of(MariadbDialect::USER), free_port());
        let install = MariadbDialect::install(home.path());
        run(home.command(install.get_program()).args(install.get_args()));
        let provider = format!(
            "wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{group};\
             ist.recv_addr=127.0.0.1:{};gcache.size=16M",
            free_port()
        );
        let settings = [
            "innodb-flush-log-at-trx-commit=2",
            "binlog-format=ROW",
            "innodb-autoinc-lock-mode=2",
            "wsrep-on=ON",
            &format!("wsrep-provider={PROVIDER}"),
            &format!("wsrep-cluster-address={cluster}"),
            &format!("wsrep-node-address=127.0.0.1:{group}"),
            &format!("wsrep-node-name={group}"),
            "wsrep-sst-method=rsync",
            &format!("wsrep-sst-receive-address=127.0.0.1:{}", free_port()),
            &provider,
        ];
        let server = MariadbDialect::server(home.path(), port, &settings);
        // The first makes the cluster if there is none yet, and joins it when it is started again.
        let start = match is_first {
            true => "[ -e data/grastate.dat ] || set -- \"$@\" --wsrep-new-cluster; exec \"$@\"",
            false => "exec \"$@\"",
        };
        let mut command = Command::new(program("sh", "dash"));
        command.args(["-c", start, "sh"]).arg(server.get_program()).args(server.get_args());
        Self(Supervised::start(home, port, command, is_synced))
    }

    /// Runs a statement, and returns what it answered, one row per line.
    pub fn sql(&self, database: &str, statement: &str) -> String {
        run(&mut MariadbDialect::client(self.port(), database, statement)).trim_end().to_owned()
    }
}

/// Whether a member takes statements.
fn is_synced(port: u16) -> bool {
    let asking = "SHOW STATUS LIKE 'wsrep_ready'";
    let output = MariadbDialect::client(port, "mysql", asking).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("ON"))
}

impl Deref for Galera {
    type Target = [Member];

    fn deref(&self) -> &[Member] {
        &self.0
    }
}

impl Deref for Member {
    type Target = Supervised;

    fn deref(&self) -> &Supervised {
        &self.0
    }
}
