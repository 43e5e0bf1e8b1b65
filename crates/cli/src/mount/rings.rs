//! The kernel's switch for FUSE over io_uring, which is off after a boot.

use std::{fs, path::Path};

use lacuna_fuse::UringTransport;

/// Turns the switch on if that is up to us: this kernel has it, and it is off. Mounts that are there do not change.
/// Who may not turn it on mounts over `/dev/fuse`, as before.
pub(super) fn turn_on() {
    // Where FUSE is a module, this loads it.
    let _ = fs::File::open("/dev/fuse");
    let switch = Path::new(UringTransport::SWITCH);
    if switch.exists()
        && !UringTransport::is_on()
        && fs::write(switch, "Y").is_ok()
        && UringTransport::is_on()
    {
        log::info!("FUSE over io_uring is on now, until the next boot ({})", switch.display());
    }
}
