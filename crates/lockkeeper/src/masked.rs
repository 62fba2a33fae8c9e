//! Masks what looks like a secret in a command line, before the command line is recorded for others to see.
//!
//! No rule knows every program. When in doubt it masks too much; what no rule recognises is recorded.

/// What stands for a secret.
const MASK: &str = "***";

/// What the name of an option or a variable contains whose value is a secret.
const SECRET_NAMES: [&str; 9] =
    ["password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "api-key", "api_key"];

/// The words of a command line, with secrets masked.
pub(crate) fn masked<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    let (mut before, mut is_mysql) = ("", false);
    for word in words {
        let name = before.trim_start_matches('-').to_ascii_lowercase();
        let shown = if matches!(name.as_str(), "bearer" | "basic") || is_option_of_secret(before) {
            MASK.to_owned()
        } else if matches!(before, "-u" | "--user") {
            without_password(word)
        } else if let Some(user) = word.strip_prefix("--user=") {
            format!("--user={}", without_password(user))
        } else if is_mysql && word.starts_with("-p") && word.len() > 2 {
            format!("-p{MASK}")
        } else {
            without_values(&without_userinfo(word))
        };
        let program = word.rsplit('/').next().unwrap_or(word);
        is_mysql |= program.starts_with("mysql") || program.starts_with("mariadb");
        before = word;
        seen.push(shown);
    }
    seen
}

/// Whether the word after this option is a secret: `--password x`.
fn is_option_of_secret(word: &str) -> bool {
    word.starts_with('-') && !word.contains('=') && has_secret_name(word)
}

fn has_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // The name of a file is none.
    !name.ends_with("file") && SECRET_NAMES.iter().any(|secret| name.contains(secret))
}

/// `user:secret` without the secret.
fn without_password(word: &str) -> String {
    match word.split_once(':') {
        Some((user, _)) => format!("{user}:{MASK}"),
        None => word.to_owned(),
    }
}

/// A word with one URL or more, without anything up to the last `@`: a password may contain every other
/// character, and a user name may be a token.
fn without_userinfo(word: &str) -> String {
    match (word.find("://"), word.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            format!("{}://{MASK}{}", &word[..scheme], &word[at..])
        }
        _ => word.to_owned(),
    }
}

/// A word without the values of `password=…` and the like, also among the options of a URL.
fn without_values(word: &str) -> String {
    let parts = word.split_inclusive(['?', '&', ';', ',']).map(|part| match part.split_once('=') {
        Some((name, value)) if has_secret_name(name) && !value.is_empty() => {
            let end =
                if value.ends_with(['?', '&', ';', ',']) { &value[value.len() - 1..] } else { "" };
            format!("{name}={MASK}{end}")
        }
        _ => part.to_owned(),
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(command: &str) -> String {
        masked(command.split(' ')).join(" ")
    }

    #[test]
    fn secrets_are_masked() {
        for (command, expected) in [
            ("redis://:s3cret@host/0", "redis://***@host/0"),
            ("--url=postgres://ann:p@s3cret@db/x", "--url=postgres://***@db/x"),
            ("redis://:a@h1,redis://:s3cret@h2", "redis://***@h2"),
            ("postgres://ann:s3c/ret@h/db", "postgres://***@h/db"),
            ("jdbc:mysql://u:a@b?x:s3cret@h/d", "jdbc:mysql://***@h/d"),
            ("https://s3cret@git.example/x", "https://***@git.example/x"),
            (
                "postgres://h/db?user=a&password=s3cret&x=1",
                "postgres://h/db?user=a&password=***&x=1",
            ),
            ("mysql -ps3cret db", "mysql -p*** db"),
            ("/usr/bin/mysqldump -h db -ps3cret", "/usr/bin/mysqldump -h db -p***"),
            ("job --password=s3cret", "job --password=***"),
            ("job --db-password s3cret go", "job --db-password *** go"),
            ("env PGPASSWORD=s3cret psql", "env PGPASSWORD=*** psql"),
            ("job --api-token s3cret", "job --api-token ***"),
            ("curl -H Authorization: Bearer s3cret", "curl -H Authorization: Bearer ***"),
            ("curl -u ann:s3cret host", "curl -u ann:*** host"),
            ("curl --user=ann:s3cret host", "curl --user=ann:*** host"),
            ("psql host=db password=s3cret", "psql host=db password=***"),
        ] {
            assert_eq!(line(command), expected);
            assert!(!line(command).contains("s3c"), "{command}");
        }
    }

    #[test]
    fn everything_else_is_kept() {
        for command in [
            "backup --all /srv",
            "ssh -p2222 ann@host",
            "redis://host/a",
            "run --password-file /etc/lockkeeper/password -- job",
            "curl -u ann host",
            "job --password=",
            "echo a=b,c=d;e",
        ] {
            assert_eq!(line(command), command);
        }
    }
}
