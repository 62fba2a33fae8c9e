//! The flags, the environment and the configuration file, in this order of precedence.
//!
//! An unknown key is an error that lists the known ones. Passwords are put into the URL on the way
//! to the engine, and the URL is only printed as an [`Endpoint`], which leaves them out.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use clap::ValueEnum;
use lockkeeper::endpoint::{Endpoint, parse_duration};
use lockkeeper::{Client, DEFAULT_TTL};
use serde::Deserialize;

use crate::args::{OnLost, Secret, Where};
use crate::exit::Failure;
use crate::output::{Say, quoted};
use crate::prompt;

/// The engine that needs no server.
const DEFAULT_URL: &str = "file:";

/// The contents of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    url: Option<String>,
    ttl: Option<Text>,
    grace: Option<Text>,
    on_lost: Option<String>,
    password_file: Option<PathBuf>,
    record_command: Option<bool>,
    /// The engines of `ui`, by name.
    #[serde(default)]
    engines: BTreeMap<String, String>,
}

/// A duration in a file: `"30s"`, or a bare number of seconds.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Text {
    Written(String),
    Whole(u32),
    Seconds(f64),
}

/// Where a URL comes from, which decides who can see a password in it.
#[derive(Debug, Clone, Copy)]
enum Written {
    Typed,
    Environment,
    File,
}

/// The environment and the configuration file.
#[derive(Debug)]
pub(crate) struct Config {
    file: File,
    /// For messages.
    path: PathBuf,
    /// Whether to suppress warnings.
    quiet: bool,
}

impl Config {
    /// Reads the file that LOCKKEEPER_CONFIG names, or the default one if it exists.
    pub(crate) fn load() -> Result<Self, Failure> {
        let named = env::var_os("LOCKKEEPER_CONFIG").map(PathBuf::from);
        let Some(path) = named.clone().or_else(usual_path) else {
            return Ok(Self { file: File::default(), path: PathBuf::new(), quiet: false });
        };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => {
                String::new()
            }
            Err(error) => {
                let path = path.display();
                return Err(Failure::usage(format!(
                    "cannot read the configuration {path}: {error}"
                )));
            }
        };
        if text.is_empty() {
            return Ok(Self { file: File::default(), path, quiet: false });
        }
        // The parser's message quotes the line, which may contain a password in a URL: use its
        // description only.
        let file = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            Failure::usage(format!("{} line {line}: {}", path.display(), error.message().trim()))
        })?;
        Ok(Self { file, path, quiet: false })
    }

    /// The same, with or without warnings.
    pub(crate) fn quietly(self, quiet: bool) -> Self {
        Self { quiet, ..self }
    }

    /// Flag before environment before file before default.
    pub(crate) fn endpoint(&self, place: &Where) -> Result<Endpoint, Failure> {
        let (url, from) = match (&place.url, variable("LOCKKEEPER_URL")?, &self.file.url) {
            (Some(url), ..) => (url.clone(), String::new()),
            (None, Some(url), _) => (url, "LOCKKEEPER_URL: ".to_owned()),
            (None, None, Some(url)) => (url.clone(), format!("{} url: ", self.path.display())),
            (None, None, None) => (DEFAULT_URL.to_owned(), String::new()),
        };
        let written = match &place.url {
            Some(_) => Written::Typed,
            None if self.file.url.as_ref() == Some(&url) => Written::File,
            None => Written::Environment,
        };
        self.resolve(&url, &from, written, &place.secret)
    }

    /// The engines of `ui` with their names: those that are named, otherwise all of the file,
    /// otherwise the default one.
    pub(crate) fn engines(
        &self,
        named: &[String],
        secret: &Secret,
    ) -> Result<Vec<(String, Endpoint)>, Failure> {
        let of_file = |name: &String, url: &String| {
            let from = format!("{} engines.{name}: ", self.path.display());
            Ok((name.clone(), self.resolve(url, &from, Written::File, secret)?))
        };
        let plain = |url: Option<&String>| {
            let place = Where { url: url.cloned(), secret: secret.clone() };
            let endpoint = self.endpoint(&place)?;
            Ok((endpoint.to_string(), endpoint))
        };
        match named {
            [] if self.file.engines.is_empty() => plain(None).map(|engine| vec![engine]),
            [] => self.file.engines.iter().map(|(name, url)| of_file(name, url)).collect(),
            named => named
                .iter()
                .map(|name| match self.file.engines.get(name) {
                    Some(url) => of_file(name, url),
                    None if name.contains(':') => plain(Some(name)),
                    None => Err(self.no_engine(name)),
                })
                .collect(),
        }
    }

    fn no_engine(&self, name: &str) -> Failure {
        let known = self.file.engines.keys().map(|name| format!("{name:?}")).collect::<Vec<_>>();
        let known = match known.as_slice() {
            [] => format!("{} names no engines", self.path.display()),
            known => format!("{} names {}", self.path.display(), known.join(", ")),
        };
        Failure::usage(format!(
            "{name:?} is neither the URL of an engine, such as redis://host or file:///dir, nor a \
             name in the configuration: {known}"
        ))
    }

    /// An engine with its password.
    fn resolve(
        &self,
        url: &str,
        from: &str,
        written: Written,
        secret: &Secret,
    ) -> Result<Endpoint, Failure> {
        let endpoint =
            Endpoint::parse(url).map_err(|error| Failure::usage(format!("{from}{error}")))?;
        let named = self.password(secret)?;
        // A password in the URL comes first.
        if endpoint.expose().password().is_some_and(|password| !password.is_empty()) {
            match written {
                Written::Typed => self.warn(
                    "the password in the URL is visible in the list of processes; \
                     use --password-file or LOCKKEEPER_PASSWORD instead",
                ),
                Written::File => self.warn_if_readable(&self.path),
                Written::Environment => {}
            }
            return Ok(endpoint);
        }
        let takes_one = endpoint.clone().with_password("").is_some();
        let password = match (secret.flag(), named) {
            // A variable may be meant for other engines, a flag is not.
            (Some(flag), _) if !takes_one => {
                let scheme = endpoint.scheme();
                return Err(Failure::usage(format!(
                    "{scheme}: takes no password; leave {flag} out"
                )));
            }
            (_, None) if secret.ask_password => Some(prompt::password(&endpoint.to_string())?),
            (_, named) => named,
        };
        let with_it = password.and_then(|password| endpoint.clone().with_password(&password));
        Ok(with_it.unwrap_or(endpoint))
    }

    pub(crate) fn ttl(&self, flag: Option<Duration>) -> Result<Duration, Failure> {
        let set = self.duration(flag, "LOCKKEEPER_TTL", "ttl", &self.file.ttl)?;
        Ok(set.unwrap_or(DEFAULT_TTL))
    }

    pub(crate) fn grace(&self, flag: Option<Duration>) -> Result<Option<Duration>, Failure> {
        self.duration(flag, "LOCKKEEPER_GRACE", "grace", &self.file.grace)
    }

    pub(crate) fn on_lost(&self, flag: Option<OnLost>) -> Result<OnLost, Failure> {
        let named = match flag {
            Some(flag) => return Ok(flag),
            None => variable("LOCKKEEPER_ON_LOST")?.or_else(|| self.file.on_lost.clone()),
        };
        named.map_or(Ok(OnLost::Term), |word| {
            OnLost::from_str(&word, false).map_err(|_| {
                Failure::usage(format!(
                    "on-lost cannot be {word:?}; it is one of: term, kill, ignore"
                ))
            })
        })
    }

    /// The command line to record with a lock; `None` if that is disabled.
    pub(crate) fn command(
        &self,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Option<String>, Failure> {
        let wanted = match variable("LOCKKEEPER_RECORD_COMMAND")?.as_deref() {
            Some("yes") => true,
            Some("no") => false,
            Some(other) => {
                return Err(Failure::usage(format!(
                    "LOCKKEEPER_RECORD_COMMAND cannot be {other:?}; it is yes or no"
                )));
            }
            None => self.file.record_command.unwrap_or(true),
        };
        let words = words.into_iter().map(|word| word.as_ref().to_string_lossy().into_owned());
        Ok(wanted.then(|| words.collect::<Vec<_>>().join(" ")))
    }

    /// Opens the engine.
    pub(crate) async fn connect(&self, place: &Where) -> Result<Client, Failure> {
        Self::connect_to(&self.endpoint(place)?).await
    }

    pub(crate) async fn connect_to(endpoint: &Endpoint) -> Result<Client, Failure> {
        Ok(Client::connect(to_look(endpoint)).await?)
    }

    fn duration(
        &self,
        flag: Option<Duration>,
        variable_name: &str,
        key: &str,
        file: &Option<Text>,
    ) -> Result<Option<Duration>, Failure> {
        if flag.is_some() {
            return Ok(flag);
        }
        let (text, from) = match (variable(variable_name)?, file) {
            (Some(text), _) => (text, variable_name.to_owned()),
            (None, Some(text)) => (text.to_text(), format!("{} {key}", self.path.display())),
            (None, None) => return Ok(None),
        };
        parse_duration(&text).map(Some).map_err(|error| Failure::usage(format!("{from}: {error}")))
    }

    fn warn(&self, message: impl std::fmt::Display) {
        Say { quiet: self.quiet, verbose: false }.warn(message);
    }

    /// Warns if a file with a password is readable by everyone.
    fn warn_if_readable(&self, path: &Path) {
        if fs::metadata(path).is_ok_and(|about| about.is_file() && about.mode() & 0o004 != 0) {
            let (path, word) = (path.display(), quoted(path));
            self.warn(format_args!("everyone can read the password in {path}: chmod 600 {word}"));
        }
    }

    /// The password from a file or a variable.
    fn password(&self, secret: &Secret) -> Result<Option<String>, Failure> {
        let named = |path: &Path| {
            let text = fs::read_to_string(path).map_err(|error| {
                Failure::usage(format!("cannot read the password file {}: {error}", path.display()))
            })?;
            self.warn_if_readable(path);
            Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
        };
        if let Some(path) = &secret.password_file {
            return named(path);
        }
        if secret.ask_password {
            return Ok(None);
        }
        if let Some(password) = variable("LOCKKEEPER_PASSWORD")? {
            return Ok(Some(password));
        }
        match env::var_os("LOCKKEEPER_PASSWORD_FILE").filter(|path| !path.is_empty()) {
            Some(path) => named(Path::new(&path)),
            None => self.file.password_file.as_deref().map_or(Ok(None), named),
        }
    }
}

impl Text {
    fn to_text(&self) -> String {
        match self {
            Text::Written(text) => text.clone(),
            Text::Whole(seconds) => seconds.to_string(),
            Text::Seconds(seconds) => seconds.to_string(),
        }
    }
}

/// An empty variable counts as unset. An unreadable one does not: it would select another engine.
fn variable(name: &str) -> Result<Option<String>, Failure> {
    match env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        // Not quoted: it may contain a password.
        Err(env::VarError::NotUnicode(_)) => Err(Failure::usage(format!("{name} is not UTF-8"))),
    }
}

fn usual_path() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(home.join("lockkeeper/config.toml"))
}
/// The URL for a client that looks, and creates no tables in a database.
pub(crate) fn to_look(endpoint: &Endpoint) -> String {
    let url = endpoint.spell_out();
    let is_database = matches!(endpoint.scheme(), "postgres" | "postgresql" | "mysql" | "mariadb");
    if !is_database || endpoint.expose().query_pairs().any(|(name, _)| name == "create") {
        return url;
    }
    let separator = if endpoint.expose().query().is_some() { '&' } else { '?' };
    format!("{url}{separator}create=later")
}
