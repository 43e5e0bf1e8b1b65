//! Whole runs on the engine in memory, and the verification of damaged databases.

use std::{fs, path::PathBuf, time::Duration};

use lacuna_device::MemVfs;
use lacuna_engine::{StoreOptions, TableOptions};

use super::{
    AckLog, Config, DISTRICTS, Database, RunReport, Scale,
    database::EngineTxn,
    db::{Db, Txn},
    load::load,
    run,
    schema::{CustomerRow, DistrictRow, HistoryRow, OrderLineRow, OrderRow, Row, Table, WarehouseRow, key},
    verify, verify_acks,
};
use crate::Plan;

const CONFIG: Config = Config {
    scale: Scale { warehouses: 2, items: 200, customers: 40 },
    plan: Plan {
        loaders: 3,
        requesters: 4,
        warmup: Duration::from_millis(20),
        seconds: Duration::from_millis(20),
        // More than a deck of 23 for each requester of any test.
        requests_min: 1000,
        rate: None,
        window: None,
        seed: 1,
        epoch_ms: 1_700_000_000_000,
        quiet: true,
    },
};

/// Of [`CONFIG`]: 28 of 40 orders of a district are delivered.
const NEW: u32 = 29;

fn database() -> Database {
    let options = StoreOptions { pool_bytes: 8 << 20, ..StoreOptions::default() };
    Database::create(MemVfs::new(), options, TableOptions::default()).unwrap()
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("lacuna-tpcc-{}-{name}", std::process::id()))
}

fn run_with_log(name: &str) -> (Database, RunReport, PathBuf) {
    let (database, log) = (database(), scratch(name));
    let acks = AckLog::create(&log).unwrap();
    let report = run(&database, &CONFIG, "plain", "none", Some(&acks)).unwrap();
    (database, report, log)
}

#[test]
fn a_run_is_consistent_and_proves_its_acknowledgements() {
    let (database, report, log) = run_with_log("run");
    assert_eq!(report.figures.violation, None);
    assert!(report.transactions >= 1000 && report.new_orders_per_minute > 0.0);
    assert_eq!(report.figures.ops.iter().map(|(_, summary)| summary.count).sum::<u64>(), report.transactions);
    let verified = verify_acks(&database, &log).unwrap();
    let loaded = u64::from(CONFIG.scale.warehouses * DISTRICTS * CONFIG.scale.customers);
    assert_eq!(verified.warehouses, 2);
    assert!(verified.orders > loaded && verified.payments > loaded && verified.acks > 100);
    fs::remove_file(log).unwrap();
}

#[test]
fn the_same_seed_loads_the_same_rows() {
    let rows = |seed, loaders| {
        let database = database();
        load(&database, &Config { plan: Plan { seed, loaders, ..CONFIG.plan }, ..CONFIG }, None).unwrap();
        verify(&database).unwrap();
        let mut txn = database.begin().unwrap();
        let mut rows = Vec::new();
        for table in Table::ALL {
            txn.scan(table, &[], &mut |key, value| {
                rows.push((table.name(), key.to_vec(), value.to_vec()));
                Ok(())
            })
            .unwrap();
        }
        rows
    };
    let once = rows(1, 1);
    assert!(once == rows(1, 4));
    assert!(once != rows(2, 1));
}

/// Changes a row of a loaded database.
fn change<R>(txn: &mut EngineTxn<'_>, table: Table, key: &[u8], new: impl FnOnce(&[u8]) -> R)
where
    R: AsRef<[u8]>,
{
    let value = txn.get(table, key).unwrap();
    txn.put(table, key, new(&value).as_ref()).unwrap();
}

/// Damages a loaded database and expects verification to say `complaint`.
fn damaged(complaint: &str, damage: impl FnOnce(&mut EngineTxn<'_>)) {
    let database = database();
    load(&database, &CONFIG, None).unwrap();
    verify(&database).unwrap();
    let mut txn = database.begin().unwrap();
    damage(&mut txn);
    txn.commit().unwrap();
    let error = format!("{:#}", verify(&database).unwrap_err());
    assert!(error.contains(complaint), "{error:?} does not say {complaint:?}");
}

fn pay_warehouse(txn: &mut EngineTxn<'_>, by: i64) {
    change(txn, Table::Warehouse, &key(&[2]), |value| {
        let row = WarehouseRow::of_value(value).unwrap();
        WarehouseRow { ytd: row.ytd + by, ..row }.value()
    });
}

fn change_district(txn: &mut EngineTxn<'_>, district: u32, ytd: i64, next_order: u32) {
    change(txn, Table::District, &key(&[2, district]), |value| {
        let row = DistrictRow::of_value(value).unwrap();
        DistrictRow { ytd: row.ytd + ytd, next_order: row.next_order + next_order, ..row }.value()
    });
}

fn change_customer(txn: &mut EngineTxn<'_>, balance: i64, ytd_payment: i64) {
    change(txn, Table::Customer, &key(&[2, 3, 4]), |value| {
        let row = CustomerRow::of_value(value).unwrap();
        let (balance, ytd_payment) = (row.balance + balance, row.ytd_payment + ytd_payment);
        CustomerRow { balance, ytd_payment, ..row }.value()
    });
}

#[test]
fn condition_1_is_checked() {
    damaged("condition 3.3.2.1, warehouse 2: ", |txn| pay_warehouse(txn, 1));
    damaged("condition 3.3.2.1, warehouse 2: ", |txn| change_district(txn, 3, -1, 0));
}

#[test]
fn condition_2_is_checked() {
    damaged("condition 3.3.2.2, warehouse 2, district 3", |txn| change_district(txn, 3, 0, 1));
    damaged("condition 3.3.2.2, warehouse 2, district 3", |txn| {
        txn.delete(Table::NewOrder, &key(&[2, 3, 40])).unwrap();
    });
}

#[test]
fn condition_3_is_checked() {
    damaged("condition 3.3.2.3, warehouse 2, district 3", |txn| {
        txn.delete(Table::NewOrder, &key(&[2, 3, NEW + 1])).unwrap();
    });
}

#[test]
fn condition_4_is_checked() {
    damaged("condition 3.3.2.4, warehouse 2, district 3", |txn| {
        txn.delete(Table::OrderLine, &key(&[2, 3, 7, 5])).unwrap();
    });
}

#[test]
fn condition_5_is_checked() {
    let deliver = |txn: &mut EngineTxn<'_>, order, carrier| {
        change(txn, Table::Order, &key(&[2, 3, order]), |value| {
            OrderRow { carrier, ..OrderRow::of_value(value).unwrap() }.value()
        });
    };
    damaged("condition 3.3.2.5, warehouse 2, district 3", |txn| deliver(txn, NEW, 1));
    damaged("condition 3.3.2.5, warehouse 2, district 3", |txn| deliver(txn, NEW - 1, 0));
}

#[test]
fn condition_6_is_checked() {
    damaged("condition 3.3.2.6, warehouse 2, district 3", |txn| {
        let value = txn.get(Table::OrderLine, &key(&[2, 3, 7, 5])).unwrap();
        txn.delete(Table::OrderLine, &key(&[2, 3, 7, 5])).unwrap();
        txn.insert(Table::OrderLine, &key(&[2, 3, 8, 100]), &value).unwrap();
    });
}

#[test]
fn condition_7_is_checked() {
    let deliver = |txn: &mut EngineTxn<'_>, order, delivery| {
        change(txn, Table::OrderLine, &key(&[2, 3, order, 2]), |value| {
            OrderLineRow { delivery, ..OrderLineRow::of_value(value).unwrap() }.value()
        });
    };
    damaged("condition 3.3.2.7, warehouse 2, district 3", |txn| deliver(txn, NEW, 1));
    damaged("condition 3.3.2.7, warehouse 2, district 3", |txn| deliver(txn, NEW - 1, 0));
}

#[test]
fn condition_8_is_checked() {
    damaged("condition 3.3.2.8, warehouse 2: ", |txn| {
        pay_warehouse(txn, 5);
        change_district(txn, 3, 5, 0);
    });
}

#[test]
fn condition_9_is_checked() {
    damaged("condition 3.3.2.9, warehouse 2, district 3", |txn| {
        change_district(txn, 3, 5, 0);
        change_district(txn, 4, -5, 0);
    });
}

#[test]
fn condition_10_is_checked() {
    damaged("condition 3.3.2.10, warehouse 2, district 3", |txn| change_customer(txn, 5, -5));
    // A payment that names another customer, of another district even.
    damaged("condition 3.3.2.10, warehouse 1, district 1", |txn| {
        let payment = txn.first(Table::History, &key(&[2, 3])).unwrap().unwrap();
        change(txn, Table::History, &payment, |value| {
            let row = HistoryRow::of_value(value).unwrap();
            HistoryRow { customer_warehouse: 1, customer_district: 1, customer: 7, ..row }.value()
        });
    });
}

#[test]
fn condition_12_is_checked() {
    damaged("condition 3.3.2.12, warehouse 2, district 3", |txn| change_customer(txn, 0, 5));
}

#[test]
fn indexes_are_checked() {
    damaged("index of customers by name, warehouse 2, district 3: lacks", |txn| {
        let entry = txn.first(Table::CustomerByName, &key(&[2, 3])).unwrap().unwrap();
        txn.delete(Table::CustomerByName, &entry).unwrap();
    });
    damaged("index of orders by customer, warehouse 2, district 3: has", |txn| {
        txn.insert(Table::OrderByCustomer, &key(&[2, 3, 4, 5]), &[]).unwrap();
    });
}

#[test]
fn what_was_acknowledged_and_is_lost_is_named() {
    let (database, _, log) = run_with_log("lost");
    verify_acks(&database, &log).unwrap();
    let lost = [
        ("O 1 1 1000000 1 5\n", "acknowledged Order"),
        ("O 1 1 1 100 5\n", "it is OrderRow"),
        ("P 1 1 1000000000 5\n", "acknowledged Payment"),
        ("P 1 1 0 5\n", "its amount is 1000"),
        ("D 1 1 1 11\n", "its carrier is"),
        ("L 3 200 40\n", "warehouse has 2 rows"),
        ("L 2 200 41\n", "customer has 800 rows"),
    ];
    let proven = fs::read_to_string(&log).unwrap();
    for (line, complaint) in lost {
        fs::write(&log, format!("{proven}{line}")).unwrap();
        let error = format!("{:#}", verify_acks(&database, &log).unwrap_err());
        assert!(error.contains(complaint), "{error:?} does not say {complaint:?}");
    }
    fs::remove_file(log).unwrap();
}

/// Few warehouses and many requesters: most transactions meet others on the same rows.
#[test]
fn requesters_in_each_others_way_stay_consistent() {
    let scale = Scale { warehouses: 1, items: 20, customers: 10 };
    let database = database();
    let config = Config { scale, plan: Plan { requesters: 12, ..CONFIG.plan } };
    let report = run(&database, &config, "plain", "none", None).unwrap();
    assert_eq!(report.figures.violation, None);
    assert!(report.figures.ops.iter().any(|(name, summary)| *name == "delivery" && summary.count > 0));
}
