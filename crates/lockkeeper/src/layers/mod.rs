//! Engines that wrap engines.

pub mod faults;
