//! The command line and the manual.

use crate::link::{self, Change, Link, QueueLimit};
use crate::plan::{self, End, Plan};
use crate::share::Share;
use crate::units::{self, BadValue, Rate};
use clap::{Parser, Subcommand};
use std::time::Duration;

/// Emulates a long-distance link between two network namespaces of this machine.
///
/// It makes a device in each namespace, gives them addresses, and carries packets between them with a delay, a rate, a queue, losses,
/// jitter and reordering. It prints `ready` when both devices are up, and its counters when SIGTERM or SIGINT ends it, or when
/// SIGUSR1 asks for them. It must run as root.
#[derive(Debug, Parser)]
#[command(name = "wan-link", version, after_long_help = MANUAL, subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// The link to set up.
    #[command(flatten)]
    pub run: Option<Run>,
    /// Another task.
    #[command(subcommand)]
    pub task: Option<Task>,
}

/// Tasks beside a link.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Measures how much plain TCP gets through the emulator on this machine, without rate and delay.
    ///
    /// It makes two network namespaces of its own, which vanish with it. Set links to at most half of what it prints, so that the
    /// emulator adds no delay of its own.
    Ceiling {
        /// Length of the measurement, such as `5s`.
        #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::duration)]
        time: Duration,
        /// Print one line of JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Options of a link.
#[derive(Debug, clap::Args)]
pub struct Run {
    /// The first end: an existing network namespace, and the addresses of the device that is made there.
    ///
    /// NETNS is a name that `ip netns add` made, or a path such as /proc/PID/ns/net. Several addresses, of IPv4 or IPv6, are
    /// separated by commas.
    #[arg(long, value_name = "NETNS=ADDRESS/PREFIX")]
    a: End,
    /// The other end, as `--a`.
    #[arg(long, value_name = "NETNS=ADDRESS/PREFIX")]
    b: End,
    /// Time from the departure of a packet's last bit to its arrival, in each direction: `46ms`, `1.5s`, `300us`.
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "0ms")]
    delay: Duration,
    /// Delay of a round trip, half of it in each direction, instead of --delay.
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "delay")]
    rtt: Option<Duration>,
    /// Bits that are transmitted in a second, headers of IP included: `200mbit`, `1gbit`, or `unlimited`.
    #[arg(long, value_name = "RATE", value_parser = rate, default_value = "unlimited")]
    rate: RateLimit,
    /// Most bytes that wait for the rate: `16MiB`, `64k`, or `bdp`, which is what the rate carries in one round trip, but at
    /// least a hundred packets. A packet that would exceed it is dropped.
    #[arg(long, value_name = "BYTES", value_parser = link::queue, default_value = "bdp")]
    queue: QueueLimit,
    /// Share of packets of up to 1,500 bytes that are lost at random: `0.01%`.
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    loss: Share,
    /// Greatest random addition to the delay, drawn uniformly between zero and this. Packets keep their order.
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "0ms")]
    jitter: Duration,
    /// Share of packets that do not wait for jitter, neither for their own nor for that of the packets before them. They overtake
    /// the packets that jitter holds up at that moment. It needs --jitter.
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    reorder: Share,
    /// Settings for packets from A to B that differ: `delay=46ms,rate=1gbit,loss=0.1%`.
    ///
    /// The names are those of the options: delay, rtt, rate, queue, loss, jitter and reorder.
    #[arg(long, value_name = "NAME=VALUE,...", value_parser = Change::parse)]
    a_to_b: Option<Change>,
    /// Settings for packets from B to A that differ, as --a-to-b.
    #[arg(long, value_name = "NAME=VALUE,...", value_parser = Change::parse)]
    b_to_a: Option<Change>,
    /// Seed of losses, jitter and reordering. The same packets in the same order have the same fate.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Name of both devices.
    #[arg(long, value_name = "DEVICE", default_value = "wan0", value_parser = plan::device_name)]
    name: String,
    /// Print counters as one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// A rate, or none. A type of its own, because clap takes an `Option` for an option that may be missing.
#[derive(Debug, Clone, Copy)]
struct RateLimit(Option<Rate>);

fn rate(text: &str) -> Result<RateLimit, BadValue> {
    link::rate(text).map(RateLimit)
}

impl Run {
    /// The link that the options describe.
    pub fn plan(&self) -> Result<Plan, BadValue> {
        if self.a.netns == self.b.netns {
            let why = "the kernel does not use a link within one namespace; give each end a namespace of its own";
            return Err(BadValue(format!("`{}` is given for both ends, but {why}", self.a.netns)));
        }
        let both = Link {
            delay: self.rtt.map_or(self.delay, |rtt| rtt / 2),
            jitter: self.jitter,
            rate: self.rate.0,
            queue: self.queue,
            loss: self.loss,
            reorder: self.reorder,
        };
        let links = [&self.a_to_b, &self.b_to_a].map(|change| both.with(&change.unwrap_or_default()));
        links.iter().try_for_each(Link::check)?;
        Ok(Plan { name: self.name.clone(), ends: [self.a.clone(), self.b.clone()], links, seed: self.seed })
    }
}

/// Lines of at most 80 columns, so that clap need not break them.
const MANUAL: &str = "\
THE LINK
  A packet has up to 1,500 bytes. It waits in the queue until the rate has sent
  the packets before it and its own last bit. Then it is lost, or it arrives after
  the delay and the jitter. Lost packets have used the rate. Without a rate nothing
  waits, and nothing is dropped. Packets keep their order, so that jitter delays
  most packets of a busy link by nearly its maximum. Do not raise the MTU of the
  devices: longer packets would be cut off at 1,500 bytes.

COMMANDS
  Lines on standard input change the link while it runs. Each is answered with
  `ok` on standard output, or with an error on standard error. Without a direction
  a command is for both.

  set [a-to-b|b-to-a] NAME=VALUE...
      Changes settings. A new rate is also for packets that wait. If the delay
      becomes shorter, packets do not overtake those on the way.
  down [a-to-b|b-to-a]
      Cuts the link in silence. Packets on the way are lost, and those that come.
  up [a-to-b|b-to-a]
      Joins the link again.
  counters
      Prints the counters, as SIGUSR1 does.

COUNTERS
  Each packet that came in was delivered, lost, dropped by the queue, cut off or
  refused, or is still inside. Four other counters show whether the emulator kept
  up. If it did not, do not trust the measurement.

  late
      How much later than due packets were written. A tenth of a millisecond is
      normal. A busy machine shows in the 99th percentile first.
  missed by the emulator
      Packets that the sending device dropped because they were not read in time.
  refused, no memory
      Packets that would have exceeded what queue, rate and delay can hold.
  not written
      Packets that the receiving device did not take, because it was down.

PRIORITY
  The two threads that carry packets run with real-time priority, because a busy
  machine would otherwise delay packets by milliseconds. A link without a rate may
  take two whole processors. While the program runs, the machine's processors do not
  sleep deeply (/dev/cpu_dma_latency), because waking one up takes a virtual machine
  up to a millisecond.

EXAMPLES
  A gigabit line with a round trip of 92 ms, between namespaces that exist:
    wan-link --a east=10.9.0.1/24 --b west=10.9.0.2/24 --rtt 92ms --rate 1gbit

  The same, but slower and with losses from A to B:
    wan-link --a east=10.9.0.1/24 --b west=10.9.0.2/24 --rtt 92ms \\
        --rate 1gbit --a-to-b rate=200mbit,loss=0.1%

  A route that becomes longer after ten seconds, and later fails for five:
    (sleep 10; echo set delay=60ms; sleep 10; echo down; sleep 5; echo up) |
        wan-link --a east=10.9.0.1/24 --b west=10.9.0.2/24 --delay 46ms

  What this machine can carry:
    wan-link ceiling

EXIT STATUS
  0 after a signal, 1 if the link could not be set up or failed, 2 if the command
  line is wrong.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    const ENDS: [&str; 5] = ["wan-link", "--a", "east=10.9.0.1/24", "--b", "west=10.9.0.2/24"];

    fn plan(options: &str) -> Result<Plan, String> {
        let words = ENDS.into_iter().chain(options.split_whitespace());
        let args = Args::try_parse_from(words).map_err(|error| error.to_string())?;
        args.run.expect("a link was asked for").plan().map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn options_hold_for_both_directions_unless_overridden() {
        let [there, back] = plan("--delay 46ms --rate 1gbit --a-to-b rate=200mbit,loss=0.1%").unwrap().links;
        assert_eq!(there.to_string(), "delay=46ms,rate=200mbit,queue=bdp,loss=0.1%,jitter=0ns,reorder=0%");
        assert_eq!(back.to_string(), "delay=46ms,rate=1gbit,queue=bdp,loss=0%,jitter=0ns,reorder=0%");
        let halves = plan("--rtt 11ms --b-to-a delay=7ms").unwrap().links.map(|link| link.delay.as_micros());
        assert_eq!(halves, [5500, 7000]);
    }

    #[test]
    fn contradictions_are_refused() {
        assert!(plan("--rtt 11ms --delay 5ms").unwrap_err().contains("cannot be used with"));
        let same = ["wan-link", "--a", "east=10.9.0.1/24", "--b", "east=10.9.0.2/24"];
        let same = Args::try_parse_from(same).unwrap().run.unwrap().plan();
        assert!(same.unwrap_err().to_string().contains("for both ends"));
        assert!(plan("--reorder 1%").unwrap_err().contains("reordering needs jitter"));
        assert!(plan("--loss 1").unwrap_err().contains("the percent sign is missing"));
        assert!(plan("--rate fast").unwrap_err().contains("does not begin with a number"));
    }

    #[test]
    fn a_task_needs_no_ends() {
        let args = Args::try_parse_from(["wan-link", "ceiling", "--time", "2s"]).unwrap();
        assert!(args.run.is_none() && matches!(args.task, Some(Task::Ceiling { json: false, .. })));
        assert!(Args::try_parse_from(["wan-link"]).is_err());
        assert!(Args::try_parse_from(["wan-link", "--a", "east=10.9.0.1/24"]).is_err());
    }
}
