//! The scripts, each with the checksum by which a server identifies it once it is cached.

use std::sync::LazyLock;

/// A script.
pub(in crate::engines) struct Script {
    pub(in crate::engines) text: &'static str,
    pub(in crate::engines) sha: String,
    /// A bit that is unique to this script.
    pub(in crate::engines) bit: u32,
}

macro_rules! scripts {
    ($($name:ident = $($file:literal)+;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Number { $($name),* }

        $(pub(in crate::engines) static $name: LazyLock<Script> = LazyLock::new(|| {
            let text = concat!($(include_str!(concat!("lua/", $file, ".lua")), "\n"),+);
            let sha = redis::Script::new(text).get_hash().to_owned();
            Script { text, sha, bit: 1 << Number::$name as u32 }
        });)*
    };
}

scripts! {
    MUTEX = "mutex_free" "layout" "mutex_queue" "mutex";
    MUTEX_RELEASE = "mutex_release" "mutex_queue" "hand_over" "mutex_hand_over";
    OWNED_MUTEX = "layout" "mutex_queue" "hand_over" "owned_mutex";
    OWNED_MUTEX_RELEASE = "mutex_queue" "hand_over" "owned_mutex_release";
    STRING = "string";
    STRING_RELEASE = "string_release";
    FAIR_MUTEX = "layout" "queue" "fair_mutex";
    FAIR_MUTEX_RELEASE = "queue" "mutex_queue" "hand_over" "fair_mutex_release";
    READ = "layout" "queue" "readers" "read";
    READ_RELEASE = "queue" "readers" "read_release";
    WRITE = "layout" "queue" "write";
    WRITE_RELEASE = "queue" "write_release";
    PERMITS = "layout" "queue" "drop_permits" "permits";
    PERMITS_RELEASE = "queue" "drop_permits" "permits_release";
    RENEW = "renew";
    INSPECT = "layout" "inspect";
    BREAK = "layout" "mutex_queue" "break";
    BROKEN = "broken";
    CANDIDATES = "candidates";
    CONFIRM = "confirm";
    YIELD = "yield";
    ASKED = "asked";
    QUORUM_READ = "layout" "quorum_rw" "quorum_read";
    QUORUM_WRITE = "layout" "quorum_rw" "quorum_write";
    QUORUM_RW_RELEASE = "layout" "quorum_rw" "quorum_rw_release";
}

#[cfg(test)]
mod tests {
    /// A server that is importing a slot refuses commands with several keys of which some do not
    /// exist, even inside a script. Only `pcall` survives that.
    #[test]
    fn no_command_inside_a_script_has_several_keys() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/engines/redis/lua");
        for file in std::fs::read_dir(folder).expect("it is there") {
            let path = file.expect("it can be listed").path();
            let text = std::fs::read_to_string(&path).expect("it is text");
            for line in text.lines().filter(|line| !line.contains("pcall(")) {
                let several = ["del", "unlink", "exists"].iter().any(|command| {
                    let arguments = line.split_once(&format!("call('{command}', "));
                    // Whatever is inside the next parentheses belongs to one key.
                    let key = arguments.and_then(|(_, rest)| rest.split(['(', ')']).next());
                    key.is_some_and(|key| key.contains(','))
                });
                assert!(!several, "{}: {line}", path.display());
            }
        }
    }
}
