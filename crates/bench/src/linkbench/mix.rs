//! The operations and how often each is drawn.

use std::{fmt, str::FromStr};

use crate::random::Random;

/// The requests of LinkBench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    AddLink,
    DeleteLink,
    UpdateLink,
    CountLink,
    GetLink,
    GetLinkList,
    GetNode,
    AddNode,
    UpdateNode,
    DeleteNode,
}

/// Operations in the order of reports, their names, and their share of the requests in percent.
const OPERATIONS: [(Operation, &str, f64); 10] = [
    (Operation::AddLink, "add_link", 8.9886601),
    (Operation::DeleteLink, "delete_link", 2.9907664),
    (Operation::UpdateLink, "update_link", 8.0122125),
    (Operation::CountLink, "count_link", 4.8863567),
    (Operation::GetLink, "get_link", 0.5261142),
    (Operation::GetLinkList, "get_link_list", 50.7119145),
    (Operation::GetNode, "get_node", 12.9326683),
    (Operation::AddNode, "add_node", 2.5732789),
    (Operation::UpdateNode, "update_node", 7.366437),
    (Operation::DeleteNode, "delete_node", 1.0115914),
];

impl Operation {
    /// How many there are.
    pub(crate) const COUNT: usize = OPERATIONS.len();

    /// Their names in the order of their numbers.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        OPERATIONS.iter().map(|&(_, name, _)| name)
    }
}

/// The share of each operation in the requests. The default is LinkBench's own; as in the original tool, each share can
/// be set, such as `add_link=75,add_node=25` for a load that only inserts: what is not named is not requested.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// In percent, in the order of the operations.
    shares: [f64; Operation::COUNT],
}

impl Default for Mix {
    fn default() -> Mix {
        Mix { shares: OPERATIONS.map(|(_, _, percent)| percent) }
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Mix, String> {
        let mut shares = [0.0; Operation::COUNT];
        for part in text.split(',') {
            let (name, percent) =
                part.split_once('=').ok_or_else(|| format!("{part:?} is not OPERATION=PERCENT"))?;
            let at = Operation::names().position(|known| known == name).ok_or_else(|| {
                let names: Vec<_> = Operation::names().collect();
                format!("{name:?} is none of {}", names.join(", "))
            })?;
            let percent: f64 = percent.parse().map_err(|_| format!("{percent:?} is not a number"))?;
            if !(percent > 0.0 && percent <= 100.0) {
                return Err(format!("{name}: a share is more than 0 and at most 100 percent"));
            }
            if shares[at] != 0.0 {
                return Err(format!("{name} is given twice"));
            }
            shares[at] = percent;
        }
        let total: f64 = shares.iter().sum();
        // What shares that were written with seven digits are off by.
        if (total - 100.0).abs() > 1e-4 {
            return Err(format!("the shares add up to {total}, not to 100 percent"));
        }
        Ok(Mix { shares })
    }
}

/// As it is parsed, in the order of the operations.
impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requested = OPERATIONS.iter().zip(self.shares).filter(|(_, share)| *share > 0.0);
        for (at, ((_, name, _), share)) in requested.enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{name}={share}")?;
        }
        Ok(())
    }
}

impl Mix {
    /// Draws the next request.
    pub(crate) fn choose(&self, random: &mut Random) -> Operation {
        let mut left = random.unit() * 100.0;
        let mut last = None;
        for ((operation, _, _), share) in OPERATIONS.into_iter().zip(self.shares) {
            left -= share;
            if left < 0.0 {
                return operation;
            }
            if share > 0.0 {
                last = Some(operation);
            }
        }
        // The shares add up to 100 but for rounding.
        last.expect("a mix has operations")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_complete_and_drawn_as_stated() {
        let total: f64 = OPERATIONS.iter().map(|&(_, _, percent)| percent).sum();
        assert!((total - 100.0).abs() < 1e-5);
        for (index, (operation, _, _)) in OPERATIONS.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
        }
        assert_eq!(counts(&Mix::default(), 0.05), [true; Operation::COUNT]);
    }

    /// Draws from the mix; which operations came up as often as it says, within `slack` percent and 3% of the share.
    fn counts(mix: &Mix, slack: f64) -> [bool; Operation::COUNT] {
        let mut random = Random::new(1, 1);
        let mut counts = [0u32; Operation::COUNT];
        for _ in 0..200_000 {
            counts[mix.choose(&mut random) as usize] += 1;
        }
        std::array::from_fn(|at| {
            let (found, share) = (f64::from(counts[at]) / 2000.0, mix.shares[at]);
            (share > 0.0 || counts[at] == 0) && (found - share).abs() <= slack + share * 0.03
        })
    }

    #[test]
    fn a_mix_can_be_stated() {
        let mix: Mix = "add_node=25,add_link=75".parse().unwrap();
        assert_eq!(mix.to_string(), "add_link=75,add_node=25");
        assert_eq!(counts(&mix, 0.0), [true; Operation::COUNT]);
        let default = Mix::default();
        assert_eq!(default.to_string().parse::<Mix>().unwrap(), default);
        for (text, cause) in [
            ("", "\"\" is not OPERATION=PERCENT"),
            ("add_link", "\"add_link\" is not OPERATION=PERCENT"),
            ("add=100", "\"add\" is none of add_link, "),
            ("add_link=many", "\"many\" is not a number"),
            ("add_link=NaN", "add_link: a share is more than 0"),
            ("add_link=-1,add_node=101", "add_link: a share is more than 0"),
            ("add_link=50,add_link=50", "add_link is given twice"),
            ("add_link=50,add_node=49", "add up to 99, not to 100"),
        ] {
            let found = text.parse::<Mix>().unwrap_err();
            assert!(found.contains(cause), "{text}: {found}");
        }
    }
}
