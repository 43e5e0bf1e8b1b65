//! The operations and how often each is drawn.

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

    /// Draws the next request.
    pub(crate) fn choose(random: &mut Random) -> Operation {
        let mut left = random.unit() * 100.0;
        for (operation, _, percent) in OPERATIONS {
            left -= percent;
            if left < 0.0 {
                return operation;
            }
        }
        // The percentages add up to 100 but for rounding.
        OPERATIONS[0].0
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
        let mut random = Random::new(1, 1);
        let mut counts = [0u32; OPERATIONS.len()];
        for _ in 0..200_000 {
            counts[Operation::choose(&mut random) as usize] += 1;
        }
        for (count, (_, name, percent)) in counts.into_iter().zip(OPERATIONS) {
            let found = f64::from(count) / 2000.0;
            assert!((found - percent).abs() < 0.05 + percent * 0.03, "{name}: {found} not {percent}");
        }
    }
}
