//! The arbiter notices a client that releases without looking, and the clock one that wakes nobody.

#[test]
fn careless_clients_are_noticed() {
    let check = std::process::Command::new(env!("CARGO_BIN_EXE_lockkeeper-interop"))
        .arg("self-check")
        .output()
        .expect("it was built");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}
