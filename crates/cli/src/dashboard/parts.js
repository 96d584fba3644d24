// The parts of a request's time: their names, their order, their patterns, and bars made of them. A part is recognisable without
// colours by its pattern.

import { clean, drawn, element, milliseconds, numeric, setText } from "./text.js";

// In the order in which a request passes them. The pattern is a path in a tile of 8 by 8.
const KNOWN = [
  { name: "client", about: "at the client, for a slot or a connection", pattern: "" },
  { name: "window", about: "at the client, for room in the server's window", pattern: "M-2 2l4-4M0 8l8-8M6 10l4-4" },
  { name: "network", about: "on the way to the server and back", pattern: "M2 0v8M6 0v8" },
  { name: "routers", about: "inside routers", pattern: "M2 1v2M6 5v2" },
  { name: "queue", about: "at the server, for its turn", pattern: "M0 2h8M0 6h8" },
  { name: "locks", about: "for locks that others hold", pattern: "M0 4h8M4 0v8" },
  { name: "transfer", about: "for the data on its way", pattern: "M-2 6l4 4M0 0l8 8M6-2l4 4" },
  { name: "device", about: "for the storage device", pattern: "M0 0h4v4h4v4h-4v-4h-4z" },
  { name: "commit", about: "until a change is durable", pattern: "M0 6l4-4l4 4" },
  { name: "service", about: "everything else at the server", pattern: "M4 2v4M2 4h4" },
];
// For a part that this page does not know.
const OTHER = { name: "other", about: "a part that this page does not know", pattern: "M0 0l8 8M0 8l8-8" };

const order = new Map(KNOWN.map((part, at) => [part.name, at]));

// The class of everything that shows a part.
const classOf = name => `part-${order.has(name) ? name : OTHER.name}`;

// The fill of everything that shows a part.
export const fillOf = name => `url(#${classOf(name)})`;

// The names, in the order of a request's way; unknown ones last.
export function inOrder(names) {
  const rank = name => order.get(name) ?? KNOWN.length;
  return [...names].sort((a, b) => rank(a) - rank(b));
}

// Puts the patterns into the page, where `fillOf` finds them, and explains them.
export function addParts(legend) {
  const patterns = drawn("defs");
  for (const part of [...KNOWN, OTHER]) {
    const tile = drawn("pattern", {
      id: classOf(part.name), class: classOf(part.name), width: 8, height: 8, patternUnits: "userSpaceOnUse",
    });
    tile.append(drawn("rect", { width: 8, height: 8, class: "ground" }), drawn("path", { d: part.pattern, class: "mark" }));
    patterns.append(tile);
  }
  document.body.append(drawn("svg", { width: 0, height: 0, class: "patterns", "aria-hidden": "true" }, patterns));
  for (const part of KNOWN) {
    legend.append(element("div", {}, element("dt", {}, swatch(part.name), part.name), element("dd", {}, part.about)));
  }
}

// A square with the pattern of a part.
export function swatch(name) {
  return drawn("svg", { class: "swatch", width: 16, height: 16, "aria-hidden": "true" },
    drawn("rect", { width: 16, height: 16, fill: fillOf(name) }));
}

const BAR_WIDTH = 200;
const BAR_HEIGHT = 14;
// Parts whose names stand below a bar.
const NAMED = 2;

// A bar of the parts of a latency, each as wide as its share, with the names of the longest below it.
export function makeBar() {
  const bar = drawn("svg", {
    class: "bar", viewBox: `0 0 ${BAR_WIDTH} ${BAR_HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true",
  });
  const longest = element("span", { class: "longest" });
  const all = element("span", { class: "unseen" });
  return { element: element("div", { class: "parts" }, bar, longest, all), bar, longest, all };
}

// Shows other parts. People who see the bar read the longest parts below it; its tooltip and a screen reader tell all.
export function setBar({ element: whole, bar, longest, all }, parts) {
  const lasting = Object.entries(parts ?? {}).filter(([, ms]) => numeric(ms) > 0);
  const values = new Map(lasting);
  const sum = lasting.reduce((total, [, ms]) => total + ms, 0);
  let x = 0;
  bar.replaceChildren(...inOrder(values.keys()).map(name => {
    const width = (values.get(name) / sum) * BAR_WIDTH;
    const piece = drawn("rect", { x, width, height: BAR_HEIGHT, fill: fillOf(name), class: "piece" });
    x += width;
    return piece;
  }));
  const describe = ([name, ms]) => `${clean(name)} ${milliseconds(ms)}`;
  lasting.sort(([, a], [, b]) => b - a);
  setText(longest, lasting.length ? lasting.slice(0, NAMED).map(describe).join(", ") : "no requests");
  const rest = lasting.slice(NAMED).map(describe).join(", ");
  setText(all, rest && `, ${rest}`);
  whole.title = lasting.map(describe).join(", ");
}
