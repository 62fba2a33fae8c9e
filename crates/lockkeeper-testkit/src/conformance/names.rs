//! Names that have caused trouble elsewhere.

use lockkeeper::Error;

use super::Store;
use super::check::{busy, take};

/// Different names, many of which some store or file system would confuse.
fn names() -> Vec<String> {
    let mut names: Vec<String> = [
        "a",
        "A",
        "a ",
        " a",
        "a  ",
        "a/b",
        "a/B",
        "a//b",
        "a/",
        "/a",
        "/",
        "//",
        ".",
        "..",
        "../a",
        "../../etc/passwd",
        "./a",
        "a.lock",
        "a.",
        "~",
        "-",
        "--help",
        "$HOME",
        "%61",
        "%2e%2e",
        "a%2fb",
        "a\\b",
        "\\",
        "a:b",
        "C:\\con",
        "con",
        "nul",
        "{}",
        "{a}",
        "{a}b",
        "{a}{b}",
        "a{b",
        "x{}y",
        "a}b",
        "*",
        "a*",
        "?",
        "[a]",
        "'",
        "''",
        "\"",
        "\\'",
        "`",
        "';--",
        "'; DROP TABLE locks; --",
        "1 OR 1=1",
        "\u{00e9}",
        "e\u{0301}",
        "\u{fb01}",
        "fi",
        "ß",
        "ss",
        "SS",
        "I",
        "i",
        "ı",
        "İ",
        "K",
        "\u{212a}",
        "\u{1f512}",
        "\u{1f468}\u{200d}\u{1f469}",
        "\u{202e}abc",
        "abc\u{202e}",
        "abc",
        "\u{200b}abc",
        "\u{feff}abc",
        "0",
        "00",
        "0x0",
        "-0",
        "null",
        "NULL",
        "true",
        "a\u{a0}",
        "_",
        "a_b",
        "a-b",
        "a%b",
        "ключ",
        "键",
        "مفتاح",
        "\u{10ffff}",
    ]
    .map(str::to_owned)
    .into();
    // Around the limits that stores and file systems have for names.
    for length in [63, 64, 127, 128, 191, 192, 193, 254, 255, 256, 511, 512] {
        names.push("n".repeat(length));
        names.push("N".repeat(length));
    }
    names.push("é".repeat(256));
    names.push(format!("{}x", "n".repeat(511)));
    names.push(format!("{}/", "n".repeat(511)));
    names
}

pub(super) async fn different_names_never_share_a_lock(store: Store) {
    let (client, other) = (store.client().await, store.client().await);
    let names = names();
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "the list itself names one twice");
    // All are held at the same time, so no two are the same lock.
    let mut guards = Vec::new();
    for name in &names {
        guards.push(take(client.mutex(name)).await);
    }
    // And each is the same lock for every client.
    for name in &names {
        busy(other.mutex(name)).await;
    }
    let mut listed: Vec<_> =
        other.list("").await.unwrap().into_iter().map(|held| held.key.to_string()).collect();
    let mut expected = names.clone();
    expected.sort();
    listed.sort();
    assert_eq!(listed, expected, "names come back as they were given");
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(other.list("").await.unwrap().len(), 0);
}

pub(super) async fn bad_names_are_refused(store: Store) {
    let client = store.client().await;
    let long = "n".repeat(513);
    let huge = "n".repeat(1 << 20);
    let accents = "é".repeat(257);
    for bad in ["", "\0", "a\0b", "a\nb", "\r", "\t", "\u{7f}", "\u{85}", &long, &huge, &accents] {
        let refused = [
            client.mutex(bad).acquire().await.map(drop),
            client.mutex(bad).try_acquire().await.map(drop),
            client.inspect(bad).await.map(drop),
            client.break_lock(bad).await.map(drop),
        ];
        for refused in refused {
            match refused {
                Err(Error::Key(message)) => {
                    assert!(message.contains("1 to 512 bytes"), "{message}");
                    assert!(message.len() < 300, "the message repeats what was too long");
                }
                other => panic!("{:?} should be refused: {other:?}", bad.get(..20)),
            }
        }
    }
}
