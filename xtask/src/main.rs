//! Chores of this repository. `cargo xtask tidy` checks what neither the compiler nor clippy can: layers, IO edges, lists
//! in documents, words, lengths, circles of files, assertions. `cargo xtask tidy --bless` lowers the ratchet where the code got better.
//! `cargo xtask circles` prints every circle of files, with its arrows; `cargo xtask assertions` how many assertions there are for
//! each function of the engines.

mod source;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if words == ["circles"] {
        return tidy::print_circles(&root).map_or_else(|why| fail(&why), |()| ExitCode::SUCCESS);
    }
    if words == ["assertions"] {
        return tidy::print_assertions(&root).map_or_else(|why| fail(&why), |()| ExitCode::SUCCESS);
    }
    let result = match words[..] {
        ["tidy"] => tidy::run(&root, tidy::Ratchet::Check),
        ["tidy", "--bless"] => tidy::run(&root, tidy::Ratchet::Lower),
        _ => Err("usage: cargo xtask tidy [--bless] | circles | assertions".to_owned()),
    };
    match result {
        Ok(complaints) if complaints.is_empty() => {
            println!("tidy");
            ExitCode::SUCCESS
        }
        Ok(complaints) => {
            complaints.iter().for_each(|c| eprintln!("{c}"));
            eprintln!("{} things to tidy up", complaints.len());
            ExitCode::FAILURE
        }
        Err(message) => fail(&message),
    }
}

/// The chore could not be done.
fn fail(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::from(2)
}
