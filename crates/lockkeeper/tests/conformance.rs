//! Every case of the test kit against every engine: one line each.

use lockkeeper::backends::memory::Memory;
use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;

conformance!(memory, {
    let name = format!("memory:conformance-{}", fastrand::u64(..));
    Store::of(Memory::new()).url(name)
});

#[cfg(feature = "file")]
conformance!(file, {
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let url = format!("file://{}", dir.path().join("locks").display());
    Store::at(url).keep(dir)
});
