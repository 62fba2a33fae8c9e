//! Every case of the test kit against every engine: one line each.

use lockkeeper::backends::memory::Memory;
use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;

conformance!(memory, {
    let name = format!("memory:conformance-{}", fastrand::u64(..));
    Store::of(Memory::new()).url(name)
});

conformance!(file, {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let url = format!("file://{}", directory.path().display());
    Store::at(url).keep(directory)
});
