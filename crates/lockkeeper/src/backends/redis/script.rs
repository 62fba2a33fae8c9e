//! The scripts, each with the checksum by which a server that has seen it knows it.

use std::sync::LazyLock;

/// A script.
pub(super) struct Script {
    pub(super) text: &'static str,
    pub(super) sha: String,
    /// One bit that no other script has.
    pub(super) bit: u32,
}

macro_rules! scripts {
    ($($name:ident = $($file:literal)+;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Number { $($name),* }

        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            let text = concat!($(include_str!(concat!("lua/", $file, ".lua")), "\n"),+);
            let sha = redis::Script::new(text).get_hash().to_owned();
            Script { text, sha, bit: 1 << Number::$name as u32 }
        });)*
    };
}

scripts! {
    MUTEX = "layout" "mutex";
    MUTEX_RELEASE = "mutex_release";
    STRING = "string";
    STRING_RELEASE = "string_release";
    LINE_MUTEX = "layout" "line" "line_mutex";
    LINE_MUTEX_RELEASE = "line" "line_mutex_release";
    READ = "layout" "line" "readers" "read";
    READ_RELEASE = "line" "readers" "read_release";
    WRITE = "layout" "line" "write";
    WRITE_RELEASE = "line" "write_release";
    PERMITS = "layout" "line" "drop_permits" "permits";
    PERMITS_RELEASE = "line" "drop_permits" "permits_release";
    RENEW = "renew";
    INSPECT = "layout" "inspect";
    BREAK = "layout" "break";
    CANDIDATES = "candidates";
    CONFIRM = "confirm";
    SHARED_READ = "layout" "shared" "shared_read";
    SHARED_WRITE = "layout" "shared" "shared_write";
    SHARED_RELEASE = "layout" "shared" "shared_release";
}
