//! The program `lacuna`: all of it is in the library, which `lacuna run` puts into other programs.

use std::process::ExitCode;

fn main() -> ExitCode {
    lacuna_cli::main()
}
