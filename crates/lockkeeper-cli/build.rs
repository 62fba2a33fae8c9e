//! One clear message instead of a hundred where the command cannot be built.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS").expect("cargo sets it for build scripts");
    if system != "linux" {
        println!(
            "cargo::error=the command lockkeeper needs Linux, where it can kill all descendants of a \
             command in time; the library compiles for {system} too"
        );
    }
}
