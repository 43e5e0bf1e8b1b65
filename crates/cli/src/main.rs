//! The program `lacuna`.
fn main() {}
