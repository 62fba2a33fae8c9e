//! PostgreSQL and MariaDB: the failures that both must survive, with every strategy.

mod faults;
mod replies;
mod schema;
mod storm;
