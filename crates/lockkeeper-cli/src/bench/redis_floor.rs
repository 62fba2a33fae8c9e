//! The floors of Redis: what the same client crate takes without the library, and the server's
//! counts.

use std::time::Duration;

use lockkeeper::endpoint::Endpoint;
use lockkeeper::engines::redis::Redis;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};

use crate::exit::{self, Failure};

/// A connection of the same client crate, without the library.
#[derive(Clone)]
pub(super) struct Floor {
    pub(super) connection: MultiplexedConnection,
    prefix: String,
    naive_release: String,
    take: String,
    give: String,
}

impl Floor {
    pub(super) async fn connect(endpoint: &Endpoint) -> RedisResult<Self> {
        const NAIVE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
            return redis.call('del', KEYS[1]) end return 0";
        let mut url = endpoint.expose().clone();
        url.set_query(None);
        let patient =
            redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&patient).await?;
        let [take, give] = Redis::mutex_scripts();
        let mut load = async |text: &str| {
            redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut connection).await
        };
        let (naive_release, take, give) =
            (load(NAIVE).await?, load(take).await?, load(give).await?);
        let prefix = endpoint.options().take("prefix").ok().flatten().unwrap_or_default();
        Ok(Self { connection, prefix, naive_release, take, give })
    }

    /// A unique key.
    pub(super) fn key(&self, name: &str) -> String {
        format!("lockkeeper-bench-{} {name}", std::process::id())
    }

    /// The name of a key in the store.
    pub(super) fn stored(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, Failure> {
        self.connection.clone().send_packed_command(command).await.map_err(trouble)
    }

    /// How many of these commands the server has run so far.
    pub(super) async fn commands(&self, of: fn(&str) -> bool) -> RedisResult<u64> {
        let mut connection = self.connection.clone();
        let text: String =
            redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await?;
        Ok(calls(&text, of))
    }
}

/// The calls in an answer to `INFO commandstats`.
pub(super) fn calls(stats: &str, of: fn(&str) -> bool) -> u64 {
    let calls = stats.lines().filter_map(|line| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split(',').next()?.parse::<u64>().ok()?;
        of(command).then_some(calls)
    });
    calls.sum()
}

/// Everything but our own measuring.
pub(super) fn counts(command: &str) -> bool {
    command != "info"
}

pub(super) fn is_script(command: &str) -> bool {
    matches!(command, "eval" | "evalsha")
}

/// The names that a hand-written client would have formatted once.
pub(super) struct Bare {
    lock: String,
    state: String,
    mutex_queue: String,
    absent: String,
    channel: String,
    text: String,
}

/// Has the form of a token of the library.
const FIELD: &str = "0d1c0000-0000-4000-8000-000000000000:57";

impl Bare {
    pub(super) fn new(floor: &Floor, name: &str) -> Self {
        let lock = floor.stored(&floor.key(&format!("bare {name}")));
        Self {
            state: format!("lockkeeper:{{{lock}}}"),
            mutex_queue: format!("lockkeeper_mutex_queue:{{{lock}}}"),
            absent: format!("lockkeeper_absent:{{{lock}}}"),
            channel: format!("redisson_lock__channel:{{{lock}}}"),
            text: format!("{lock} text"),
            lock,
        }
    }

    pub(super) async fn naive(&self, floor: &Floor) -> Result<(), Failure> {
        let mut take = redis::cmd("SET");
        take.arg(&self.text).arg(FIELD).arg("NX").arg("PX").arg(30_000);
        floor.ask(&take).await?;
        let mut give = redis::cmd("EVALSHA");
        give.arg(&floor.naive_release).arg(1).arg(&self.text).arg(FIELD);
        floor.ask(&give).await.map(drop)
    }

    pub(super) async fn same(&self, floor: &Floor) -> Result<(), Failure> {
        let mut take = redis::cmd("EVALSHA");
        let keys = [&self.lock, &self.state, &self.mutex_queue];
        take.arg(&floor.take).arg(keys.len()).arg(&keys);
        // A trusted counter, a lifetime, a lease, a holder and its record, and no wish to wait.
        take.arg(1).arg(3_600_000).arg(30_000).arg(FIELD).arg("mutex\t1\tx\tuser@host 1\t");
        take.arg("0\tpublish\t6000\t");
        floor.ask(&take).await?;
        let mut give = redis::cmd("EVALSHA");
        let keys = [&self.lock, &self.mutex_queue, &self.absent];
        give.arg(&floor.give).arg(keys.len()).arg(&keys).arg(1).arg(FIELD);
        give.arg("publish").arg(&self.channel).arg(0).arg(0).arg(3_600_000);
        floor.ask(&give).await.map(drop)
    }
}

pub(super) fn trouble(error: redis::RedisError) -> Failure {
    Failure::new(exit::UNAVAILABLE, format!("redis: cannot measure the floor: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_counted_but_for_our_own_looking() {
        let stats = "# Commandstats\r\ncmdstat_info:calls=7,usec=9\r\n\
            cmdstat_evalsha:calls=3,usec=10,usec_per_call=3.33\r\ncmdstat_hset:calls=2,usec=1\r\n";
        assert_eq!((calls(stats, counts), calls(stats, is_script)), (5, 3));
    }
}
