//! A source tree of over 10,000 files is unpacked on the file system and a large C library in it is built there by its
//! own configure script and make; every source and every output equals what the same steps give on the local disk.

use crate::case::{Case, Env, LAYOUTS, Layout, Profile, text};
use crate::failure::{Context, Outcome, ensure};
use crate::prng::Prng;
use crate::process::Program;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    const ONE: &[Layout] = &[Layout::Default];
    vec![
        Case::new("tree", tree).layouts(ONE, LAYOUTS).limits(180, 1500).prepare(prepare),
        Case::new("compile-two-mounts", compile_two_mounts).layouts(ONE, LAYOUTS),
    ]
}

/// Unpacks and builds, in the current directory, from the archive `$1`; `$2` is what make is to make.
const BUILD: &str = r#"
tar -xf "$1"
cd "$(dirname "$(find . -maxdepth 4 -name Configure -path '*openssl*')")"
export SOURCE_DATE_EPOCH=1
./config no-tests no-shared no-module no-asm no-legacy no-docs no-apps -O0 > config.log
make -s -j2 build_generated > make.log 2>&1
make -s -j2 $2 >> make.log 2>&1 || { tail -n 5 make.log >&2; exit 1; }
rm config.log make.log
"#;

/// Files that hold the absolute path of the build, or the time.
const NOT_COMPARED: &str = r"/(Makefile|builddata\.pm|configdata\.pm|[^/]*\.pc|OpenSSLConfig[^/]*\.cmake)$";

fn goals(profile: Profile) -> &'static str {
    if profile == Profile::Short { "providers/libcommon.a" } else { "libcrypto.a libssl.a" }
}

/// Where things are kept, one directory for each set of pinned sources.
fn kept(env: &Env) -> Outcome<PathBuf> {
    let lock = fs::read(env.repository.join("tests/e2e/fixtures/tree/Cargo.lock"))?;
    let hash = lock.iter().fold(0, |h, &b| Prng::new(h ^ u64::from(b)).next());
    Ok(env.cache.join(format!("e2e/tree-{hash:016x}")))
}

fn archive(env: &Env) -> Outcome<PathBuf> {
    Ok(kept(env)?.join(env.pick("short.tar", "full.tar")))
}

/// The checksums that the local disk gave; one file for each compiler, profile and script.
fn reference(env: &Env) -> Outcome<PathBuf> {
    let compiler = Program::new("cc").arg("--version").run()?.stdout;
    let steps = BUILD.bytes().chain(goals(env.profile).bytes());
    let hash = compiler.bytes().chain(steps).fold(0, |h, b| Prng::new(h ^ u64::from(b)).next());
    Ok(kept(env)?.join(format!("{}-{hash:016x}.sums", env.pick("short", "full"))))
}

/// Fetches the sources and builds them on the local disk, once.
fn prepare(env: &Env) -> Outcome {
    let (kept, archive, reference) = (kept(env)?, archive(env)?, reference(env)?);
    fs::create_dir_all(&kept)?;
    if !archive.exists() {
        let vendored = kept.join("vendor");
        Program::new("cargo")
            .args(["vendor", "--quiet", "--locked", "--versioned-dirs", "--manifest-path"])
            .arg(env.repository.join("tests/e2e/fixtures/tree/Cargo.toml"))
            .arg(&vendored)
            .run()
            .context("fetching the source tree from the crates registry")?;
        let part = if env.profile == Profile::Short { "$(echo openssl-src-*)" } else { "." };
        let part = format!("cd '{}' && tar --sort=name -cf '{}.part' {part}", vendored.display(), archive.display());
        Program::shell(&part).run()?;
        fs::rename(archive.with_extension("tar.part"), &archive)?;
        fs::remove_dir_all(&vendored)?;
    }
    if !reference.exists() {
        let place = env.local.join("reference");
        fs::create_dir_all(&place)?;
        build(env, &place).context("on the local disk")?;
        fs::write(&reference, checksums(&place)?)?;
        fs::remove_dir_all(&place)?;
    }
    Ok(())
}

fn build(env: &Env, place: &Path) -> Outcome {
    Program::new("bash")
        .args(["-euo", "pipefail", "-c", BUILD, "build", &text(&archive(env)?), goals(env.profile)])
        .dir(place)
        .limit(Duration::from_secs(1400))
        .run()
        .map(drop)
}

/// SHA-256, mode and target of everything below a directory.
pub(crate) fn checksums(place: &Path) -> Outcome<String> {
    let script = r#"find . -type f | grep -Ev "$1" | LC_ALL=C sort | xargs -d '\n' sha256sum
                    find . ! -type f -printf '%M %l  %p\n' | LC_ALL=C sort"#;
    let list = Program::new("bash").args(["-euo", "pipefail", "-c", script, "sums", NOT_COMPARED]).dir(place).run()?;
    Ok(list.stdout)
}

fn tree(env: &Env) -> Outcome {
    build(env, &env.a)?;
    let expected = fs::read_to_string(reference(env)?)?;
    // Through the other mount: from the servers, not from the builder's caches.
    let got = checksums(&env.b)?;
    let by_path = |sums: &'_ str| -> BTreeMap<String, String> {
        let line = |l: &str| l.rsplit_once("  ").map(|(sum, path)| (path.to_owned(), sum.to_owned()));
        sums.lines().filter_map(line).collect()
    };
    let (got, expected) = (by_path(&got), by_path(&expected));
    ensure!(expected.len() > env.pick(2500, 10_000), "only {} files in the reference", expected.len());
    let differ: Vec<&String> =
        expected.iter().filter(|(path, sum)| got.get(*path) != Some(sum)).map(|(p, _)| p).collect();
    ensure!(
        differ.is_empty(),
        "{} of {} files differ: {:?}",
        differ.len(),
        expected.len(),
        &differ[..differ.len().min(5)]
    );
    ensure!(got.len() == expected.len(), "{} files, expected {}", got.len(), expected.len());
    Ok(())
}

/// Sources are written on one mount, half of the objects compiled there and half on the second, all at once; the third
/// links them, and each mount runs the program. A changed source is compiled anew on another mount and linked again.
fn compile_two_mounts(env: &Env) -> Outcome {
    const UNITS: usize = 8;
    let cc = |dir: &Path, args: &[String]| Program::new("cc").args(args).dir(dir).limit(Duration::from_secs(50)).run();
    let sum = |add: usize| (0..UNITS).map(|n| n * n + add).sum::<usize>();
    let main = "#include \"all.h\"\n#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 0 CALLS); return 0; }\n";
    let calls: String = (0..UNITS).map(|n| format!(" + f{n}()")).collect();
    for add in 0..env.pick(2, 20) {
        let header: String = (0..UNITS).map(|n| format!("int f{n}(void);\n")).collect();
        fs::write(env.a.join("all.h"), format!("{header}#define ADD {add}\n#define CALLS{calls}\n"))?;
        fs::write(env.b.join("main.c"), main)?;
        for n in 0..UNITS {
            let text = format!("#include \"all.h\"\nint f{n}(void) {{ return {n} * {n} + ADD; }}\n");
            fs::write(env.a.join(format!("f{n}.c")), text)?;
        }
        std::thread::scope(|scope| {
            let half = |dir, from: usize| {
                (from..UNITS).step_by(2).try_for_each(|n| {
                    let [source, object] = ["c", "o"].map(|end| format!("f{n}.{end}"));
                    cc(dir, &["-c".into(), source, "-o".into(), object]).map(drop)
                })
            };
            let other = scope.spawn(move || half(&env.b, 1));
            half(&env.a, 0)?;
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let mut link = vec!["main.c".to_owned(), "-o".into(), "program".into()];
        link.extend((0..UNITS).map(|n| format!("f{n}.o")));
        cc(&env.c, &link)?;
        for dir in [&env.a, &env.b, &env.c] {
            let said = Program::new(dir.join("program")).limit(Duration::from_secs(20)).run()?.stdout;
            ensure!(said.trim() == sum(add).to_string(), "the program says {said:?}, expected {}", sum(add));
        }
    }
    Ok(())
}
