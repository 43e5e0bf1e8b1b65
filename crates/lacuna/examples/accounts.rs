//! Transfers between accounts from several threads: transactions that conflict on a record are retried, and no money is
//! lost. Run with `cargo run -p lacuna --example accounts -- [PATH]`; in memory without a path.

use std::{ops::Bound, ops::ControlFlow, thread};

use lacuna::{Direction, Result, Store, Table, TableOptions};

fn main() -> Result<()> {
    let store = std::env::args_os().nth(1).map_or_else(Store::in_memory, Store::open)?;
    let accounts = store.open_table("accounts", TableOptions::default())?;
    let mut txn = store.begin();
    for account in 0..10_u8 {
        txn.put(&accounts, &[account], &1000_u64.to_be_bytes())?;
    }
    txn.commit()?; // all of it or, after a crash, nothing
    thread::scope(|scope| {
        let clerks = [1, 3, 7, 9].map(|step| {
            let (store, accounts) = (&store, &accounts);
            scope.spawn(move || (0..200).try_for_each(|i| transfer(store, accounts, i % 10, (i + step) % 10)))
        });
        clerks.into_iter().try_for_each(|clerk| clerk.join().expect("a clerk"))
    })?;
    let mut total = 0;
    store.begin().scan(&accounts, Bound::Unbounded, Bound::Unbounded, Direction::Forward, |_, value| {
        total += u64::from_be_bytes(value.try_into().expect("eight bytes"));
        ControlFlow::Continue(())
    })?;
    println!("ten accounts hold {total} in total");
    store.close()
}

/// Moves 1 from one account to another, again after each conflict or deadlock with another transfer.
fn transfer(store: &Store, accounts: &Table, from: u8, to: u8) -> Result<()> {
    let attempt = || {
        let mut txn = store.begin();
        for (account, change) in [(from, -1), (to, 1)] {
            let value = txn.get_for_update(accounts, &[account])?.expect("made above");
            let balance = u64::from_be_bytes(value.try_into().expect("eight bytes"));
            txn.put(accounts, &[account], &balance.wrapping_add_signed(change).to_be_bytes())?;
        }
        txn.commit()
    };
    loop {
        match attempt() {
            Err(e) if e.is_retryable() => {}
            outcome => return outcome,
        }
    }
}
