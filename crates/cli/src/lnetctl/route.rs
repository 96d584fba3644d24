//! `lnetctl route` and `lnetctl routing`.

use super::given::Given;
use super::host::Host;
use super::printed::{keep, once, show};
use crate::output::fail;
use nacre_process::admin::{Answer, Request};
use serde_json::{Value, json};
use std::process::ExitCode;

/// `route add`, `route del`.
pub(super) fn change(host: &Host, add: bool, args: &[String]) -> ExitCode {
    let route = [('n', "net"), ('g', "gateway")];
    let weight = [('c', "hop"), (' ', "hop-count"), ('p', "priority")];
    let known = if add { [route.as_slice(), &weight].concat() } else { route.to_vec() };
    let request = Given::parse(args, &known, &[]).and_then(Given::without_operands).and_then(|given| {
        let (network, gateway) = (given.need("net")?.to_owned(), given.need("gateway")?.to_owned());
        // Lustre's -1 means that the number of hops was not said.
        let hop = given.get("hop").or(given.get("hop-count")).filter(|hop| *hop != "-1").unwrap_or("");
        let priority = given.get("priority").unwrap_or("0");
        Ok(match add {
            true => Request::AddRoute { route: format!("{network} {hop}:{priority} {gateway}") },
            false => Request::RemoveRoute { network, gateway },
        })
    });
    request.map_or_else(|code| code, |request| host.change(if add { "add" } else { "del" }, "route", &request))
}

/// `route show [-v]`.
pub(super) fn show_routes(host: &Host, args: &[String]) -> ExitCode {
    let given = match Given::parse(args, &[('n', "net"), ('g', "gateway")], &[]).and_then(Given::without_operands) {
        Ok(given) => given,
        Err(code) => return code,
    };
    let mut routes = match host.gather(&Request::Routes) {
        Ok(routes) => once(routes),
        Err(code) => return code,
    };
    for name in ["net", "gateway"] {
        routes.retain(|route| given.get(name).is_none_or(|wanted| route[name] == wanted));
    }
    if !given.has("verbose") {
        routes.iter_mut().for_each(|route| keep(route, &["net", "gateway"]));
    }
    match routes.is_empty() && !given.as_json() {
        true => ExitCode::SUCCESS,
        false => show(given.as_json(), Ok(json!({ "route": routes }))),
    }
}

/// `route explain NID`: what each process of the host says.
pub(super) fn explain(host: &Host, args: &[String]) -> ExitCode {
    let given = match Given::parse(args, &[], &[]) {
        Ok(given) => given,
        Err(code) => return code,
    };
    let [nid] = given.operands.as_slice() else { return fail("lnetctl", "route explain: one NID is needed", 1) };
    let answers = match host.ask(&Request::ExplainRoute { nid: (*nid).to_owned() }) {
        Ok(answers) => answers,
        Err(code) => return code,
    };
    let (mut explained, mut refusal) = (Vec::new(), None);
    for (_, answer) in answers {
        match answer {
            Answer::Value(value) => explained.push(value),
            Answer::Error { text, .. } => refusal = Some(text),
            _ => {}
        }
    }
    match refusal {
        Some(text) if explained.is_empty() => fail("lnetctl", format!("route explain: {text}"), 1),
        _ => show(given.as_json(), Ok(json!({ "explain": once(explained) }))),
    }
}

/// `routing show`: nothing, as Lustre, where there is no router.
pub(super) fn show_routing(host: &Host, args: &[String]) -> ExitCode {
    let given = match Given::none(args) {
        Ok(given) => given,
        Err(code) => return code,
    };
    let routers: Vec<Value> = match host.gather(&Request::Routing) {
        Ok(all) => all.into_iter().filter(|value| !value.is_null()).collect(),
        Err(code) => return code,
    };
    if given.as_json() {
        return show(true, Ok(json!({ "routing": routers })));
    }
    for router in &routers {
        print!("{}", routing_text(router));
        if given.has("verbose") {
            println!("lanes: {}", router["lanes"]);
        }
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
