//! What a case is, and what it is given.

use crate::cluster::Cluster;
use crate::failure::{Context, Outcome, bail};
use crate::prng::Prng;
use std::fmt;
use std::fs;
use std::ops::Div;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How much to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Profile {
    /// For every change: all cases in some nine minutes.
    Short,
    /// For releases.
    Full,
}

/// The stripe layout of a case's directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// What the file system does by itself.
    Default,
    /// `lfs setstripe -c N`; -1 is all OSTs.
    Count(i32),
    /// `lfs setstripe -C N`: overstriping, several stripes on an OST.
    Overstripe(u32),
}

/// The four layouts that data cases run on.
pub(crate) const LAYOUTS: &[Layout] = &[Layout::Count(1), Layout::Count(4), Layout::Count(-1), Layout::Overstripe(8)];

/// One test.
pub(crate) struct Case {
    /// Name in the table and for `--only`.
    pub(crate) name: &'static str,
    run: fn(&Env) -> Outcome,
    /// What must be there before the clock runs: tools, sources.
    prepare: Option<fn(&Env) -> Outcome>,
    short: &'static [Layout],
    full: &'static [Layout],
    limits: (u64, u64),
    /// Texts in WARN or ERROR lines that this case causes on purpose.
    pub(crate) announced: &'static [&'static str],
    /// Whether it needs the product, so that a plain directory can't stand in for it.
    pub(crate) needs_cluster: bool,
    /// The cases that may run beside it.
    pub(crate) beside: Beside,
}

/// The cases that may run beside a case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Beside {
    /// None.
    Nothing,
    /// Others that have a file system of their own, too, and mostly wait.
    OwnFileSystems,
    /// Others on the run's file system (`--jobs`).
    SameFileSystem,
}

impl Case {
    /// A case that takes at most a minute in the short profile, five in the full one, on the default layout.
    pub(crate) const fn new(name: &'static str, run: fn(&Env) -> Outcome) -> Case {
        const DEFAULT: &[Layout] = &[Layout::Default];
        Case {
            name,
            run,
            prepare: None,
            short: DEFAULT,
            full: DEFAULT,
            limits: (60, 300),
            announced: &[],
            needs_cluster: false,
            beside: Beside::Nothing,
        }
    }

    /// Layouts to run on, in the short and the full profile.
    pub(crate) const fn layouts(mut self, short: &'static [Layout], full: &'static [Layout]) -> Case {
        (self.short, self.full) = (short, full);
        self
    }

    /// Seconds after which it is given up, in the short and the full profile.
    pub(crate) const fn limits(mut self, short: u64, full: u64) -> Case {
        self.limits = (short, full);
        self
    }

    /// Others may run beside it: it looks at nothing but its own directory, and kills no process.
    pub(crate) const fn shares(mut self, shares: bool) -> Case {
        self.beside = if shares { Beside::SameFileSystem } else { Beside::Nothing };
        self
    }

    /// Others of its kind may run beside it: it has a file system and ports of its own, mostly waits, and does not judge by
    /// fractions of a second. `nacre up` wants the standard port, so cases with it are not of this kind.
    pub(crate) const fn apart(mut self) -> Case {
        self.beside = Beside::OwnFileSystems;
        self
    }

    /// Fetches what the case needs, off the clock.
    pub(crate) const fn prepare(mut self, prepare: fn(&Env) -> Outcome) -> Case {
        self.prepare = Some(prepare);
        self
    }

    /// Announces warnings and errors in logs, by a text in their lines.
    pub(crate) const fn announces(mut self, announced: &'static [&'static str]) -> Case {
        self.announced = announced;
        self
    }

    /// Only with the product.
    pub(crate) const fn needs_cluster(mut self) -> Case {
        self.needs_cluster = true;
        self
    }

    /// The layouts for this profile.
    pub(crate) fn layouts_of(&self, profile: Profile) -> &'static [Layout] {
        if profile == Profile::Short { self.short } else { self.full }
    }

    /// When to give up, unless the run allows for a long path.
    pub(crate) fn limit_of(&self, profile: Profile) -> Duration {
        Duration::from_secs(if profile == Profile::Short { self.limits.0 } else { self.limits.1 })
    }

    /// Fetches what is missing.
    pub(crate) fn do_prepare(&self, env: &Env) -> Outcome {
        self.prepare.map_or(Ok(()), |prepare| prepare(env))
    }

    /// Runs it.
    pub(crate) fn do_run(&self, env: &Env) -> Outcome {
        (self.run)(env)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Default => Ok(()),
            Layout::Count(n) => write!(f, "-c {n}"),
            Layout::Overstripe(n) => write!(f, "-C {n}"),
        }
    }
}

/// What a case is given.
#[derive(Clone)]
pub(crate) struct Env {
    /// How much to do.
    pub(crate) profile: Profile,
    /// The case's own directory, through the first mount.
    pub(crate) a: PathBuf,
    /// The same directory through the second mount.
    pub(crate) b: PathBuf,
    /// The same directory through the third mount.
    pub(crate) c: PathBuf,
    /// A directory of the case's own on the local disk.
    pub(crate) local: PathBuf,
    /// What is kept between runs: sources, tools, reference results.
    pub(crate) cache: PathBuf,
    /// The repository.
    pub(crate) repository: PathBuf,
    /// The product, unless the run is on a plain directory.
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// For random choices; printed with failures.
    pub(crate) seed: u64,
    /// Whether other rounds of the run ask the same.
    pub(crate) has_many_rounds: bool,
    /// How many times longer than beside the servers a case may take, because its mounts are far from them; else 1.
    pub(crate) patience: u32,
}

impl Env {
    /// Random numbers that the seed and the round determine.
    pub(crate) fn random(&self) -> Prng {
        Prng::new(self.seed)
    }

    /// One of two values, by profile.
    pub(crate) fn pick<T>(&self, short: T, full: T) -> T {
        if self.profile == Profile::Short { short } else { full }
    }

    /// How often to repeat what a run of one round repeats `n` times: in one of many rounds a quarter as often, but three
    /// times at least, for the rounds are the repetition. Who needs more to meet others says `max`.
    pub(crate) fn times<T: Copy + Ord + Div<Output = T> + From<u8>>(&self, n: T) -> T {
        if self.has_many_rounds { (n / T::from(4)).max(T::from(3)).min(n) } else { n }
    }

    /// The turns that a case takes whose numbers are part of the question: of `n`, in one of many rounds, each fourth,
    /// and others in the next.
    pub(crate) fn turns(&self, n: u64) -> impl Iterator<Item = u64> {
        let step = if self.has_many_rounds { 4 } else { 1 };
        (self.seed % step..n).step_by(step as usize)
    }

    /// True if the first and the third mount are at the other end of a long path.
    pub(crate) fn is_far(&self) -> bool {
        self.patience > 1
    }

    /// Makes the case's directories and sets the layout.
    pub(crate) fn set_up(&self, layout: Layout) -> Outcome {
        fs::create_dir_all(&self.local).context("local directory")?;
        fs::create_dir_all(&self.a).context("the case's directory")?;
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let dir = self.a.to_string_lossy();
        // The smallest stripe size, so that small files and records cross stripes, too.
        let (option, n) = match layout {
            Layout::Default => return Ok(()),
            Layout::Count(n) => ("-c", n.to_string()),
            Layout::Overstripe(n) => ("-C", n.to_string()),
        };
        cluster.lfs(&["setstripe", option, &n, "-S", "64k", &dir]).map(drop)
    }

    /// Judges a file system of the case's own as the main one is: by its logs, too, which are kept if anything is wrong.
    pub(crate) fn judge_own(&self, cluster: &Cluster, outcome: Outcome, announced: &[&str]) -> Outcome {
        let wrong = cluster.complaints(announced);
        if outcome.is_ok() && wrong.is_empty() {
            return Ok(());
        }
        let name = self.local.file_name().unwrap_or_default().to_string_lossy();
        let kept = self.cache.join("e2e/logs").join(format!("{name}.own"));
        cluster.keep_logs(&kept)?;
        outcome.context(format!("with logs in {}", kept.display()))?;
        bail!("{}\n    logs in {}", wrong.join("\n    "), kept.display())
    }

    /// Removes the case's directories.
    pub(crate) fn tear_down(&self) -> Outcome {
        fs::remove_dir_all(&self.a).context("removing the case's directory")?;
        fs::remove_dir_all(&self.local).context("removing the case's local directory")
    }
}

/// The text of a path, for command lines.
pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
