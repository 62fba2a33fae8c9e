//! Certificates for tests of TLS: an authority, a server that it vouches for, and a client.

use std::path::Path;
use std::process::Command;

/// Makes `ca.pem`, and `.pem` and `.key` files for a `server` at 127.0.0.1 and for a `client`.
///
/// # Panics
/// When `openssl` cannot be run, with a message that names the package.
pub fn certificates(directory: &Path) {
    let openssl = |arguments: &[&str]| {
        let output = Command::new("openssl").args(arguments).current_dir(directory).output();
        let output = output.expect("openssl can be run; it is in Debian's package openssl");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments:?}: {error}");
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let ca = ["req", "-x509", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"];
    openssl(&[&ca[..], &key].concat());
    for (name, usage) in [("server", "serverAuth"), ("client", "clientAuth")] {
        let (key_file, request) = (format!("{name}.key"), format!("{name}.csr"));
        let subject = format!("/CN={name}");
        let req = ["req", "-subj", &subject, "-keyout", &key_file, "-out", &request];
        openssl(&[&req[..], &key].concat());
        let extensions = format!("subjectAltName=IP:127.0.0.1\nextendedKeyUsage={usage}\n");
        std::fs::write(directory.join("extensions"), extensions).expect("a file can be written");
        openssl(
            &[
                &["x509", "-req", "-in", &request, "-CA", "ca.pem", "-CAkey", "ca.key"][..],
                &["-CAcreateserial", "-out", &format!("{name}.pem"), "-extfile", "extensions"],
            ]
            .concat(),
        );
    }
}
