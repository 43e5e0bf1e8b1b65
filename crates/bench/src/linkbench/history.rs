use std::collections::HashMap;

use super::schema::LinkId;
use crate::random::Random;

/// Lists of links that were longer than one request returns: where a later request for older
/// links goes on. One per requester; a full one replaces a random entry.
#[derive(Debug, Default)]
pub(crate) struct History {
    tails: Vec<Tail>,
    slots: HashMap<(u64, u64), usize>,
}

/// The oldest link of a list that was fetched so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub id1: u64,
    pub link_type: u64,
    pub time: u64,
}

impl Tail {
    pub(crate) fn of(link: LinkId, time: u64) -> Tail {
        Tail { id1: link.id1, link_type: link.link_type, time }
    }

    fn list(&self) -> (u64, u64) {
        (self.id1, self.link_type)
    }
}

impl History {
    const TAILS_MAX: usize = 2048;

    /// A random list to go on with.
    pub(crate) fn choose(&self, random: &mut Random) -> Option<Tail> {
        match self.tails.len() {
            0 => None,
            n => Some(self.tails[random.below(n as u64) as usize]),
        }
    }

    /// Remembers the end of a list's first part, unless the list is known already.
    pub(crate) fn add(&mut self, tail: Tail, random: &mut Random) {
        if self.slots.contains_key(&tail.list()) {
            return;
        }
        if self.tails.len() < Self::TAILS_MAX {
            self.slots.insert(tail.list(), self.tails.len());
            self.tails.push(tail);
        } else {
            let at = random.below(self.tails.len() as u64) as usize;
            self.slots.remove(&self.tails[at].list());
            self.slots.insert(tail.list(), at);
            self.tails[at] = tail;
        }
    }

    /// Moves the end of a known list on, or forgets the list when it ended.
    pub(crate) fn advance(&mut self, tail: Tail, older: Option<Tail>) {
        let Some(&at) = self.slots.get(&tail.list()) else { return };
        if let Some(older) = older {
            self.tails[at] = older;
            return;
        }
        self.slots.remove(&tail.list());
        self.tails.swap_remove(at);
        if let Some(moved) = self.tails.get(at) {
            self.slots.insert(moved.list(), at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_unique_and_bounded() {
        let mut random = Random::new(1, 1);
        let mut history = History::default();
        assert_eq!(history.choose(&mut random), None);
        for id1 in 0..3000 {
            history.add(Tail { id1, link_type: 1, time: 5 }, &mut random);
            history.add(Tail { id1, link_type: 1, time: 9 }, &mut random);
        }
        assert_eq!(history.tails.len(), History::TAILS_MAX);
        for _ in 0..3000 {
            let Some(tail) = history.choose(&mut random) else { break };
            assert_eq!(tail.time, 5);
            history.advance(tail, None);
        }
        assert!(history.tails.is_empty() && history.slots.is_empty());
    }

    #[test]
    fn a_list_goes_on_where_it_ended() {
        let mut random = Random::new(1, 1);
        let mut history = History::default();
        let tail = Tail { id1: 1, link_type: 1, time: 5 };
        let older = Tail { time: 3, ..tail };
        history.add(tail, &mut random);
        history.advance(tail, Some(older));
        assert_eq!(history.choose(&mut random), Some(older));
    }
}
