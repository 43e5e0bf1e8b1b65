use anyhow::{Context, Result, anyhow};

/// A value of a column or a parameter. Numbers without a sign are below 2^63 in all tables here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Null,
    Int(i64),
    Bytes(Vec<u8>),
}

pub(crate) const BAD_ROW: &str = "the server sent a row of other columns than were asked for";

impl Value {
    pub(crate) fn int(&self) -> Result<i64> {
        match *self {
            Value::Int(number) => Ok(number),
            _ => Err(anyhow!(BAD_ROW)),
        }
    }

    pub(crate) fn uint(&self) -> Result<u64> {
        self.int()?.try_into().context(BAD_ROW)
    }

    pub(crate) fn bytes(&self) -> Result<&[u8]> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(anyhow!(BAD_ROW)),
        }
    }
}

/// A number that a row has; the largest one of a signed column in place of those that have no place in it, which are
/// bounds of ranges and never stored.
impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Value {
        Value::Bytes(bytes.to_vec())
    }
}
