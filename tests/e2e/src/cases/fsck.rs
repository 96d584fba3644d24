//! Damaged and restored targets: `nacre fsck` finds what is wrong, mends it, finds nothing the second time, and the file
//! system works with all that was not damaged. On a file system of its own, made by `nacre up`.

use crate::case::{Case, Env, text};
use crate::cluster::{free_ports, unmount_below};
use crate::failure::{Outcome, bail, ensure, ensure_eq};
use crate::prng::pattern;
use crate::process::{Printed, Program};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// This module's part of the list.
pub(crate) fn all() -> Vec<Case> {
    vec![
        Case::new("fsck-restored-ost", restored_ost).needs_cluster().limits(120, 240),
        Case::new("fsck-lost-data", lost_data).needs_cluster().limits(120, 240),
    ]
}

/// A file system that can be stopped and started.
struct Fs {
    nacre: PathBuf,
    run_dir: PathBuf,
    dir: PathBuf,
    at: PathBuf,
    listen: String,
}

impl Fs {
    fn new(env: &Env) -> Outcome<Fs> {
        let Some(cluster) = &env.cluster else { bail!("this case needs the product") };
        let at = env.local.join("mnt");
        fs::create_dir_all(&at)?;
        let listen = format!("127.0.0.1:{}", free_ports(1)?[0]);
        let (nacre, run_dir) = (cluster.nacre().to_owned(), env.local.join("run"));
        Ok(Fs { nacre, run_dir, dir: env.local.join("fs"), at, listen })
    }

    fn nacre(&self, args: &[&str]) -> Program {
        Program::new(&self.nacre).args(args).env("NACRE_RUN_DIR", &self.run_dir).limit(Duration::from_secs(60))
    }

    fn up(&self) -> Outcome {
        let (dir, at) = (text(&self.dir), text(&self.at));
        self.nacre(&["up", &dir, &at, "--osts", "2", "--fsname", "one", "--listen", &self.listen]).run().map(drop)
    }

    fn down(&self) -> Outcome {
        self.nacre(&["down", &text(&self.dir)]).run().map(drop)
    }

    fn target(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs fsck over all targets; its exit code and findings.
    fn fsck(&self, options: &[&str]) -> Outcome<(i32, Vec<String>)> {
        let dirs = ["mdt0000", "ost0000", "ost0001"].map(|name| text(&self.target(name)));
        let mut args = vec!["fsck", "--json"];
        args.extend(options);
        args.extend(dirs.iter().map(String::as_str));
        let Printed { status, stdout, stderr, .. } = self.nacre(&args).output()?;
        let Ok(said) = serde_json::from_str::<serde_json::Value>(&stdout) else {
            bail!("fsck printed {stdout:?} and {stderr:?}");
        };
        let findings = said["findings"].as_array().cloned().unwrap_or_default();
        let kinds = findings.iter().map(|f| f["kind"].as_str().unwrap_or_default().to_owned()).collect();
        Ok((status.code().unwrap_or(-1), kinds))
    }

    /// Ends what a failed case left.
    fn clean(&self) {
        let _ = self.down();
        unmount_below(&self.at);
    }
}

fn on_fs(env: &Env, story: fn(&Fs, &Env) -> Outcome) -> Outcome {
    let fs = Fs::new(env)?;
    let told = story(&fs, env);
    if told.is_err() {
        fs.clean();
    }
    told
}

/// Makes a file on one OST.
fn put_on(fs: &Fs, ost: u32, name: &str, content: &[u8]) -> Outcome {
    let path = fs.at.join(name);
    fs.nacre(&["lfs", "setstripe", "-c", "1", "-i", &ost.to_string(), &text(&path)]).run()?;
    Ok(fs::write(path, content)?)
}

fn copy(from: &Path, to: &Path) -> Outcome {
    Program::new("cp").args(["-a", &text(from), &text(to)]).run().map(drop)
}

/// One OST comes back from a backup that is older than the rest: files that were written since have lost their objects.
fn restored_ost(env: &Env) -> Outcome {
    on_fs(env, |fs, env| {
        let content = pattern(env.seed, 3 << 20);
        fs.up()?;
        put_on(fs, 0, "old0", &content)?;
        put_on(fs, 1, "old1", &content)?;
        let busy = fs.nacre(&["fsck", &text(&fs.target("mdt0000"))]).output()?;
        ensure_eq!(busy.status.code(), Some(8), "exit code of fsck on a target in use");
        ensure!(busy.stderr.contains("in use"), "fsck does not say that the target is in use: {}", busy.stderr);
        fs.down()?;
        ensure_eq!(fs.fsck(&["-n"])?, (0, Vec::new()), "a healthy file system");

        let backup = env.local.join("backup");
        copy(&fs.target("ost0001"), &backup)?;
        fs.up()?;
        put_on(fs, 0, "new0", &content)?;
        let new = fs.at.join("new1");
        fs::create_dir(&new)?;
        fs.nacre(&["lfs", "setstripe", "-c", "1", "-i", "1", &text(&new)]).run()?;
        // More than were made ahead of use when the backup was taken.
        for n in 0..NEW_FILES {
            fs::write(new.join(n.to_string()), b"new")?;
        }
        fs.down()?;
        fs::remove_dir_all(fs.target("ost0001"))?;
        copy(&backup, &fs.target("ost0001"))?;

        let (code, found) = fs.fsck(&["-n"])?;
        let dangling = found.iter().filter(|kind| *kind == "dangling-object").count();
        ensure!(code == 4 && dangling > NEW_FILES / 4, "after the restore: {code}, {found:?}");
        ensure_eq!(fs.fsck(&["--repair"])?.0, 4, "exit code when missing objects are left");
        ensure_eq!(fs.fsck(&["-y"])?.0, 1, "exit code when all is mended");
        ensure_eq!(fs.fsck(&["-n"])?, (0, Vec::new()), "the second time");
        fs.up()?;
        for name in ["old0", "old1", "new0"] {
            ensure!(fs::read(fs.at.join(name))? == content, "{name} differs");
        }
        let again = new.join((NEW_FILES - 1).to_string());
        fs::write(&again, &content)?;
        ensure!(fs::read(&again)? == content, "a file that lost its object differs when it is written again");
        fs.down()
    })
}

const NEW_FILES: usize = 400;

/// The data of an object is removed behind the OST's back.
fn lost_data(env: &Env) -> Outcome {
    on_fs(env, |fs, env| {
        let content = pattern(env.seed, 1 << 20);
        fs.up()?;
        put_on(fs, 0, "kept", &content)?;
        put_on(fs, 1, "lost", &content)?;
        fs.down()?;
        let script = r#"find "$1" -type f | head -n 1 | xargs rm"#;
        Program::new("bash").args(["-c", script, "lose", &text(&fs.target("ost0001").join("data"))]).run()?;
        ensure_eq!(fs.fsck(&["-n"])?, (4, vec!["lost-data".to_owned()]), "a dry run");
        ensure_eq!(fs.fsck(&["-n"])?, (4, vec!["lost-data".to_owned()]), "which changed nothing");
        ensure_eq!(fs.fsck(&["--repair"])?, (1, vec!["lost-data".to_owned()]), "mending");
        ensure_eq!(fs.fsck(&["--repair"])?, (0, Vec::new()), "the second time");
        fs.up()?;
        ensure!(fs::read(fs.at.join("kept"))? == content, "kept differs");
        ensure_eq!(fs::read(fs.at.join("lost"))?.len(), 0, "size of what is lost");
        let started = fs.nacre(&["lctl", "lfsck_start", "-M", "one-MDT0000", "-o", "-w"]).run()?.stdout;
        ensure!(started.contains("layout_mdts_completed: 1"), "the running file system is checked: {started}");
        fs.down()
    })
}
