//! A tree of source files, the same every time: a C project that builds, among text files.

use nacre_base::Prng;
use std::fmt::Write;
use std::io;
use std::path::Path;

/// Approximate number of files in one directory.
const PER_DIRECTORY: u32 = 40;
/// Sizes of text files are spread over these powers of two: half of them are below 4 KiB, some are 64 KiB.
const SIZE_BITS: (u64, u64) = (8, 16);
/// Number of functions in a unit of the C project.
const FUNCTIONS: u32 = 24;

const WORDS: [&str; 32] = [
    "lock", "the", "of", "object", "extent", "a", "client", "server", "request", "and", "is", "to", "stripe", "layout",
    "file", "cache", "inode", "under", "byte", "until", "given", "back", "reply", "which", "grant", "in", "for", "it",
    "not", "disk", "name", "page",
];

/// Creates the tree in `dir`: `files` files in all, of which `units` are C files that `make` builds to `program`.
pub(crate) fn generate(dir: &Path, files: u32, units: u32) -> io::Result<()> {
    for d in ["include", "src", "doc"] {
        std::fs::create_dir_all(dir.join(d))?;
    }
    std::fs::write(dir.join("Makefile"), MAKEFILE)?;
    std::fs::write(dir.join(".gitignore"), "*.o\n*.d\n/program\n")?;
    std::fs::write(dir.join("src/main.c"), main_file(units))?;
    for unit in 0..units {
        let sub = dir.join(format!("src/part{:02}", unit / PER_DIRECTORY));
        std::fs::create_dir_all(&sub)?;
        std::fs::write(dir.join(format!("include/unit_{unit}.h")), header(unit))?;
        std::fs::write(sub.join(format!("unit_{unit}.c")), unit_file(unit))?;
    }
    let mut prng = Prng::new(0x7265_6570);
    for n in 0..files.saturating_sub(2 * units + 3) {
        let chapter = n / PER_DIRECTORY;
        let sub = dir.join(format!("doc/volume{}/chapter{:02}", chapter / 8, chapter % 8));
        if n % PER_DIRECTORY == 0 {
            std::fs::create_dir_all(&sub)?;
        }
        std::fs::write(sub.join(format!("section-{:03}.txt", n % PER_DIRECTORY)), text(&mut prng))?;
    }
    Ok(())
}

const MAKEFILE: &str = "\
CFLAGS ?= -O1
SOURCES := $(wildcard src/*.c src/*/*.c)
OBJECTS := $(SOURCES:.c=.o)

program: $(OBJECTS)
\t$(CC) -o $@ $(OBJECTS)

%.o: %.c
\t$(CC) $(CFLAGS) -Iinclude -MMD -c -o $@ $<

-include $(OBJECTS:.o=.d)
";

fn header(unit: u32) -> String {
    format!("#ifndef UNIT_{unit}_H\n#define UNIT_{unit}_H\nunsigned unit_{unit}(unsigned x);\n#endif\n")
}

fn unit_file(unit: u32) -> String {
    let mut prng = Prng::new(u64::from(unit));
    let mut out = format!("#include <stdio.h>\n#include <string.h>\n#include \"unit_{unit}.h\"\n");
    for f in 0..FUNCTIONS {
        let (a, b, c) = (prng.range(1, 1 << 16), prng.range(1, 31), prng.range(2, 20));
        let _ = writeln!(
            out,
            "\n/* {} */\nstatic unsigned step_{f}(unsigned x)\n{{\n\tunsigned table[{c}], sum = {a};\n\
             \tmemset(table, (int)(x & 127), sizeof(table));\n\
             \tfor (unsigned i = 0; i < {c}; i++) {{\n\t\ttable[i] ^= (x >> (i % {b})) * {a}u;\n\
             \t\tsum = sum * 31 + table[i];\n\t}}\n\treturn sum;\n}}",
            sentence(&mut prng)
        );
    }
    let _ = writeln!(out, "\nunsigned unit_{unit}(unsigned x)\n{{");
    out.extend((0..FUNCTIONS).map(|f| format!("\tx = step_{f}(x);\n")));
    out.push_str("\treturn x;\n}\n");
    out
}

fn main_file(units: u32) -> String {
    let mut out = "#include <stdio.h>\n".to_owned();
    out.extend((0..units).map(|u| format!("#include \"unit_{u}.h\"\n")));
    out.push_str("\nint main(void)\n{\n\tunsigned x = 1;\n");
    out.extend((0..units).map(|u| format!("\tx = unit_{u}(x);\n")));
    out.push_str("\tprintf(\"%u\\n\", x);\n\treturn 0;\n}\n");
    out
}

fn sentence(prng: &mut Prng) -> String {
    let words: Vec<&str> = (0..prng.range(4, 12)).map(|_| *prng.pick(&WORDS)).collect();
    words.join(" ")
}

fn text(prng: &mut Prng) -> String {
    let bits = prng.range(SIZE_BITS.0, SIZE_BITS.1);
    let size = prng.range(1 << bits, 2 << bits) as usize;
    let mut out = String::with_capacity(size + 80);
    while out.len() < size {
        out.push_str(&sentence(prng));
        out.push_str(".\n");
    }
    out.truncate(size);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    fn contents(dir: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>, root: &Path) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                contents(&path, found, root);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_owned(), std::fs::read(&path).unwrap());
            }
        }
    }

    #[test]
    fn it_is_the_same_every_time_and_has_as_many_files_as_asked_for() {
        let made = [(); 2].map(|()| {
            let dir = tempfile::tempdir().unwrap();
            generate(dir.path(), 300, 20).unwrap();
            let mut found = BTreeMap::new();
            contents(dir.path(), &mut found, dir.path());
            found
        });
        assert_eq!(made[0].len(), 300);
        assert!(made[0] == made[1]);
        let bytes: usize = made[0].values().map(Vec::len).sum();
        assert!((1_000_000..5_000_000).contains(&bytes), "{bytes}");
    }
}
