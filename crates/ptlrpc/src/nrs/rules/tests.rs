//! Tests of the text of rules: what is understood, what is refused and how, and the order of the rules.

use super::*;
use nacre_base::Prng;

fn rules(commands: &str) -> Rules {
    Rules::default().changed(commands).unwrap_or_else(|error| panic!("{commands}: {error}"))
}

fn listed(rules: &Rules) -> String {
    rules.lines(|expression| expression.to_string(), "*", |rule| rule as usize)
}

fn names(rules: &Rules) -> Vec<&str> {
    rules.list().iter().map(|rule| rule.name.as_str()).collect()
}

#[test]
fn rules_are_listed_as_in_lustre() {
    let all = rules(
        "start dds jobid={dd.0 cp.*} rate=100; start user uid={500}&opcode={ost_write},nid={10.0.0.[1-9]@tcp} rate=25% realtime=1
         start bytes gid={7} rate=100MB; change default rate=5000",
    );
    let want = "\
bytes gid={7} 100MB, ref 3
user uid={500}&opcode={ost_write},nid={10.0.0.[1-9]@tcp} 25% realtime, ref 2
dds jobid={dd.0 cp.*} 100, ref 1
default * 5000, ref 0
";
    assert_eq!(listed(&all), want);
    assert_eq!(listed(&Rules::default()), "default * 10000, ref 0\n");
}

#[test]
fn a_new_rule_goes_first_or_where_its_rank_says() {
    let all = rules("start a uid={1} rate=1; start b uid={1} rate=2; start c uid={1} rate=3");
    assert_eq!(names(&all), ["c", "b", "a"]);
    assert_eq!(names(&all.changed("start d uid={1} rate=1 rank=a").unwrap()), ["c", "b", "d", "a"]);
    assert_eq!(names(&all.changed("start d uid={1} rate=1 rank=c").unwrap()), ["d", "c", "b", "a"]);
    assert_eq!(names(&all.changed("change c rate=1 rank=a").unwrap()), ["b", "c", "a"]);
    assert_eq!(names(&all.changed("change a rank=c").unwrap()), ["a", "c", "b"]);
    assert_eq!(names(&all.changed("change c rank=c").unwrap()), ["c", "b", "a"]);
    assert_eq!(names(&all.changed("change c rank=default").unwrap()), ["b", "a", "c"]);
    let header = RpcHeader { uid: 1, ..RpcHeader::default() };
    assert_eq!(all.rule_of(Nid::sim(1), &header).unwrap().name, "c");
    assert_eq!(all.changed("stop c").unwrap().rule_of(Nid::sim(1), &header).unwrap().name, "b");
    assert_eq!(all.rule_of(Nid::sim(1), &RpcHeader::default()), None);
}

#[test]
fn a_kept_setting_may_be_applied_twice_and_replaced() {
    let kept = "start a uid={1} rate=1; start b uid={2} rate=2";
    let once = rules(kept);
    assert_eq!(once.changed(kept).unwrap(), once);
    let other = "start a uid={1} rate=9";
    assert_eq!(once.changed(other), Err(RuleError::Exists("a".to_owned())));
    let replaced = once.changed("set a uid={1} rate=9; set c uid={3} rate=3").unwrap();
    assert_eq!(names(&replaced), ["c", "b", "a"], "it stays in its place");
    assert_eq!((replaced.list()[2].rate, replaced.list()[2].number), (Rate::Requests(9), once.list()[1].number));
    let of_others = replaced.changed("set a uid={4} rate=9").unwrap();
    assert_ne!(of_others.list()[2].number, replaced.list()[2].number, "its classes are others");
    for (commands, is_fit) in [
        (kept, true),
        ("set a uid={1} rate=1%", true),
        ("change default rate=100", true),
        ("change a rate=1", false),
        ("stop a", false),
        ("start a uid={1} rate=1 rank=b", false),
    ] {
        assert_eq!(Rules::of(commands).is_ok(), is_fit, "{commands}");
    }
}

#[test]
fn rates_have_units() {
    for (text, rate, shown) in [
        ("1", Rate::Requests(1), "1"),
        ("1000000", Rate::Requests(1_000_000), "1000000"),
        ("64KB", Rate::Bytes(64_000), "64KB"),
        ("100MB", Rate::Bytes(100_000_000), "100MB"),
        ("1000MB", Rate::Bytes(1_000_000_000), "1GB"),
        ("1024MB", Rate::Bytes(1_024_000_000), "1024MB"),
        ("64MiB", Rate::Bytes(64 << 20), "64MiB"),
        ("2GiB", Rate::Bytes(2 << 30), "2GiB"),
        ("1TB", Rate::Bytes(1_000_000_000_000), "1TB"),
        ("25%", Rate::Device(25), "25%"),
        ("100%", Rate::Device(100), "100%"),
    ] {
        assert_eq!((text.parse(), rate.to_string()), (Ok(rate), shown.to_owned()));
    }
}

/// What is refused, and the sentence that the administrator reads.
const BAD: &[(&str, &str)] = &[
    ("", "\"\" is not start NAME CONDITIONS rate=RATE, set NAME"),
    (";;", "is not start NAME"),
    ("begin a uid={1} rate=1", "\"begin a uid={1} rate=1\" is not start NAME"),
    ("start", "\"start\" is not start NAME"),
    ("start a", "a rule needs a condition, such as jobid={dd.0}"),
    ("start a rate=1", "a rule needs a condition"),
    (
        "start a uid={1}",
        "start needs rate=, such as rate=100 for requests, rate=100MB or rate=25% of the device's time",
    ),
    ("start a uid={1} 100", "\"100\" is not rate=RATE, rank=RULE, realtime=0 or realtime=1"),
    (
        "start a {10.0.0.1@tcp} rate=100",
        "\"{10.0.0.1@tcp}\" is no condition: nid, jobid, uid, gid, projid and opcode are known",
    ),
    ("start a jobid={dd.0 rate=1", "a brace is missing in \"start a jobid={dd.0 rate=1\""),
    ("start a jobid=dd.0} rate=1", "a brace is missing"),
    ("start a jobid={{dd.0}} rate=1", "a brace is missing"),
    ("start a jobid=dd.0 rate=1", "\"jobid=dd.0\" is not rate=RATE"),
    ("start a jobid={} rate=1", "jobid needs 1 to 256 values between its braces"),
    ("start a jobid={dd\u{7}} rate=1", "is no job: at most 64 printable characters"),
    ("start a jobid={dd}x rate=1", "\"jobid={dd}x\" is no condition"),
    ("start a host={h} rate=1", "\"host={h}\" is no condition"),
    ("start a uid={bob} rate=1", "\"bob\" is no id and no range of ids such as 500-510"),
    ("start a uid={9-1} rate=1", "\"9-1\" is no id"),
    ("start a uid={-1} rate=1", "\"-1\" is no id"),
    ("start a uid={4294967296} rate=1", "is no id"),
    ("start a nid={10.0.0.1} rate=1", "\"10.0.0.1\" is no NID"),
    ("start a nid={10.0.0.300@tcp} rate=1", "is no NID"),
    ("start a opcode={ost_fly} rate=1", "\"ost_fly\" is no operation"),
    ("start a uid={1}& rate=1", "\"\" is no condition"),
    ("start a uid={1}&&gid={1} rate=1", "\"\" is no condition"),
    ("start a uid={1},, rate=1", "\"\" is no condition"),
    ("start a uid={1} rate=0", "\"0\" is no rate: a number of requests from 1 to 1000000, bytes from 64KB to 1TB"),
    ("start a uid={1} rate=1000001", "is no rate"),
    ("start a uid={1} rate=-5", "is no rate"),
    ("start a uid={1} rate=1KB", "is no rate"),
    ("start a uid={1} rate=2TB", "is no rate"),
    ("start a uid={1} rate=99999999999999999999MB", "is no rate"),
    ("start a uid={1} rate=100M", "\"100M\" is no rate"),
    ("start a uid={1} rate=0%", "is no rate"),
    ("start a uid={1} rate=101%", "is no rate"),
    ("start a uid={1} rate=", "\"\" is no rate"),
    ("start a uid={1} rate=1 realtime=2", "\"realtime=2\" is not rate=RATE"),
    ("start a uid={1} rate=1 rank=b", "there is no rule \"b\""),
    ("start a uid={1} rate=1 speed=1", "\"speed=1\" is not rate=RATE"),
    ("start a! uid={1} rate=1", "\"a!\" is no name of a rule: 1 to 32 letters"),
    ("start aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa uid={1} rate=1", "is no name of a rule"),
    ("start default uid={1} rate=1", "the rule \"default\" is for what no other rule matches"),
    ("set default uid={1} rate=1", "the rule \"default\""),
    ("stop default", "the rule \"default\""),
    ("change default rate=1 rank=b", "the rule \"default\""),
    ("change default", "change needs rate="),
    ("change b rate=1", "there is no rule \"b\""),
    ("change b uid={1} rate=1", "is not start NAME"),
    ("stop b", "there is no rule \"b\""),
    ("stop b rate=1", "is not start NAME"),
    ("start a uid={1} rate=1; stop b", "there is no rule \"b\""),
];

#[test]
fn bad_text_is_refused_with_a_sentence() {
    for (text, why) in BAD {
        let error = Rules::default().changed(text).expect_err(text).to_string();
        assert!(error.contains(why), "{text}: {error}");
        assert!(error.len() < 300, "{text}: {error}");
    }
    let long = format!("start a jobid={{{}}} rate=1", "x ".repeat(3000));
    assert_eq!(Rules::default().changed(&long), Err(RuleError::TooLong));
    let many = format!("start a jobid={{{}}} rate=1", "x ".repeat(257));
    assert!(matches!(Rules::default().changed(&many), Err(RuleError::Values { .. })));
    let full =
        (0..RULES_MAX).fold(Rules::default(), |all, n| all.changed(&format!("start r{n} uid={{1}} rate=1")).unwrap());
    assert_eq!(full.changed("start one-more uid={1} rate=1"), Err(RuleError::TooMany));
    assert!(full.changed("set r0 uid={1} rate=2; stop r1; start r1 uid={1} rate=1").is_ok());
}

/// Whatever the text, it is refused or understood. What is understood is listed so that it is understood again.
#[test]
fn any_text_is_refused_or_understood() {
    const PIECES: &[&str] = &[
        "start ",
        "set ",
        "change ",
        "stop ",
        "a",
        "b ",
        "default ",
        "jobid=",
        "uid=",
        "nid=",
        "opcode=",
        "projid=",
        "{",
        "}",
        "{1} ",
        "{dd.* cp} ",
        "{1@sim}",
        "{ost_read} ",
        "&",
        ",",
        " ",
        ";",
        "\n",
        "rate=",
        "1",
        "9%",
        "64MB ",
        "rank=",
        "realtime=1 ",
        "-",
        "=",
        "\u{e4}",
        "\0",
        "[1-4]",
    ];
    let mut understood = 0;
    for seed in 0..30_000 {
        let mut prng = Prng::new(seed);
        let mut text = if prng.one_in(2) { "start a uid={1} rate=5".to_owned() } else { String::new() };
        for _ in 0..prng.below(8) {
            let mut at = prng.below(text.len() as u64 + 1) as usize;
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            let piece: &&str = prng.pick(PIECES);
            text.insert_str(at, piece);
        }
        let Ok(all) = Rules::default().changed(&text) else { continue };
        understood += 1;
        let again = all.list().iter().rev().fold(Rules::default(), |again, rule| {
            let Rule { name, expression, rate, is_realtime, .. } = &**rule;
            let command = format!("start {name} {expression} rate={rate} realtime={}", u8::from(*is_realtime));
            again.changed(&command).unwrap_or_else(|error| panic!("{text:?}, listed as {command}: {error}"))
        });
        assert_eq!(names(&again), names(&all));
    }
    assert!(understood > 1000, "{understood} texts are understood");
}
