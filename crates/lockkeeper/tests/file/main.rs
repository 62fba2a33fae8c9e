//! Everything that is tested on lock files.

mod conformance;
mod faults;
