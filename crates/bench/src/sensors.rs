//! What the machine's own sensors say: the energy of its processors and memory, and the temperature of its drives.
//!
//! Energy is that of the whole machine, whoever used it: it compares runs on a machine that does nothing else. Virtual
//! machines mostly have neither.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where the kernel shows them.
const SYS: &str = "/sys";

/// Energy that is counted from a moment on.
pub(crate) struct Energy(Vec<Domain>);

/// A counter of RAPL (Linux, Documentation/power/powercap/powercap.rst): microjoules up to a range, and from zero again.
struct Domain {
    counter: PathBuf,
    range: u64,
    start: u64,
}

impl Energy {
    /// From now on; none where the machine has no counter that this process may read (they are root's).
    pub(crate) fn count() -> Option<Energy> {
        Energy::count_in(Path::new(SYS))
    }

    fn count_in(sys: &Path) -> Option<Energy> {
        let mut domains = Vec::new();
        for entry in fs::read_dir(sys.join("class/powercap")).ok()?.flatten() {
            let zone = entry.path();
            // A package has its cores and its graphics in it, and the platform all packages; memory is apart.
            let name = fs::read_to_string(zone.join("name")).unwrap_or_default();
            if !(name.starts_with("package") || name.trim_end() == "dram") {
                continue;
            }
            let counter = zone.join("energy_uj");
            let range = number(&zone.join("max_energy_range_uj"))?;
            domains.push(Domain { start: number(&counter)?, counter, range });
        }
        (!domains.is_empty()).then_some(Energy(domains))
    }

    /// Joules so far. A counter that began again did so once: a range lasts for many minutes.
    pub(crate) fn joules(&self) -> Option<f64> {
        let used = |domain: &Domain| {
            let now = number(&domain.counter)?;
            Some(if now < domain.start { now.saturating_add(domain.range) } else { now } - domain.start)
        };
        Some(self.0.iter().map(used).sum::<Option<u64>>()? as f64 / 1e6)
    }
}

/// The hottest drive now, in degrees Celsius; none where no drive has a sensor.
pub(crate) fn drive_celsius() -> Option<f64> {
    drive_celsius_in(Path::new(SYS))
}

fn drive_celsius_in(sys: &Path) -> Option<f64> {
    let drives = fs::read_dir(sys.join("class/hwmon")).ok()?.flatten().filter(|entry| {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        matches!(name.trim_end(), "nvme" | "drivetemp")
    });
    // The first sensor is the composite one, which all drives have. Millidegrees.
    drives
        .filter_map(|drive| number(&drive.path().join("temp1_input")))
        .max()
        .map(|hottest| hottest as f64 / 1e3)
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with these files below `/sys/class`; it is removed when the test ends.
    struct Machine(PathBuf);

    impl Machine {
        fn new(test: &str, files: &[(&str, &str)]) -> Machine {
            let machine =
                Machine(std::env::temp_dir().join(format!("lacuna-sensors-{test}-{}", std::process::id())));
            fs::create_dir_all(&machine.0).unwrap();
            files.iter().for_each(|(path, text)| machine.set(path, text));
            machine
        }

        fn set(&self, path: &str, text: &str) {
            let path = self.0.join("class").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn packages_and_memory_are_summed_over_a_wrap() {
        let machine = Machine::new(
            "energy",
            &[
                ("powercap/intel-rapl:0/name", "package-0"),
                ("powercap/intel-rapl:0/energy_uj", "9000000"),
                ("powercap/intel-rapl:0/max_energy_range_uj", "10000000"),
                ("powercap/intel-rapl:0:0/name", "core"),
                ("powercap/intel-rapl:0:0/energy_uj", "5"),
                ("powercap/intel-rapl:0:1/name", "dram"),
                ("powercap/intel-rapl:0:1/energy_uj", "1000000"),
                ("powercap/intel-rapl:0:1/max_energy_range_uj", "10000000"),
                ("powercap/intel-rapl/enabled", "1"),
            ],
        );
        let energy = Energy::count_in(&machine.0).unwrap();
        assert_eq!(energy.joules(), Some(0.0));
        machine.set("powercap/intel-rapl:0/energy_uj", "2000000");
        machine.set("powercap/intel-rapl:0:1/energy_uj", "1500000");
        assert_eq!(energy.joules(), Some(3.5));
        machine.set("powercap/intel-rapl:0/energy_uj", "gone");
        assert_eq!(energy.joules(), None);
    }

    #[test]
    fn the_hottest_drive_counts() {
        let machine = Machine::new(
            "drives",
            &[
                ("hwmon/hwmon0/name", "coretemp"),
                ("hwmon/hwmon0/temp1_input", "90000"),
                ("hwmon/hwmon1/name", "nvme"),
                ("hwmon/hwmon1/temp1_input", "41850"),
                ("hwmon/hwmon2/name", "drivetemp"),
                ("hwmon/hwmon2/temp1_input", "38000"),
            ],
        );
        assert_eq!(drive_celsius_in(&machine.0), Some(41.85));
    }

    #[test]
    fn a_machine_without_sensors_has_none() {
        let machine = Machine::new("none", &[("hwmon/hwmon0/name", "acpitz")]);
        assert!(Energy::count_in(&machine.0).is_none());
        assert_eq!(drive_celsius_in(&machine.0), None);
    }
}
