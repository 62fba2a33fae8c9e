//! A client process of `torture`: this program again, by a hidden verb.

use std::process::ExitCode;

use lockkeeper_testkit::holder;

use crate::exit;
use crate::output::tell;

/// The hidden verb.
pub(crate) const VERB: &str = "__torture-client";

/// The entry point.
pub(crate) fn main() -> ExitCode {
    holder::main_of_verb().unwrap_or_else(|| {
        tell(format_args!("{VERB} is not meant to be called; see torture"));
        ExitCode::from(exit::USAGE)
    })
}
