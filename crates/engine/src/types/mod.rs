//! What every layer names: numbers and addresses, options, errors.

pub(crate) mod error;
pub(crate) mod ids;
pub(crate) mod options;
