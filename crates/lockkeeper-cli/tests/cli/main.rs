//! The command as its users meet it: real processes, real signals, real files.

mod cell;
mod config;
mod cron;
mod descendants;
mod elect;
mod engines;
mod files;
mod give_way;
mod guardian;
mod handle;
mod heard;
mod look;
mod loss;
mod outage;
mod place;
mod readme;
mod run;
mod signals;
mod terminal;
mod top;
mod torture;
mod usage;
mod waiting;
mod wrong_server;
mod zookeeper;
