// The history of one target: its rates, and the parts of its requests' time on each other, over minutes, an hour or a day.

import { drawChart } from "./charts.js";
import { bytesPerSecond, clean, clock, count, drawn, element, list, milliseconds, numeric, setText } from "./text.js";
import { fillOf, inOrder, swatch } from "./parts.js";

const RANGES = [
  { name: "10 minutes", seconds: 600, rows: "seconds", unit: 1 },
  { name: "1 hour", seconds: 3600, rows: "seconds", unit: 1 },
  { name: "1 day", seconds: 86400, rows: "minutes", unit: 60 },
];
// Bins that a chart is divided into at most: a bin is then about two pixels wide.
const BINS_MAX = 600;
const REFRESH_MS = 5000;
const REQUEST_TIMEOUT_MS = 15_000;
const CHART_HEIGHT = 150;

export class History {
  // `closed` is called when a person closes the history.
  constructor(place, { closed }) {
    this.place = place;
    this.target = null;
    this.range = RANGES[1];
    this.data = null;
    this.bin = null;
    this.asked = 0;
    this.build(closed);
    new ResizeObserver(() => this.draw()).observe(place);
  }

  build(closed) {
    this.title = element("h3");
    this.ranges = RANGES.map(range => {
      const button = element("button", { type: "button", "aria-pressed": String(range === this.range) }, range.name);
      button.addEventListener("click", () => {
        this.range = range;
        this.bin = null;
        this.ranges.forEach((other, at) => other.setAttribute("aria-pressed", String(RANGES[at] === range)));
        this.draw();
      });
      return button;
    });
    const close = element("button", { type: "button", class: "close" }, "Close the history");
    close.addEventListener("click", closed);
    this.message = element("p", { role: "status" });
    this.readout = element("p", { class: "readout", "aria-live": "polite" });
    this.charts = [
      this.chart("Requests/s", count, bins => [line("requests", "first", bins.requests)]),
      this.chart("Bytes", bytesPerSecond, bins => [line("read", "first", bins.read), line("written", "second", bins.written)]),
      this.chart("Mean time of a request by its parts", milliseconds, bins => bins.parts, "stacked"),
    ];
    this.place.replaceChildren(
      element("div", { class: "history-head" }, this.title,
        element("div", { class: "ranges", role: "group", "aria-label": "Time that the charts show" }, ...this.ranges), close),
      this.message, ...this.charts.map(chart => chart.figure), this.readout,
    );
  }

  chart(title, format, seriesOf, kind) {
    const svg = drawn("svg", { class: "chart", role: "img", tabindex: "0", "aria-label": `${title}. The arrow keys read values.` });
    const legend = element("span", { class: "chart-legend" });
    const figure = element("figure", {}, element("figcaption", {}, title, legend), svg);
    const chart = { figure, svg, legend, format, seriesOf, isStacked: kind === "stacked" };
    svg.addEventListener("pointermove", event => chart.drawing && this.point(chart.drawing.binAt(event.clientX)));
    svg.addEventListener("pointerleave", () => this.point(null));
    svg.addEventListener("blur", () => this.point(null));
    svg.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
      if (!step || !this.bins) return;
      event.preventDefault();
      const last = this.bins.count - 1;
      this.point(Math.min(last, Math.max(0, (this.bin ?? last + 1) + step)));
    });
    return chart;
  }

  // Shows a target, or none.
  show(target) {
    this.target = target;
    this.data = null;
    this.bin = null;
    this.place.hidden = target === null;
    if (target === null) return;
    setText(this.title, `History of ${clean(target)}`);
    setText(this.message, "Loading.");
    this.draw();
    this.askedAt = performance.now();
    this.load();
  }

  // Asks the server again if the numbers are old. The page calls it every second while it is not paused.
  refresh() {
    if (this.target === null || this.isAsking || performance.now() - this.askedAt < REFRESH_MS) return;
    this.askedAt = performance.now();
    this.load();
  }

  async load() {
    const target = this.target;
    this.asked += 1;
    const asked = this.asked;
    this.isAsking = true;
    let data = null;
    let message = "";
    try {
      const signal = AbortSignal.timeout(REQUEST_TIMEOUT_MS);
      const response = await fetch(`api/history?target=${encodeURIComponent(target)}`, { signal });
      const answer = await response.json();
      if (response.ok) data = answer;
      else message = clean(answer.error);
    } catch {
      message = "The history could not be read; the page tries again.";
    }
    // The person may have chosen another target meanwhile.
    if (asked !== this.asked) return;
    this.isAsking = false;
    this.data = data ?? this.data;
    setText(this.message, message || (hasRows(this.data) ? "" : "No requests yet."));
    this.draw();
  }

  draw() {
    if (this.target === null) return;
    this.bins = this.data && binned(this.data, this.range);
    for (const chart of this.charts) {
      chart.figure.hidden = !this.bins;
      if (!this.bins) continue;
      const series = chart.seriesOf(this.bins);
      chart.drawing = drawChart(chart.svg, {
        ...this.bins, series, stacked: chart.isStacked, format: chart.format, clock, height: CHART_HEIGHT,
      });
      chart.series = series;
      showLegend(chart.legend, series);
    }
    this.point(this.bin);
  }

  // Marks a bin in all charts and writes down its values.
  point(bin) {
    this.bin = bin;
    if (!this.bins) {
      setText(this.readout, "");
      return;
    }
    this.charts.forEach(chart => chart.drawing.point(bin));
    if (bin === null) {
      setText(this.readout, "Point at a chart, or use the arrow keys on it, to read its values.");
      return;
    }
    const { from, step } = this.bins;
    const values = this.charts.flatMap(({ series, format }) =>
      series.filter(({ values }) => values[bin] > 0).map(({ label, values }) => `${label} ${format(values[bin])}`));
    const span = step > 1 ? `${clock(from + bin * step)} to ${clock(from + (bin + 1) * step)}` : clock(from + bin * step);
    setText(this.readout, `${span}: ${values.join(", ") || "no requests"}`);
  }
}

const line = (label, className, values) => ({ label, className: `line-${className}`, values });

function hasRows(data) {
  return list(data?.seconds).length > 0 || list(data?.minutes).length > 0;
}

function showLegend(legend, series) {
  const shown = series.map(({ label }) => label).join();
  if (legend.dataset.shown === shown) return;
  legend.dataset.shown = shown;
  legend.replaceChildren(...series.map(({ label, className }) => {
    const sample = className
      ? drawn("svg", { class: "swatch", width: 22, height: 12, "aria-hidden": "true" },
        drawn("line", { class: `line ${className}`, x1: 0, x2: 22, y1: 6, y2: 6 }))
      : swatch(label);
    return element("span", {}, sample, clean(label));
  }));
}

// The rows of a range, added up in bins of equal length. Rates count spans without requests as zero, except before the first row, of
// which nothing is known. The mean time of a request exists only where there were requests.
function binned(data, { seconds, rows, unit }) {
  const columns = list(data.columns).map(String);
  const now = numeric(data.now);
  if (Number.isNaN(now) || columns.length === 0) return null;
  const step = Math.ceil(seconds / unit / BINS_MAX) * unit;
  const count = Math.floor(seconds / step);
  // Bins begin at multiples of their length, so that they do not change while time goes on.
  const from = (Math.floor(now / step) + 1 - count) * step;
  const sums = columns.map(() => new Float64Array(count));
  const time = columns.indexOf("time");
  // The second or minute that is going on has not all its requests yet.
  const end = Math.floor(now / unit) * unit;
  let first = Infinity;
  for (const row of list(data[rows])) {
    const bin = Math.floor((numeric(row?.[time]) - from) / step);
    if (bin < first) first = bin;
    if (!(bin >= 0 && bin < count && numeric(row[time]) < end)) continue;
    sums.forEach((sum, column) => (sum[bin] += numeric(row[column]) || 0));
  }
  const sumOf = name => sums[columns.indexOf(name)] ?? new Float64Array(count);
  // The part of the last bin that is over.
  const lengthOf = bin => Math.min(step, end - (from + bin * step));
  const rate = name => Array.from(sumOf(name), (sum, bin) => (bin < first || lengthOf(bin) <= 0 ? NaN : sum / lengthOf(bin)));
  const requests = sumOf("requests");
  const names = inOrder(columns.filter(name => !["time", "requests", "read_bytes", "write_bytes"].includes(name)));
  const parts = names
    .filter(name => sumOf(name).some(sum => sum > 0))
    .map(name => {
      const values = Array.from(sumOf(name), (sum, bin) => (requests[bin] > 0 ? sum / requests[bin] / 1000 : NaN));
      return { label: name, values, fill: fillOf(name) };
    });
  return { from, step, count, requests: rate("requests"), read: rate("read_bytes"), written: rate("write_bytes"), parts };
}
