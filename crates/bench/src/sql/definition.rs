//! Tables, whichever server has them.

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// A number up to 127.
    Tiny,
    /// A number up to 2^31.
    Int,
    /// A number up to 2^63.
    Big,
    /// The same; the server counts them where it is not told.
    Serial,
    SignedInt,
    SignedBig,
    /// Text of exactly this length.
    Char(u16),
    /// Text up to this length.
    Text(u16),
    /// The same, sorted by its bytes.
    Name(u16),
    /// Any bytes, up to 255 of them.
    Bytes,
    /// Any number of bytes.
    LongBytes,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) of: Type,
    pub(crate) is_nullable: bool,
}

impl Column {
    pub(crate) const fn new(name: &'static str, of: Type) -> Column {
        Column { name, of, is_nullable: false }
    }
}

/// A table of a benchmark.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    pub(crate) name: &'static str,
    pub(crate) columns: Vec<Column>,
    /// The columns of its primary key.
    pub(crate) key: Vec<&'static str>,
    /// Name and columns of its secondary key, if it has one.
    pub(crate) index: Option<(&'static str, &'static str)>,
}

impl Definition {
    /// Columns and primary key, as a statement that makes the table lists them.
    pub(crate) fn list(&self, type_name: impl Fn(Type) -> String) -> String {
        let mut parts: Vec<String> = self
            .columns
            .iter()
            .map(|column| {
                let null = if column.is_nullable { "NULL" } else { "NOT NULL" };
                format!("{} {} {null}", column.name, type_name(column.of))
            })
            .collect();
        parts.push(format!("PRIMARY KEY ({})", self.key.join(", ")));
        parts.join(", ")
    }
}
