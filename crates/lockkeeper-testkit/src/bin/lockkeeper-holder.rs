//! A process that holds a lock as it is told; see `lockkeeper_testkit::holder`.

fn main() -> std::process::ExitCode {
    lockkeeper_testkit::holder::main(std::env::args().skip(1))
}
