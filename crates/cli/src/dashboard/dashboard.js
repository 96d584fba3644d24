// The page: asks the server for its numbers every second and hands them to the parts of the page. It says so when they are old.

import { drawSpark } from "./charts.js";
import { bytesPerSecond, clean, clock, count, drawn, element, list, milliseconds, numeric, setText } from "./text.js";
import { addParts } from "./parts.js";
import { COLUMNS, Table } from "./tables.js";
import { History } from "./history.js";

const POLL_MS = 1000;
// The server answers within this time even if it can only say that its source hangs.
const REQUEST_TIMEOUT_MS = 12_000;
// Numbers that arrive later than this count as old, though the request may still be answered.
const SILENCE_MS = 3000;
// Seconds that the small charts show at most, and at least.
const SPARK_SECONDS = { most: 300, least: 60 };

const byId = id => document.getElementById(id);
const banner = byId("banner");

const TILES = [
  { title: "Requests/s", key: "requests_per_s", format: count },
  { title: "Read", key: "read_bytes_per_s", format: bytesPerSecond },
  { title: "Written", key: "write_bytes_per_s", format: bytesPerSecond },
  { title: "Latency", key: "latency_ms", format: milliseconds },
].map(tile => {
  const value = element("p", { class: "value" }, "–");
  const svg = drawn("svg", { class: "spark", "aria-hidden": "true" });
  const most = element("p", { class: "most" });
  byId("tiles").append(element("div", { class: "tile" }, element("h3", {}, tile.title), value, svg, most));
  return { ...tile, value, svg, most, points: [] };
});

addParts(byId("parts"));

const history = new History(byId("history"), {
  closed() {
    const row = byId("targets-table").querySelector(".chosen .choice");
    choose(null);
    row?.focus();
  },
});
const tables = {
  targets: new Table(byId("targets-table"), COLUMNS.targets, { sort: "name", choose, empty: "No target is known." }),
  clients: new Table(byId("clients-table"), COLUMNS.clients, { sort: "requests_per_s", empty: "No client has sent requests." }),
  jobs: new Table(byId("jobs-table"), COLUMNS.jobs, { sort: "requests_per_s", empty: "No job has sent requests." }),
  operations: new Table(byId("operations-table"), COLUMNS.operations, { sort: "requests_per_s", empty: "No operation was asked for." }),
};

// Shows the history of a target, or hides it if it is shown already.
function choose(name) {
  const chosen = name === history.target ? null : name;
  history.show(chosen);
  tables.targets.mark(chosen);
  if (chosen !== null) byId("history").scrollIntoView({ block: "nearest", behavior: "auto" });
}

function show(now) {
  setText(byId("sentence"), clean(now.sentence));
  showFindings(list(now.findings), new Set(list(now.targets).map(target => target?.name)));
  const time = numeric(now.time);
  setText(byId("clock"), clock(time));
  showTotals(time, now.totals);
  for (const [name, table] of Object.entries(tables)) table.update(now[name]);
  tables.targets.mark(history.target);
}

function showTotals(time, totals) {
  for (const tile of TILES) {
    const latest = numeric(totals?.[tile.key]);
    setText(tile.value, tile.format(latest));
    // A clock that was set back leaves points in the future.
    tile.points = tile.points.filter(([at]) => at < time && time - at <= SPARK_SECONDS.most);
    tile.points.push([time, latest]);
  }
  const seen = time - TILES[0].points[0][0];
  const minutes = Math.ceil(Math.min(SPARK_SECONDS.most, Math.max(SPARK_SECONDS.least, seen)) / 60);
  setText(byId("overview-span"), minutes === 1 ? "the last minute" : `the last ${minutes} minutes`);
  for (const { svg, points, most, format } of TILES) {
    setText(most, `at most ${format(drawSpark(svg, { points, now: time, span: minutes * 60 }))}`);
  }
}

const severityWord = severity => (severity >= 0.7 ? "severe" : severity >= 0.4 ? "moderate" : "slight");
let shownFindings = "";

function showFindings(findings, targets) {
  // Elements that stay as they are keep a person's selection and focus.
  const shown = JSON.stringify([findings, findings.map(finding => targets.has(finding?.who))]);
  if (shown === shownFindings) return;
  shownFindings = shown;
  const sorted = findings.filter(finding => finding !== null && typeof finding === "object");
  sorted.sort((a, b) => (numeric(b.severity) || 0) - (numeric(a.severity) || 0));
  byId("findings").replaceChildren(...sorted.map(finding => {
    const severity = severityWord(numeric(finding.severity));
    const item = element("li", { class: `finding ${severity}` },
      element("p", { class: "finding-head" }, element("strong", { class: "severity" }, severity), ` ${clean(finding.sentence)}`),
      element("ul", { class: "evidence" }, ...list(finding.evidence).map(line => element("li", {}, clean(line)))));
    if (targets.has(finding.who)) {
      const button = element("button", { type: "button" }, `History of ${clean(finding.who)}`);
      button.addEventListener("click", () => {
        if (history.target !== finding.who) choose(finding.who);
        byId("history").focus();
      });
      item.append(button);
    } else if (finding.who) {
      item.append(element("p", { class: "who" }, `${clean(finding.part)}: ${clean(finding.who)}`));
    }
    return item;
  }));
}

// What the page knows of its server.
const link = { answeredAt: null, askedAt: null, trouble: "", isPaused: false, isAsking: false };

// Says whether the numbers are current, and if not, why and how old they are.
function showLink() {
  const silent = link.isAsking && performance.now() - link.askedAt > SILENCE_MS;
  const trouble = link.isPaused ? "" : link.trouble || (silent ? "The dashboard's server does not answer." : "");
  setText(byId("state-word"), link.isPaused ? "Paused" : trouble ? "No current numbers" : link.answeredAt === null ? "Loading" : "Live");
  document.body.classList.toggle("stale", trouble !== "");
  banner.hidden = trouble === "";
  if (trouble === "") {
    setText(banner, "");
    return;
  }
  const age = link.answeredAt === null ? NaN : Math.round((performance.now() - link.answeredAt) / 1000);
  const known = Number.isNaN(age) ? "There are no numbers yet." : `All numbers below are ${age} s old.`;
  setText(banner, `${trouble} ${known} The page asks again every second.`);
}

async function ask() {
  link.isAsking = true;
  link.askedAt = performance.now();
  try {
    const response = await fetch("api/now", { signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS) });
    const answer = await response.json();
    if (response.ok) {
      link.trouble = "";
      link.answeredAt = performance.now();
      if (!link.isPaused) show(answer);
    } else {
      link.trouble = `The dashboard's server reports: ${clean(answer.error)}`;
    }
  } catch {
    link.trouble = "The dashboard's server does not answer.";
  }
  link.isAsking = false;
  showLink();
}

byId("pause").addEventListener("click", event => {
  link.isPaused = !link.isPaused;
  event.currentTarget.setAttribute("aria-pressed", String(link.isPaused));
  setText(event.currentTarget, link.isPaused ? "Go on" : "Pause");
  tick();
});

// A page that nobody sees does not ask.
function tick() {
  if (!link.isPaused && !link.isAsking && !document.hidden) {
    ask();
    history.refresh();
  }
  showLink();
}

document.addEventListener("visibilitychange", tick);
setInterval(tick, POLL_MS);
tick();
