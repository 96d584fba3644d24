//! End-to-end tests: the product's own processes, real sockets, disks and FUSE mounts, and programs that know nothing of
//! us. `docs/testing.md` says how to run and read it. This file knows the command line; `run` knows how cases are run.
//!
//! `nacre-e2e [--profile short|full] [--only NAME,...] [--rounds N] [--jobs N] [--on DIR] [--keep] [--json]
//! [--list] [--nacre FILE] [--seed N] [--path SETTINGS]`
//! `nacre-e2e power-cut [--of-all SECONDS] [--answers MODE] [--journal] [--points N] [--seed N] [--operations N]
//! [--without STEP]`
//! `nacre-e2e storm [--imports N] [--intervals N] [--ping-interval SECONDS] [--rate MBIT] [--limited-by links|credits]
//! [--seed N] [--json] [--nacre FILE]`
//! `nacre-e2e congestion [--clients N] [--rate MB] [--bound SECONDS] [--seconds N] [--plot FILE] [--json] [--nacre FILE]`

mod cargo_tool;
mod case;
mod cases;
mod cluster;
mod congestion;
mod daemon;
mod etcd;
mod failure;
mod namespaces;
mod power_cut;
mod prng;
mod process;
mod progress;
mod results;
mod run;
mod site;
mod slow_disk;
mod storm;
mod sys;
mod wide_area;
mod worker;

use case::Profile;
use nacre_wan_link::link::{Change, Link};
use std::path::PathBuf;
use std::process::ExitCode;

/// What the command line says.
pub(crate) struct Options {
    profile: Profile,
    /// Names of cases, or beginnings of names; all if empty.
    only: Vec<String>,
    /// A plain directory to run on, instead of the product.
    on: Option<PathBuf>,
    /// Leave everything in place at the end, for a look.
    keep: bool,
    json: bool,
    /// Only print what would run.
    list: bool,
    /// The product's binary.
    nacre: PathBuf,
    seed: u64,
    /// How often each case runs, each time with a seed of its own.
    rounds: u64,
    /// How many of the cases that can share a file system run at once.
    jobs: usize,
    /// The path between the servers and the first and the third mount, if it is a long one.
    path: Option<Link>,
}

const USAGE: &str =
    "usage: nacre-e2e [--profile short|full] [--only NAME,...] [--rounds N] [--jobs N] [--on DIR] [--keep]
                 [--json] [--list] [--nacre FILE] [--seed N] [--path SETTINGS]

  --profile  short (the default, about 9 minutes) or full
  --only     only cases of these names, or whose names begin so: litmus., fsx, kill.mds
  --rounds   run all of it so often, each time with the next seed; from the second time on only failures are printed
  --jobs     run up to so many litmus cases at once, in an order that changes with the round
  --on       on this plain directory, without the product: shows that the tests themselves are right
  --keep     leave the directory, the mounts and the processes for a look
  --json     print the results as JSON at the end
  --list     print what would run
  --nacre    the product's binary; else $NACRE, else the one beside this program
  --seed     for random choices; else from the clock, and printed
  --path     mount twice over an emulated path and once beside the servers: rtt=92ms,jitter=10ms,loss=0.01%,rate=400mbit,
             as `wan-link --help` explains; cases have more time. Without --only, cases of POSIX, fsx, SQLite, git, litmus";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = args.split_first().map_or(("", &args[..]), |(first, rest)| (first.as_str(), rest));
    match command {
        "worker" => match worker::run(rest) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        },
        "power-cut" => {
            run_if(parse_power_cut(rest), POWER_CUT_USAGE, |(plan, of_all)| run::power_cut(&plan, of_all.as_ref()))
        }
        "storm" => run_if(parse_storm(rest), STORM_USAGE, |plan| run::storm(&plan)),
        "congestion" => run_if(parse_congestion(rest), CONGESTION_USAGE, |plan| run::congestion(&plan)),
        _ => run_if(parse(&args), USAGE, |options| run::run(&options)),
    }
}

/// Runs what the command line asks for, or says how it is used.
fn run_if<T>(asked: Result<T, String>, usage: &str, run: impl FnOnce(T) -> ExitCode) -> ExitCode {
    match asked {
        Ok(asked) => run(asked),
        Err(message) => {
            eprintln!("{message}\n{usage}");
            ExitCode::from(2)
        }
    }
}

const POWER_CUT_USAGE: &str =
    "usage: nacre-e2e power-cut [--of-all SECONDS] [--answers commit|device|memory] [--journal] [--points N] [--seed N]
                           [--operations N] [--without STEP]

Cuts the power of a target at N moments of a workload (1000), and checks what is left. --journal gives the target a
journal in another directory. --without leaves out a step of each commit, osd.commit or osd.commit.index, to see that it
is noticed. --of-all does it to a whole file system that works for so long, whose OSTs answer writes as --answers says
(device), and looks through a new mount after each cut.";

const STORM_USAGE: &str =
    "usage: nacre-e2e storm [--imports N] [--intervals N] [--ping-interval SECONDS] [--rate MBIT]
                       [--limited-by links|credits] [--seed N] [--json] [--nacre FILE]

Measures how much less fio writes on a mount while one process with N imports (20000) pings all OSTs through routers, over
links of the servers' network of so many Mbit/s (10), and simulates the same with nacre sim live-storm. In half of the rows
the links are the narrow place; in the others OSSs hold each message for 10 ms, so that it is the routers' credits. Fails if
the dead times of pings differ by more than 20 %.";

const CONGESTION_USAGE: &str =
    "usage: nacre-e2e congestion [--clients N] [--rate MB] [--bound SECONDS] [--seconds N] [--plot FILE] [--json]
                            [--nacre FILE]

Lets one process write for N clients (64) to an OST on a disk that the kernel slows down to so many MB/s (60), and measures
how long requests take there: with windows of 32 for everyone, with the published algorithm, with Nacre's own, and with that
again after the OSS was killed, for N seconds of each (30). Fails if a controller does not hold its bound (4 s), or a write
fails.";

/// Goes through the options of a measurement; `set` takes each with its value. Returns whether `--json` is among them.
fn for_each_option(args: &[String], mut set: impl FnMut(&str, &str) -> Result<(), String>) -> Result<bool, String> {
    let (mut args, mut json) = (args.iter(), false);
    while let Some(arg) = args.next() {
        if arg == "--json" {
            json = true;
        } else {
            set(arg, args.next().ok_or(format!("{arg} needs a value"))?)?;
        }
    }
    Ok(json)
}

fn above_zero(arg: &str, value: &str) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| *number > 0);
    number.ok_or(format!("{arg}: {value:?} is not a number above 0"))
}

/// The path of a program, which is started from other directories, too.
fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|e| format!("{path}: {e}"))
}

fn parse_congestion(args: &[String]) -> Result<congestion::Plan, String> {
    let mut plan = congestion::Plan::new(&nacre());
    plan.json = for_each_option(args, |arg, value| {
        let number = || above_zero(arg, value);
        match arg {
            "--clients" => plan.clients = number()?,
            "--rate" => plan.rate = number()?,
            "--bound" => plan.bound = number()?,
            "--seconds" => plan.seconds = number()?,
            "--plot" => plan.plot = Some(value.into()),
            "--nacre" => plan.nacre = absolute(value)?,
            other => return Err(format!("unknown argument {other}")),
        }
        Ok(())
    })?;
    Ok(plan)
}

fn parse_storm(args: &[String]) -> Result<storm::Plan, String> {
    let mut plan = storm::Plan::new(&nacre());
    plan.json = for_each_option(args, |arg, value| {
        let number = || above_zero(arg, value);
        match arg {
            "--imports" => plan.imports = number()?,
            "--intervals" => plan.intervals = number()?,
            "--ping-interval" => plan.interval_secs = number()?,
            "--rate" => plan.link_bits = u64::from(number()?) * 1_000_000,
            "--seed" => plan.seed = u64::from(number()?),
            "--limited-by" => plan.rows = storm::Row::of_kind(value)?,
            "--nacre" => plan.nacre = absolute(value)?,
            other => return Err(format!("unknown argument {other}")),
        }
        Ok(())
    })?;
    Ok(plan)
}

/// What to do, and whether to a whole file system.
fn parse_power_cut(args: &[String]) -> Result<(power_cut::Plan, Option<run::OfAll>), String> {
    let answers = power_cut::Answers::Device;
    let mut plan = power_cut::Plan {
        points: 1000,
        seed: seed_of_clock(),
        operations: 3000,
        without: None,
        journal: false,
        answers,
    };
    let mut of_all = None;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--journal" {
            plan.journal = true;
            continue;
        }
        let value = args.next().ok_or(format!("{arg} needs a value"))?;
        let number = || value.parse::<usize>().map_err(|e| format!("{arg}: {e}"));
        match arg.as_str() {
            "--points" => plan.points = number()?,
            "--of-all" => {
                let time = std::time::Duration::from_secs(number()? as u64);
                of_all = Some(run::OfAll { nacre: nacre(), time });
            }
            "--answers" => {
                let found = power_cut::Answers::ALL.into_iter().find(|a| a.word() == value);
                plan.answers = found.ok_or(format!("--answers is commit, device or memory, not {value}"))?;
            }
            "--seed" => plan.seed = number()? as u64,
            "--operations" => plan.operations = number()?,
            "--without" => {
                let step = power_cut::STEPS.iter().find(|s| *s == value);
                plan.without = Some(step.ok_or(format!("no step is named {value}"))?);
            }
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok((plan, of_all))
}

/// The product's binary, unless the command line names another one.
fn nacre() -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|e| e.parent().map(|d| d.join("nacre")));
    std::env::var_os("NACRE").map(PathBuf::from).or(beside).unwrap_or_else(|| PathBuf::from("nacre"))
}

/// The settings of a path, as `wan-link` takes them.
fn path(settings: &str) -> Result<Link, String> {
    let link = Change::parse(settings).map(|change| Link::default().with(&change));
    let link = link.map_err(|e| format!("--path: {e}"))?;
    link.check().map_err(|e| format!("--path: {e}"))?;
    Ok(link)
}

fn seed_of_clock() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64) % 1_000_000
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options {
        profile: Profile::Short,
        only: Vec::new(),
        on: None,
        keep: false,
        json: false,
        list: false,
        nacre: nacre(),
        seed: seed_of_clock(),
        rounds: 1,
        jobs: 1,
        path: None,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--profile" => {
                options.profile = match value()?.as_str() {
                    "short" => Profile::Short,
                    "full" => Profile::Full,
                    other => return Err(format!("no profile is named {other}")),
                }
            }
            "--only" => options.only.extend(value()?.split(',').map(str::to_owned)),
            "--on" => options.on = Some(PathBuf::from(value()?)),
            "--nacre" => options.nacre = PathBuf::from(value()?),
            "--seed" => options.seed = value()?.parse().map_err(|e| format!("--seed: {e}"))?,
            "--rounds" => options.rounds = value()?.parse().map_err(|e| format!("--rounds: {e}"))?,
            "--jobs" => options.jobs = value()?.parse().map_err(|e| format!("--jobs: {e}"))?,
            "--path" => options.path = Some(path(value()?)?),
            "--keep" => options.keep = true,
            "--json" => options.json = true,
            "--list" => options.list = true,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    if options.on.is_some() && options.path.is_some() {
        return Err("--on runs without the product, and so without a --path to its servers".to_owned());
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_understood() {
        let words = |s: &str| s.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let o = parse(&words("--profile full --only git,kill. --on /x --seed 7 --rounds 3 --jobs 8 --json")).unwrap();
        assert_eq!((o.profile, o.only, o.on, o.seed), (Profile::Full, words("git kill."), Some("/x".into()), 7));
        assert!(o.json && !o.keep && o.rounds == 3 && o.jobs == 8);
        let o = parse(&words("--path rtt=92ms,jitter=10ms,loss=0.01%")).unwrap();
        assert_eq!(o.path.unwrap().delay, std::time::Duration::from_millis(46));
        assert_eq!(path(&o.path.unwrap().to_string()).unwrap(), o.path.unwrap());
        assert!(parse(&words("--path rtt=92ms --on /x")).is_err());
        assert!(parse(&words("--path reorder=1%")).is_err() && parse(&words("--path 92ms")).is_err());
        assert!(parse(&words("--profile other")).is_err());
        assert!(parse(&words("--only")).is_err());
        assert!(parse(&words("tests")).is_err());
    }

    #[test]
    fn the_command_line_of_a_storm_is_understood() {
        let parse = |s: &str| parse_storm(&s.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let plan = parse("--imports 200 --rate 20 --limited-by links --json").unwrap();
        assert_eq!((plan.imports, plan.link_bits, plan.rows.len(), plan.json), (200, 20_000_000, 3, true));
        assert!(parse("--limited-by none").is_err() && parse("--imports 0").is_err());
    }
}
