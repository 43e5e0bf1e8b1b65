//! The operations and the deck that they are dealt from.

use crate::random::Random;

/// The operations of requesters. A new-order that rolls back is counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    NewOrder,
    NewOrderRolledBack,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

/// Operations in the order of reports, and their names.
const OPERATIONS: [(Operation, &str); 6] = [
    (Operation::NewOrder, "new_order"),
    (Operation::NewOrderRolledBack, "new_order_rolled_back"),
    (Operation::Payment, "payment"),
    (Operation::OrderStatus, "order_status"),
    (Operation::Delivery, "delivery"),
    (Operation::StockLevel, "stock_level"),
];

/// Share of the new-orders that roll back, in percent.
const ROLLED_BACK: u64 = 1;

impl Operation {
    /// How many there are.
    pub(crate) const COUNT: usize = OPERATIONS.len();

    /// Their names in the order of their numbers.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        OPERATIONS.iter().map(|&(_, name)| name)
    }
}

/// A deck of 23 transactions, shuffled anew whenever all are dealt (TPC-C, 5.2.4.2).
pub(crate) struct Deck {
    cards: [Operation; 23],
    dealt: usize,
}

impl Deck {
    pub(crate) fn new() -> Deck {
        use Operation::{Delivery, NewOrder, OrderStatus, Payment, StockLevel};
        let mut cards = [NewOrder; 23];
        cards[10..20].fill(Payment);
        cards[20..].copy_from_slice(&[OrderStatus, Delivery, StockLevel]);
        Deck { cards, dealt: 23 }
    }

    pub(crate) fn deal(&mut self, random: &mut Random) -> Operation {
        if self.dealt == self.cards.len() {
            shuffle(&mut self.cards, random);
            self.dealt = 0;
        }
        let card = self.cards[self.dealt];
        self.dealt += 1;
        if card == Operation::NewOrder && random.below(100) < ROLLED_BACK {
            return Operation::NewOrderRolledBack;
        }
        card
    }
}

/// A random order of all elements (Fisher and Yates).
pub(crate) fn shuffle<T>(elements: &mut [T], random: &mut Random) {
    for last in (1..elements.len()).rev() {
        elements.swap(last, random.below(last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deck_has_the_mix() {
        for (index, (operation, _)) in OPERATIONS.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
        }
        let mut random = Random::new(1, 1);
        let mut deck = Deck::new();
        let (mut rolled_back, mut orders) = (0, Vec::new());
        for _ in 0..10_000 {
            let mut counts = [0; Operation::COUNT];
            let dealt: Vec<usize> = (0..23).map(|_| deck.deal(&mut random) as usize).collect();
            dealt.iter().for_each(|&operation| counts[operation] += 1);
            rolled_back += counts[1];
            assert_eq!(
                [counts[0] + counts[1], counts[2], counts[3], counts[4], counts[5]],
                [10, 10, 1, 1, 1]
            );
            orders.push(dealt);
        }
        assert!((900..1100).contains(&rolled_back), "{rolled_back} of 100000");
        assert_ne!(orders[0], orders[1]);
    }
}
