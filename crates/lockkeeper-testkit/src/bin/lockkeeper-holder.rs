//! A process that holds a lock on command; see `lockkeeper_testkit::holder`.

fn main() -> std::process::ExitCode {
    lockkeeper_testkit::holder::main(std::env::args().skip(1))
}
