use std::{collections::BTreeMap, fmt};

/// How many power cuts fell in each place of a crash matrix. A matrix that no longer reaches a place proves nothing of
/// it, and would pass all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutTally(BTreeMap<String, u64>);

impl CutTally {
    /// The power was cut in `place`.
    pub fn note(&mut self, place: impl Into<String>) {
        *self.0.entry(place.into()).or_default() += 1;
    }

    /// Demands so many cuts, at least, in each of these places.
    ///
    /// # Panics
    /// When there were fewer in one.
    pub fn assert_each(&self, places: &[(&str, u64)]) {
        for (place, min) in places {
            let cuts = self.0.get(*place).copied().unwrap_or(0);
            assert!(cuts >= *min, "{cuts} cuts in {place:?}, expected {min}:\n{self}");
        }
    }
}

impl fmt::Display for CutTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(place, cuts)| writeln!(f, "{cuts:>8} {place}"))
    }
}
