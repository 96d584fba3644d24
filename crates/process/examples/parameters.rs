//! Prints `docs/parameters.md`.

fn main() {
    print!("{}", nacre_process::reference::page());
}
