//! All tests against several Redis servers that form a Redlock, and models of its fences.

mod conformance;
mod faults;
mod load;
mod model;
mod readers_model;
mod servers;
