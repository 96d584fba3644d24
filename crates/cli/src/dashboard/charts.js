// Charts over time, drawn as SVG: lines, or areas that stand on each other. A chart takes columns of numbers and knows nothing of
// what they mean.

import { drawn } from "./text.js";

const MARGIN = { left: 62, right: 10, top: 8, bottom: 20 };

// Draws a small line of a few values, for a tile. `points` are [seconds, value], `span` the seconds that the whole width shows.
export function drawSpark(svg, { points, now, span }) {
  const [width, height] = [240, 44];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  const highest = Math.max(...points.map(([, value]) => value).filter(Number.isFinite), 0);
  const x = at => width - ((now - at) / span) * width;
  const y = value => height - 2 - (highest > 0 ? value / highest : 0) * (height - 6);
  const runs = runsOf(points, 5);
  const line = runs.map(run => pathOf(run.map(([at, value]) => [x(at), y(value)]))).join("");
  const area = runs.map(run => {
    const top = run.map(([at, value]) => [x(at), y(value)]);
    return `${pathOf(top)}L${round(top.at(-1)[0])} ${height}L${round(top[0][0])} ${height}Z`;
  }).join("");
  svg.replaceChildren(
    drawn("path", { d: area, class: "spark-area" }),
    drawn("path", { d: line, class: "spark-line", "vector-effect": "non-scaling-stroke" }),
  );
  return highest;
}

// Points in runs without a hole of more than `hole` seconds or a value that is no number.
function runsOf(points, hole) {
  const runs = [];
  let last = -Infinity;
  for (const point of points) {
    if (!Number.isFinite(point[1])) {
      last = -Infinity;
      continue;
    }
    if (point[0] - last > hole) runs.push([]);
    runs.at(-1).push(point);
    last = point[0];
  }
  return runs;
}

// Draws a chart of `bins`, which are as wide as each other. `series` are { values, className, fill }, one value for each bin, NaN
// where there is none. Stacked series are areas on each other, others are lines. `format` writes a value of the y axis, `clock` a time.
export function drawChart(svg, { from, step, count, series, stacked, format, clock, height }) {
  const width = Math.max(260, svg.clientWidth || svg.parentNode.clientWidth || 600);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  const [left, right, bottom] = [MARGIN.left, width - MARGIN.right, height - MARGIN.bottom];
  const top = niceTop(highestOf(series, stacked, count));
  const x = bin => left + (bin / count) * (right - left);
  const y = value => bottom - (value / top) * (bottom - MARGIN.top);

  const marks = [...axisY({ top, y, left, right, format }), ...axisX({ from, step, count, x, bottom, width, clock })];
  const shapes = stacked ? areas(series, count, x, y) : lines(series, count, x, y);
  const cursor = drawn("line", { class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden" });
  svg.replaceChildren(...marks, ...shapes, cursor);
  return {
    // The bin below a place of the window.
    binAt(clientX) {
      const box = svg.getBoundingClientRect();
      const inside = ((clientX - box.left) / box.width) * width;
      return Math.min(count - 1, Math.max(0, Math.floor(((inside - left) / (right - left)) * count)));
    },
    // Marks a bin, or none.
    point(bin) {
      cursor.setAttribute("visibility", bin === null ? "hidden" : "visible");
      const at = round(x((bin ?? 0) + 0.5));
      cursor.setAttribute("x1", at);
      cursor.setAttribute("x2", at);
    },
  };
}

function highestOf(series, stacked, count) {
  let highest = 0;
  for (let bin = 0; bin < count; bin += 1) {
    const values = series.map(({ values }) => values[bin]).filter(Number.isFinite);
    const value = stacked ? values.reduce((a, b) => a + b, 0) : Math.max(0, ...values);
    highest = Math.max(highest, value);
  }
  return highest;
}

// The end of an axis: a round number not below the highest value.
function niceTop(highest) {
  if (!(highest > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 3, 4, 5, 6, 8, 10].map(n => n * power).find(n => n >= highest * 0.999) ?? 10 * power;
}

function axisY({ top, y, left, right, format }) {
  return [0, 0.5, 1].flatMap(share => [
    drawn("line", { class: "grid", x1: left, x2: right, y1: round(y(share * top)), y2: round(y(share * top)) }),
    drawn("text", { class: "axis", x: left - 6, y: round(y(share * top)) + 4, "text-anchor": "end" }, format(share * top)),
  ]);
}

const TICKS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600];

// Ticks at round times of the day, as many as have room.
function axisX({ from, step, count, x, bottom, width, clock }) {
  const seconds = step * count;
  const every = TICKS.find(tick => seconds / tick <= Math.max(2, width / 90)) ?? TICKS.at(-1);
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  const marks = [];
  for (let at = Math.ceil((from - zone) / every) * every + zone; at <= from + seconds; at += every) {
    const place = round(x((at - from) / step));
    marks.push(drawn("line", { class: "tick", x1: place, x2: place, y1: bottom, y2: bottom + 4 }));
    if (place > MARGIN.left + 12 && place < width - 24) {
      marks.push(drawn("text", { class: "axis", x: place, y: bottom + 16, "text-anchor": "middle" }, clock(at).slice(0, 5)));
    }
  }
  return marks;
}

function lines(series, count, x, y) {
  return series.map(({ values, className }) => {
    const points = Array.from({ length: count }, (_, bin) => [bin, values[bin]]);
    const drawnRun = run => {
      // A bin alone is as wide as itself, or it would be a point that nobody sees.
      const ends = run.length === 1 ? [[run[0][0] - 0.5, run[0][1]], [run[0][0] + 0.5, run[0][1]]] : run;
      return pathOf(ends.map(([bin, value]) => [x(bin + 0.5), y(value)]));
    };
    return drawn("path", { class: `line ${className}`, d: runsOf(points, 1).map(drawnRun).join("") });
  });
}

// Areas as steps, each bin as wide as itself, so that spans without values stay empty.
function areas(series, count, x, y) {
  const base = new Array(count).fill(0);
  return series.map(({ values, fill }) => {
    const d = [];
    for (let bin = 0; bin < count; bin += 1) {
      if (!(values[bin] > 0)) continue;
      const run = [];
      for (; bin < count && values[bin] > 0; bin += 1) run.push(bin);
      const above = run.flatMap(at => [[x(at), y(base[at] + values[at])], [x(at + 1), y(base[at] + values[at])]]);
      const below = run.flatMap(at => [[x(at), y(base[at])], [x(at + 1), y(base[at])]]).reverse();
      d.push(pathOf([...above, ...below]) + "Z");
    }
    for (let bin = 0; bin < count; bin += 1) if (values[bin] > 0) base[bin] += values[bin];
    return drawn("path", { class: "area", d: d.join(""), fill });
  });
}

const round = n => Math.round(n * 10) / 10;
const pathOf = points => points.map(([x, y], at) => `${at ? "L" : "M"}${round(x)} ${round(y)}`).join("");
