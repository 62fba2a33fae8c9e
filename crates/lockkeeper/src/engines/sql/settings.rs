//! The settings in the URL of a database.
//!
//! Options are ours or those that the client crate reads from a URL itself. Any other option is an
//! error.

use sqlx::ConnectOptions;

use crate::engines::endpoint::{Endpoint, Options};
use crate::error::{Error, Result};

/// The settings of both databases: the strategy `S`, and how to connect.
pub(crate) struct Settings<S, O> {
    pub(crate) strategy: S,
    pub(crate) options: O,
    pub(crate) connections: usize,
    pub(crate) create: Create,
    password_file: Option<String>,
}

/// Who creates the tables if they do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Create {
    /// A client that connects.
    Yes,
    /// A client's first claim: one that only looks changes nothing.
    Later,
    /// An administrator.
    No,
}

impl<S: Copy, O: ConnectOptions> Settings<S, O> {
    /// Reads the remaining `options` of a URL. The first strategy is the default; `native` are the
    /// options of the client crate.
    pub(crate) fn of(
        endpoint: &Endpoint,
        mut options: Options,
        strategies: &[(&'static str, S)],
        native: &[&'static str],
    ) -> Result<Self> {
        let strategy = options.choice("strategy", strategies)?.unwrap_or(strategies[0].1);
        let create = [("yes", Create::Yes), ("later", Create::Later), ("no", Create::No)];
        let create = options.choice("create", &create)?.unwrap_or(Create::Yes);
        let connections = connections(options.take("connections")?)?;
        let password_file = options.take("password_file")?;
        let mut url = endpoint.expose().clone();
        url.set_query(None);
        for name in native {
            if let Some(value) = options.take(name)? {
                url.query_pairs_mut().append_pair(name, &value);
            }
        }
        options.finish()?;
        let options = O::from_url(&url)
            .map_err(|error| Error::Url(format!("{}: {error}", endpoint.scheme())))?
            .disable_statement_logging();
        Ok(Self { strategy, options, connections, create, password_file })
    }

    /// Reads the password from its file, if there is one.
    pub(crate) fn with_password(mut self, set: impl FnOnce(O, &str) -> O) -> Result<Self> {
        if let Some(path) = &self.password_file {
            let text = std::fs::read_to_string(path).map_err(|e| {
                Error::Url(format!("option password_file: cannot read {path:?}: {e}"))
            })?;
            self.options = set(self.options, text.trim_end_matches(['\r', '\n']));
        }
        Ok(self)
    }
}

/// How many connections a client keeps for its requests.
fn connections(option: Option<String>) -> Result<usize> {
    let Some(text) = option else { return Ok(4) };
    match text.parse() {
        Ok(n @ 1..=64) => Ok(n),
        _ => Err(Error::Url(format!(
            "option connections cannot be {text:?}; it is a number from 1 to 64"
        ))),
    }
}
