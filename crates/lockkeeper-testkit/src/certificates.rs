//! Certificates for tests of TLS, created by `openssl` for the duration of a test.

use std::path::Path;
use std::process::Command;

/// Creates in `directory` a CA (`ca.pem`), another one (`other.pem`), and a key and certificate of
/// the first for `server` at 127.0.0.1 and for `client`. Every user of this machine can read them.
///
/// # Panics
/// When `openssl` is not installed, or fails.
pub fn certificates(directory: &Path) {
    let openssl = |line: &str| {
        let made = Command::new("openssl").args(line.split(' ')).current_dir(directory).output();
        let made = made.expect("openssl can be run; it is in Debian's package openssl");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for name in ["ca", "other"] {
        openssl(&format!(
            "req -x509 {key} -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"
        ));
    }
    let names = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth";
    write(&directory.join("names"), names);
    for name in ["server", "client"] {
        openssl(&format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
             -extfile names -out {name}.pem"
        ));
        // Servers that are not root have to read it.
        let key = std::fs::read(directory.join(format!("{name}.key"))).expect("it was just made");
        std::fs::remove_file(directory.join(format!("{name}.key"))).expect("it is ours");
        write(&directory.join(format!("{name}.key")), key);
    }
    let all = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(directory, all).expect("it is ours");
}

fn write(path: &Path, text: impl AsRef<[u8]>) {
    std::fs::write(path, text).expect("there is room for a file");
}
