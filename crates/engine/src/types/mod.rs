//! Numbers and addresses, options and errors, which every layer names.

pub(crate) mod error;
pub(crate) mod ids;
pub(crate) mod options;
