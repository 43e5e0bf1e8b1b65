//! Transfers between accounts from several threads: row locks, a secondary index kept in the same
//! transaction, and another try after a deadlock or a conflict of snapshots.
//!
//! Run with `cargo run --release -p lacuna-engine --example transfers -- [PATH]`; PATH is a store file
//! (made when missing), a directory or a block device, memory when it is left out.

use std::{error::Error as StdError, ops::Bound, ops::ControlFlow, sync::Arc, thread};

use lacuna_device::{MemVfs, Vfs};
use lacuna_engine::{Algorithm, Direction, Error, Store, StoreOptions, Table, TableOptions};
use lacuna_nvmfs::{VfsOptions, open_vfs};

const ACCOUNTS: u64 = 100;
const START: i64 = 1000;

#[derive(Clone)]
struct Bank {
    store: Store,
    /// Account to balance.
    accounts: Table,
    /// Balance and account, to find the richest without reading all accounts.
    by_balance: Table,
}

fn main() -> Result<(), Box<dyn StdError>> {
    let mut opened = None;
    let vfs: Arc<dyn Vfs> = match std::env::args_os().nth(1) {
        None => MemVfs::new(),
        Some(path) => {
            let options = VfsOptions { create_size: Some(256 << 20), ..VfsOptions::default() };
            opened.insert(open_vfs(path.as_ref(), &options)?).vfs()
        }
    };
    let store = Store::open(vfs, StoreOptions::default())?;
    let bank = Bank {
        accounts: store.open_table("accounts", TableOptions::compressed(Algorithm::Lz4))?,
        by_balance: store.open_table("accounts_by_balance", TableOptions::compressed(Algorithm::Lz4))?,
        store,
    };
    bank.found()?;
    let tellers: Vec<_> = (1..=4u64)
        .map(|seed| {
            let bank = bank.clone();
            thread::spawn(move || bank.trade(seed))
        })
        .collect();
    for teller in tellers {
        teller.join().expect("a teller")?;
    }
    let (richest, balance) = bank.richest()?;
    println!("account {richest} is the richest with {balance}; all hold {}", bank.total()?);
    drop(bank.accounts);
    bank.store.close()?;
    Ok(())
}

/// Ordered like the number itself.
fn balance_key(balance: i64, account: u64) -> Vec<u8> {
    [((balance as u64) ^ (1 << 63)).to_be_bytes(), account.to_be_bytes()].concat()
}

fn balance_of(value: &[u8]) -> i64 {
    i64::from_le_bytes(value.try_into().expect("a balance is eight bytes"))
}

impl Bank {
    /// Opens all accounts, once.
    fn found(&self) -> Result<(), Error> {
        let mut txn = self.store.begin();
        for account in 0..ACCOUNTS {
            match txn.insert(&self.accounts, &account.to_be_bytes(), &START.to_le_bytes()) {
                Ok(()) => txn.put(&self.by_balance, &balance_key(START, account), b"")?,
                Err(Error::KeyExists) => return txn.rollback(),
                Err(e) => return Err(e),
            }
        }
        txn.commit()
    }

    fn trade(&self, seed: u64) -> Result<(), Error> {
        let mut number = seed;
        for _ in 0..500 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (from, to, sum) = (number >> 20 & 63, number >> 40 & 63, (number >> 60) as i64);
            while let Err(e) = self.transfer(from, to, sum) {
                if !e.is_retryable() {
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn transfer(&self, from: u64, to: u64, sum: i64) -> Result<(), Error> {
        let mut txn = self.store.begin();
        for (account, change) in [(from, -sum), (to, sum)] {
            let key = account.to_be_bytes();
            let value = txn.get_for_update(&self.accounts, &key)?.expect("founded");
            let (before, after) = (balance_of(&value), balance_of(&value) + change);
            txn.put(&self.accounts, &key, &after.to_le_bytes())?;
            txn.delete(&self.by_balance, &balance_key(before, account))?;
            txn.put(&self.by_balance, &balance_key(after, account), b"")?;
        }
        txn.commit()
    }

    fn richest(&self) -> Result<(u64, i64), Error> {
        let mut found = (0, 0);
        let all = Bound::Unbounded;
        self.store.begin().scan(&self.by_balance, all, all, Direction::Backward, |key, _| {
            let word = |at: usize| u64::from_be_bytes(key[at..at + 8].try_into().expect("eight bytes"));
            found = (word(8), (word(0) ^ (1 << 63)) as i64);
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    fn total(&self) -> Result<i64, Error> {
        let mut total = 0;
        let all = Bound::Unbounded;
        self.store.begin().scan(&self.accounts, all, all, Direction::Forward, |_, value| {
            total += balance_of(value);
            ControlFlow::Continue(())
        })?;
        Ok(total)
    }
}
