// Tables of things with rates, whose rows stay the same elements while their numbers change, so that a person can read, select and
// tab through them.

import { bytesPerSecond, clean, count, element, list, milliseconds, numeric, percent, setText, whole } from "./text.js";
import { makeBar, setBar } from "./parts.js";

// Rows that a table shows before somebody asks for all.
const ROWS_SHOWN = 20;
// Rows change places at most this often, and never below a pointer or a focus.
const SORT_EVERY_MS = 5000;

const NAME = { title: "Name", key: "name", kind: "text" };
const RATES = [
  { title: "Requests/s", key: "requests_per_s", kind: "number", format: count },
  { title: "Read", key: "read_bytes_per_s", kind: "number", format: bytesPerSecond },
  { title: "Written", key: "write_bytes_per_s", kind: "number", format: bytesPerSecond },
  { title: "Latency", key: "latency_ms", kind: "number", format: milliseconds },
  { title: "Where the time goes", key: "parts_ms", kind: "parts" },
];

// The columns of each table. A number that the server does not know is shown as a dash.
export const COLUMNS = {
  targets: [
    { ...NAME, title: "Target", kind: "choice" },
    { title: "Health", key: "health", kind: "health" },
    ...RATES,
    { title: "Under way", key: "under_way", kind: "number", format: whole },
    { title: "Windows", key: "windows_rpcs", kind: "number", format: whole },
    { title: "Clients", key: "clients", kind: "number", format: whole },
    { title: "Space used", key: "used_percent", kind: "meter" },
  ],
  clients: [{ ...NAME, title: "Client" }, { title: "NID", key: "nid", kind: "text" }, ...RATES],
  jobs: [{ ...NAME, title: "Job" }, ...RATES],
  operations: [{ ...NAME, title: "Operation" }, ...RATES],
};

// A cell of each kind: its element, and how it shows a value.
const CELLS = {
  text: () => cell("text", (td, value) => setText(td, clean(value))),
  number: ({ format }) => cell("number", (td, value) => setText(td, format(value))),
  health: () => {
    const word = element("span", { class: "health" });
    return cell("text", (_, value) => {
      setText(word, clean(value) || "unknown");
      word.classList.toggle("sound", value === "healthy");
    }, word);
  },
  parts: () => {
    const bar = makeBar();
    return cell("wide", (_, value) => setBar(bar, value), bar.element);
  },
  meter: () => {
    const meter = element("meter", { min: 0, max: 100, high: 90, "aria-hidden": "true" });
    const text = element("span");
    return cell("number", (_, value) => {
      meter.value = numeric(value) || 0;
      setText(text, percent(value));
    }, meter, text);
  },
  choice: ({ choose }) => {
    const button = element("button", { type: "button", class: "choice", "aria-expanded": "false" });
    let name;
    button.addEventListener("click", () => choose(name));
    return cell("text", (_, value) => {
      name = String(value ?? "");
      setText(button, clean(value));
    }, button);
  },
};

function cell(className, show, ...children) {
  const td = element("td", { class: className, role: "cell" }, ...children);
  return { td, show: value => show(td, value) };
}

// A table in `place`. `options.sort` is the key that orders the rows at first, `options.choose` is called with a chosen row's name.
export class Table {
  constructor(place, columns, { sort, choose, empty }) {
    this.columns = columns.map(column => ({ ...column, choose }));
    this.sort = { key: sort, descending: columns.find(column => column.key === sort).kind === "number" };
    this.rows = new Map();
    this.order = [];
    this.data = new Map();
    this.sortedAt = -Infinity;
    this.showsAll = false;
    this.empty = element("p", { class: "empty" }, empty);
    this.more = element("button", { type: "button", class: "more", hidden: true });
    this.more.addEventListener("click", () => {
      this.showsAll = !this.showsAll;
      this.render();
    });
    this.body = element("tbody", { role: "rowgroup" });
    this.head = element("tr", { role: "row" }, ...this.columns.map(column => this.makeHeading(column)));
    // The roles are those of the elements: on a narrow screen they are laid out as blocks, and would lose them.
    this.table = element("table", { role: "table", "aria-labelledby": place.id.replace("-table", "-title") },
      element("thead", { role: "rowgroup" }, this.head), this.body);
    place.replaceChildren(this.table, this.empty, this.more);
    this.markSorted();
  }

  makeHeading(column) {
    const isText = ["text", "choice", "health"].includes(column.kind);
    const heading = element("th", { scope: "col", role: "columnheader", class: isText ? "text" : column.kind });
    if (column.kind === "parts") {
      heading.append(column.title);
      return heading;
    }
    const button = element("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      const same = this.sort.key === column.key;
      this.sort = { key: column.key, descending: same ? !this.sort.descending : !isText };
      this.markSorted();
      this.arrange();
      this.render();
    });
    heading.append(button);
    return heading;
  }

  markSorted() {
    this.columns.forEach((column, at) => {
      const heading = this.head.children[at];
      if (column.key !== this.sort.key) heading.removeAttribute("aria-sort");
      else heading.setAttribute("aria-sort", this.sort.descending ? "descending" : "ascending");
    });
  }

  // Shows other numbers.
  update(items) {
    this.data = new Map();
    for (const item of list(items)) {
      if (item === null || typeof item !== "object") continue;
      const name = JSON.stringify([item.name, item.nid]);
      let key = name;
      for (let copy = 2; this.data.has(key); copy += 1) key = `${name} ${copy}`;
      this.data.set(key, item);
    }
    const isRead = this.body.matches(":hover") || this.body.contains(document.activeElement);
    if (this.order.length === 0 || (!isRead && performance.now() - this.sortedAt > SORT_EVERY_MS)) {
      this.arrange();
    } else {
      this.order = this.order.filter(key => this.data.has(key));
      const known = new Set(this.order);
      this.order.push(...[...this.data.keys()].filter(key => !known.has(key)));
    }
    this.render();
  }

  arrange() {
    const { key, descending } = this.sort;
    const value = at => this.data.get(at)[key];
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (typeof x === "number" || typeof y === "number") {
        // Unknown numbers last, whatever the order.
        const [p, q] = [numeric(x), numeric(y)];
        if (Number.isNaN(p) || Number.isNaN(q)) return Number.isNaN(p) - Number.isNaN(q);
        return descending ? q - p : p - q;
      }
      const order = String(x ?? "").localeCompare(String(y ?? ""), "en", { numeric: true });
      return descending ? -order : order;
    };
    this.order = [...this.data.keys()].sort(compare);
    this.sortedAt = performance.now();
  }

  render() {
    const shown = this.showsAll ? this.order : this.order.slice(0, ROWS_SHOWN);
    for (const [key, row] of this.rows) {
      if (!this.data.has(key)) {
        row.tr.remove();
        this.rows.delete(key);
      }
    }
    shown.forEach((key, at) => {
      const row = this.rows.get(key) ?? this.makeRow(key);
      const item = this.data.get(key);
      row.cells.forEach(({ show }, column) => show(item[this.columns[column].key]));
      // Moving an element that is in its place would take its focus away.
      if (this.body.children[at] !== row.tr) this.body.insertBefore(row.tr, this.body.children[at] ?? null);
    });
    while (this.body.children.length > shown.length) this.body.lastChild.remove();
    this.table.hidden = shown.length === 0;
    this.empty.hidden = shown.length > 0;
    this.more.hidden = this.order.length <= ROWS_SHOWN;
    setText(this.more, this.showsAll ? `Show the first ${ROWS_SHOWN} only` : `Show all ${this.order.length.toLocaleString("en-US")}`);
  }

  makeRow(key) {
    const cells = this.columns.map(column => {
      const made = CELLS[column.kind](column);
      made.td.dataset.title = column.title;
      return made;
    });
    const row = { tr: element("tr", { role: "row" }, ...cells.map(({ td }) => td)), cells };
    this.rows.set(key, row);
    return row;
  }

  // Marks the row of a name, or none.
  mark(name) {
    for (const [key, { tr }] of this.rows) {
      const isMarked = name !== null && this.data.get(key)?.name === name;
      tr.classList.toggle("chosen", isMarked);
      tr.querySelector(".choice")?.setAttribute("aria-expanded", String(isMarked));
    }
  }
}
