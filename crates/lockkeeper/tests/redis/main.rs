//! All tests against real Redis servers, except for Redlock.

mod access;
mod conformance;
mod faults;
mod layout;
mod listing;
mod load;
mod model;
mod mutex_queue;
mod network;
mod scripts;
mod sentinel;
mod storm;
mod waiters;
