//! What a process of the storm is told at its start.

use std::path::PathBuf;
use std::time::Duration;

use super::Kind;
use crate::bugs::Bug;

/// The arguments of a process, one `name=value` each.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Brief {
    pub(super) url: String,
    pub(super) log: PathBuf,
    /// The socket of the resource.
    pub(super) resource: PathBuf,
    pub(super) tasks: usize,
    pub(super) ttl: Duration,
    pub(super) kinds: Vec<Kind>,
    pub(super) prefix: String,
    pub(super) keys: usize,
    pub(super) bug: Option<Bug>,
    pub(super) seed: u64,
}

impl Brief {
    pub(super) fn to_arguments(&self) -> Vec<String> {
        let kinds: Vec<_> = self.kinds.iter().map(|kind| kind.name()).collect();
        vec![
            format!("url={}", self.url),
            format!("log={}", self.log.display()),
            format!("resource={}", self.resource.display()),
            format!("tasks={}", self.tasks),
            format!("ttl={}", self.ttl.as_millis()),
            format!("kinds={}", kinds.join(",")),
            format!("prefix={}", self.prefix),
            format!("keys={}", self.keys),
            format!("bug={}", self.bug.map_or("", Bug::name)),
            format!("seed={}", self.seed),
        ]
    }

    /// `None` if something is missing or makes no sense.
    pub(super) fn parse(arguments: &[String]) -> Option<Self> {
        let text = |name: &str| {
            let named = |argument: &String| {
                argument.strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
            };
            arguments.iter().find_map(named)
        };
        let bug = text("bug")?;
        Some(Self {
            url: text("url")?,
            log: text("log")?.into(),
            resource: text("resource")?.into(),
            tasks: text("tasks")?.parse().ok()?,
            ttl: Duration::from_millis(text("ttl")?.parse().ok()?),
            kinds: text("kinds")?.split(',').map(Kind::named).collect::<Option<_>>()?,
            prefix: text("prefix")?,
            keys: text("keys")?.parse().ok()?,
            bug: Bug::ALL.iter().copied().find(|known| known.name() == bug),
            seed: text("seed")?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_what_the_storm_writes() {
        let brief = Brief {
            url: "redis://:a=b@127.0.0.1?prefix=x".to_owned(),
            log: "/tmp/log".into(),
            resource: "/tmp/socket".into(),
            tasks: 3,
            ttl: Duration::from_millis(1500),
            kinds: Kind::ALL.to_vec(),
            prefix: "torture-1/".to_owned(),
            keys: 2,
            bug: Some(Bug::RenewRecreates),
            seed: 7,
        };
        assert_eq!(Brief::parse(&brief.to_arguments()), Some(brief));
        assert_eq!(Brief::parse(&[]), None);
    }
}
