//! `lnetctl route` and `lnetctl routing`, and the `set` commands of a router.

use super::{Value, gather, json, show};
use crate::output::fail;
use nacre_base::Errno;
use nacre_process::admin::{Answer, Request, ask_all};
use nacre_process::routing::Buffers;
use std::process::ExitCode;

/// `route add`, `route del`: words are options with their values.
pub(super) fn change(add: bool, words: &[&str]) -> ExitCode {
    let verb = if add { "add" } else { "del" };
    let (mut network, mut gateway, mut hop, mut priority) = (None, None, None, None);
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let (name, inline) = word.split_once('=').map_or((*word, None), |(n, v)| (n, Some(v)));
        let slot = match name {
            "--net" | "-n" => &mut network,
            "--gateway" | "-g" => &mut gateway,
            "--hop" | "--hop-count" | "-c" if add => &mut hop,
            "--priority" | "-p" if add => &mut priority,
            other => return fail("lnetctl", format!("route {verb}: {other} is not known; see lnetctl help"), 1),
        };
        let Some(value) = inline.or_else(|| rest.next().copied()) else {
            return fail("lnetctl", format!("route {verb}: {name} needs a value"), 1);
        };
        *slot = Some(value);
    }
    let (Some(network), Some(gateway)) = (network, gateway) else {
        return fail("lnetctl", format!("route {verb}: --net and --gateway are needed"), 1);
    };
    // Lustre's -1 means that the number of hops was not said.
    let (hop, priority) = (hop.filter(|hop| *hop != "-1").unwrap_or(""), priority.unwrap_or("0"));
    let request = match add {
        true => Request::AddRoute { route: format!("{network} {hop}:{priority} {gateway}") },
        false => Request::RemoveRoute { network: network.to_owned(), gateway: gateway.to_owned() },
    };
    ask_those_concerned(verb, "route", &request)
}

/// `route show [-v]`.
pub(super) fn show_routes(verbose: bool, as_json: bool) -> ExitCode {
    let mut routes = match gather(&Request::Routes) {
        Ok(routes) => routes,
        Err(code) => return code,
    };
    // Several processes of a host have the same routes.
    let mut seen = Vec::new();
    routes.retain(|route| {
        let new = !seen.contains(route);
        seen.push(route.clone());
        new
    });
    if !verbose {
        routes.iter_mut().for_each(|route| super::keep(route, &["net", "gateway"]));
    }
    match routes.is_empty() && !as_json {
        true => ExitCode::SUCCESS,
        false => show(as_json, Ok(json!({ "route": routes }))),
    }
}

/// `route explain NID`: what each process of the host says.
pub(super) fn explain(nid: &str, as_json: bool) -> ExitCode {
    let request = Request::ExplainRoute { nid: nid.to_owned() };
    let (mut explained, mut refusal) = (Vec::new(), None);
    for answer in ask_all(&request) {
        match answer {
            Answer::Value(value) if !explained.contains(&value) => explained.push(value),
            Answer::Error { text, .. } => refusal = Some(text),
            _ => {}
        }
    }
    match refusal {
        Some(text) if explained.is_empty() => fail("lnetctl", format!("route explain: {text}"), 1),
        None if explained.is_empty() => {
            fail("lnetctl", "no nacre process runs on this host (or its run directory is elsewhere)", 2)
        }
        _ => show(as_json, Ok(json!({ "explain": explained }))),
    }
}

/// `routing show`: nothing, as Lustre, where there is no router.
pub(super) fn show_routing(as_json: bool) -> ExitCode {
    let routers: Vec<Value> = match gather(&Request::Routing) {
        Ok(all) => all.into_iter().filter(|value| !value.is_null()).collect(),
        Err(code) => return code,
    };
    if as_json {
        return show(true, Ok(json!({ "routing": routers })));
    }
    for router in &routers {
        print!("{}", routing_text(router));
    }
    ExitCode::SUCCESS
}

fn routing_text(router: &Value) -> String {
    let mut text = "routing:\n    - cpt[0]:\n".to_owned();
    let pools = || ["tiny", "small", "large"].into_iter().map(|name| (name, &router["pools"][name]));
    for (name, pool) in pools() {
        text += &format!("          {name}:\n");
        for number in ["npages", "nbuffers", "credits", "mincredits"] {
            text += &format!("              {number}: {}\n", pool[number]);
        }
    }
    text += &format!("    - enable: {}\nbuffers:\n", router["enable"]);
    for (name, pool) in pools() {
        text += &format!("    {name}: {}\n", pool["nbuffers"]);
    }
    text
}

/// `set routing|tiny_buffers|small_buffers|large_buffers VALUE`.
pub(super) fn set(name: &str, value: &str) -> ExitCode {
    let bad = |what: &str| fail("lnetctl", format!("set {name}: {value:?} is not {what}"), 1);
    if name == "routing" {
        return match value {
            "0" | "1" => ask_those_concerned("set", "routing", &Request::SetRouting { enable: value == "1" }),
            _ => bad("0 or 1"),
        };
    }
    let Ok(count) = value.parse::<u32>() else { return bad("a number of buffers") };
    let buffers = match name {
        "tiny_buffers" => Buffers { tiny: Some(count), ..Buffers::default() },
        "small_buffers" => Buffers { small: Some(count), ..Buffers::default() },
        "large_buffers" => Buffers { large: Some(count), ..Buffers::default() },
        other => return fail("lnetctl", format!("set {other}: there is no such setting"), 1),
    };
    ask_those_concerned("set", name, &Request::SetBuffers { buffers })
}

/// Asks all processes of the host; those that the request is not for refuse. An error only if all did.
fn ask_those_concerned(verb: &str, what: &str, request: &Request) -> ExitCode {
    let mut refusal: Option<(i32, String)> = None;
    for answer in ask_all(request) {
        match answer {
            // What makes no sense to a process, such as a route to its own network, may make sense to another: so another
            // reason says more.
            Answer::Error { errno, text } if refusal.as_ref().is_none_or(|(first, _)| *first == Errno::EINVAL.0) => {
                refusal = Some((errno, text));
            }
            Answer::Error { .. } => {}
            _ => return ExitCode::SUCCESS,
        }
    }
    let Some((errno, text)) = refusal else {
        return fail("lnetctl", "no nacre process runs on this host (or its run directory is elsewhere)", 2);
    };
    eprintln!("{verb}:\n    - {what}:\n          errno: -{errno}\n          descr: \"{text}\"");
    ExitCode::from(errno as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routing_is_shown_as_lustre_shows_it() {
        let pool =
            |pages: u32, count: u32| json!({"npages": pages, "nbuffers": count, "credits": count, "mincredits": count});
        let router =
            json!({"enable": 1, "pools": {"tiny": pool(0, 2048), "small": pool(1, 16384), "large": pool(256, 1024)}});
        let want = "routing:\n    - cpt[0]:\n          tiny:\n              npages: 0\n              nbuffers: 2048\n              \
                    credits: 2048\n              mincredits: 2048\n          small:\n              npages: 1\n              \
                    nbuffers: 16384\n              credits: 16384\n              mincredits: 16384\n          large:\n              \
                    npages: 256\n              nbuffers: 1024\n              credits: 1024\n              mincredits: 1024\n    - \
                    enable: 1\nbuffers:\n    tiny: 2048\n    small: 16384\n    large: 1024\n";
        assert_eq!(routing_text(&router), want);
    }
}
