//! Numbers and addresses, options and errors, which every layer names.

mod circle;
mod error;
mod ids;
mod options;

pub(crate) use circle::Circle;
pub use error::{Error, Result};
pub use ids::TableId;
pub(crate) use ids::{Lsn, PageId, PageNo, TxnId, UndoPtr};
pub use options::{
    Doublewrite, Durability, EngineKey, Isolation, StoreOptions, TableKind, TableOptions, TransactionOptions,
};
pub(crate) use options::{Layout, may_have_blocks};
