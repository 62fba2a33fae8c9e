//! A client process of `torture`: this program again, by a hidden verb.

use std::process::ExitCode;

use lockkeeper_testkit::holder;

/// The hidden verb.
pub(crate) const VERB: &str = "__torture-client";

/// The entry point.
pub(crate) fn main() -> ExitCode {
    holder::main_of_verb()
}
