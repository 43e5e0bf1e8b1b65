//! The requests and their arguments (TPC-C, 2.4.1 to 2.8.1).

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use anyhow::{Result, ensure};

use super::{
    Config, DISTRICTS, Scale,
    acks::AckLog,
    db::Db,
    mix::{Deck, Operation},
    text::{LAST_NAMES, NonUniform, last_name, uniform},
    transactions::{Client, Customer, Line, NewOrder, Payment, Who},
};
use crate::{now_ms, random::Random, requesters::Requester};

/// Percent of the customers that are found by their last name.
const BY_NAME: u32 = 60;
/// Percent of the payments by customers of another warehouse.
const REMOTE_PAYMENT: u32 = 15;
/// Percent of the order lines that another warehouse supplies.
const REMOTE_LINE: u32 = 1;

/// A requester; unlike TPC-C's terminals it does not belong to a warehouse and never waits.
pub(crate) struct Terminal<'a, D> {
    client: Client<'a, D>,
    scale: Scale,
    non_uniform: NonUniform,
    next_history: &'a AtomicU64,
    random: Random,
    deck: Deck,
}

impl<'a, D: Db> Terminal<'a, D> {
    pub(crate) fn new(
        number: u64,
        database: &'a D,
        config: &Config,
        acks: Option<&'a AckLog>,
        next_history: &'a AtomicU64,
    ) -> Terminal<'a, D> {
        Terminal {
            client: Client::new(database, acks),
            scale: config.scale,
            non_uniform: NonUniform::new(config.plan.seed),
            next_history,
            random: Random::new(config.plan.seed, !number),
            deck: Deck::new(),
        }
    }

    fn percent(&mut self, percent: u32) -> bool {
        uniform(&mut self.random, 1, 100) <= percent
    }

    fn warehouse(&mut self) -> u32 {
        uniform(&mut self.random, 1, self.scale.warehouses)
    }

    /// Another warehouse than `home`, if there is one.
    fn remote(&mut self, home: u32) -> u32 {
        match self.scale.warehouses {
            1 => home,
            warehouses => {
                let other = uniform(&mut self.random, 1, warehouses - 1);
                if other >= home { other + 1 } else { other }
            }
        }
    }

    fn district(&mut self) -> u32 {
        uniform(&mut self.random, 1, DISTRICTS)
    }

    fn customer(&mut self, warehouse: u32, district: u32) -> Customer {
        let who = if self.percent(BY_NAME) {
            let names = LAST_NAMES.min(self.scale.customers);
            Who::LastName(last_name(self.non_uniform.last_name_run(&mut self.random, names)))
        } else {
            Who::Id(self.non_uniform.customer(&mut self.random, self.scale.customers))
        };
        Customer { warehouse, district, who }
    }

    fn new_order(&mut self, rolls_back: bool) -> NewOrder {
        let (warehouse, district) = (self.warehouse(), self.district());
        let customer = self.non_uniform.customer(&mut self.random, self.scale.customers);
        let mut lines: Vec<Line> = (0..uniform(&mut self.random, 5, 15))
            .map(|_| {
                let item = self.non_uniform.item(&mut self.random, self.scale.items);
                let is_remote = self.percent(REMOTE_LINE);
                let supply_warehouse = if is_remote { self.remote(warehouse) } else { warehouse };
                Line { item, supply_warehouse, quantity: uniform(&mut self.random, 1, 10) as u8 }
            })
            .collect();
        if rolls_back {
            // The last item, in the order of locks too, is one that does not exist.
            lines.last_mut().expect("at least five").item = self.scale.items + 1;
        }
        lines.sort_by_key(|line| (line.item, line.supply_warehouse));
        NewOrder { warehouse, district, customer, lines, now: now_ms() }
    }

    fn payment(&mut self) -> Payment {
        let (warehouse, district) = (self.warehouse(), self.district());
        let customer = if self.percent(REMOTE_PAYMENT) {
            let (remote, its_district) = (self.remote(warehouse), self.district());
            self.customer(remote, its_district)
        } else {
            self.customer(warehouse, district)
        };
        let amount = i64::from(uniform(&mut self.random, 100, 500_000));
        let number = self.next_history.fetch_add(1, Relaxed);
        Payment { warehouse, district, customer, amount, number, now: now_ms() }
    }
}

impl<D: Db> Requester for Terminal<'_, D> {
    fn request(&mut self) -> Result<(usize, u64)> {
        let operation = self.deck.deal(&mut self.random);
        let start;
        match operation {
            Operation::NewOrder | Operation::NewOrderRolledBack => {
                let rolls_back = operation == Operation::NewOrderRolledBack;
                let order = self.new_order(rolls_back);
                start = Instant::now();
                let total = self.client.new_order(&order)?;
                ensure!(total.is_none() == rolls_back, "a new-order ended as it should not: {order:?}");
            }
            Operation::Payment => {
                let payment = self.payment();
                start = Instant::now();
                self.client.payment(&payment)?;
            }
            Operation::OrderStatus => {
                let (warehouse, district) = (self.warehouse(), self.district());
                let customer = self.customer(warehouse, district);
                start = Instant::now();
                self.client.order_status(&customer)?;
            }
            Operation::Delivery => {
                let (warehouse, carrier) = (self.warehouse(), uniform(&mut self.random, 1, 10));
                start = Instant::now();
                self.client.delivery(warehouse, carrier as u8, now_ms())?;
            }
            Operation::StockLevel => {
                let (warehouse, district) = (self.warehouse(), self.district());
                let threshold = uniform(&mut self.random, 10, 20) as i32;
                start = Instant::now();
                self.client.stock_level(warehouse, district, threshold)?;
            }
        }
        Ok((operation as usize, start.elapsed().as_nanos() as u64))
    }

    fn retries(&self) -> u64 {
        self.client.retries()
    }
}
