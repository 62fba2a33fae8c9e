//! The core on engines without a server: conformance of `memory:`, silence and loss, telemetry.

mod conformance;
mod faults;
mod readme;
mod session;
mod shutdown;
mod telemetry;
