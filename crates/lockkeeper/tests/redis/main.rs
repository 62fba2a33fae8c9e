//! All tests against real Redis servers, except for Redlock.

mod access;
mod conformance;
mod faults;
mod layout;
mod line;
mod listing;
mod load;
mod model;
mod network;
mod scripts;
mod sentinel;
mod storm;
mod waiters;
