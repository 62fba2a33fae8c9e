//! The core on engines without a server: conformance of `memory:`, silence and loss, telemetry, samples of the documents.

mod conformance;
mod faults;
mod hand_over;
mod keep;
mod readme;
#[rustfmt::skip]
mod samples;
mod session;
mod shutdown;
mod telemetry;
mod watched;
mod world;
