//! The name of a key's lock file.

use sha2::{Digest, Sha256};

/// File names longer than this are replaced by a hash: file systems stop at 255 bytes.
const LONGEST_NAME: usize = 200;

pub(super) const SUFFIX: &str = ".lock";

/// A name that no two keys share, even on file systems that ignore case or normalize accents:
/// lower-case letters, digits, `-` and `_` stand for themselves, everything else is written in
/// hexadecimal.
pub(super) fn file_name(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + SUFFIX.len());
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte.into()),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    if name.len() > LONGEST_NAME {
        // `=` never occurs in the encoding above.
        name = Sha256::digest(key.as_bytes())
            .iter()
            .fold("=".to_owned(), |name, byte| name + &format!("{byte:02x}"));
    }
    name + SUFFIX
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_plain_short_and_differ() {
        let keys = [
            "a",
            "A",
            "a ",
            "a/b",
            "a%2fb",
            "..",
            ".",
            "../a",
            "é",
            "e\u{301}",
            "%",
            "=",
            "{a}",
            "*",
            "'",
            "\u{202e}a",
        ];
        let names: HashSet<_> = keys.iter().map(|key| file_name(key)).collect();
        assert_eq!(names.len(), keys.len());
        for name in &names {
            assert!(!name.contains('/') && !name.starts_with('.'), "{name}");
            assert_eq!(*name, name.to_lowercase());
        }
        assert_eq!(file_name("orders-42"), "orders-42.lock");
        assert!(file_name(&"X".repeat(512)).len() < 255);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]
        #[test]
        fn two_keys_never_share_a_file(a in ".{1,60}", b in ".{1,60}") {
            prop_assert_eq!(a == b, file_name(&a) == file_name(&b));
        }
    }
}
