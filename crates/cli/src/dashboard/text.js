// Text and numbers for people, and elements that show them. Everything from the server passes through here: names of jobs and clients
// are whatever somebody chose, so they only ever become text, never markup.

const TEXT_LENGTH_MAX = 300;
// Control characters, and characters that are invisible or reorder the text around them.
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

// A text from outside, on one line, with a mark in place of every character that could hide or reorder something.
export function clean(value) {
  const text = String(value ?? "").replace(INVISIBLE, "\ufffd");
  const characters = [...text.slice(0, 2 * TEXT_LENGTH_MAX)];
  return characters.length > TEXT_LENGTH_MAX ? characters.slice(0, TEXT_LENGTH_MAX).join("") + "…" : text;
}

// A list from the server; anything else counts as an empty one.
export const list = value => (Array.isArray(value) ? value : []);

// A number from the server; NaN if it is none. The sum makes a zero without a sign.
export const numeric = value => (typeof value === "number" && Number.isFinite(value) ? value + 0 : NaN);

const NONE = "–";

// Three digits that mean something, with a unit of thousands: 0, 0.4, 12.3, 1,234, 12.3 k.
export function count(value) {
  const n = numeric(value);
  if (Number.isNaN(n)) return NONE;
  if (n >= 10_000) return scaled(n, ["", " k", " M", " G", " T"]);
  if (n >= 1000) return Math.round(n).toLocaleString("en-US");
  return digits(n);
}

export function bytesPerSecond(value) {
  const n = numeric(value);
  return Number.isNaN(n) ? NONE : scaled(n, [" B/s", " kB/s", " MB/s", " GB/s", " TB/s", " PB/s"]);
}

export function milliseconds(value) {
  const n = numeric(value);
  if (Number.isNaN(n)) return NONE;
  if (n === 0) return "0 ms";
  if (n < 1) return `${digits(n * 1000)} µs`;
  return n < 1000 ? `${digits(n)} ms` : `${digits(n / 1000)} s`;
}

export function percent(value) {
  const n = numeric(value);
  return Number.isNaN(n) ? NONE : `${digits(n)} %`;
}

// A whole number of things that are counted.
export function whole(value) {
  const n = numeric(value);
  return Number.isNaN(n) ? NONE : Math.round(n).toLocaleString("en-US");
}

function scaled(n, units) {
  let unit = 0;
  while (n >= 999.5 && unit + 1 < units.length) {
    n /= 1000;
    unit += 1;
  }
  return digits(n) + units[unit];
}

function digits(n) {
  if (n === 0) return "0";
  if (n < 0.05) return "<0.1";
  return n < 99.95 ? String(Number(n.toFixed(1))) : String(Math.round(n));
}

// The time of day of seconds since 1970.
export function clock(seconds) {
  const at = new Date(seconds * 1000);
  return Number.isNaN(at.getTime()) ? "" : at.toTimeString().slice(0, 8);
}

// Makes an element. Attributes come from this program only; texts may come from anywhere.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  setAttributes(made, attributes);
  made.append(...children);
  return made;
}

// Makes an element of a drawing.
export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(made, attributes);
  made.append(...children);
  return made;
}

function setAttributes(made, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
}

// Sets the text of an element if it is another one. An element that stays as it is keeps a person's selection, and is not read again.
export function setText(of, text) {
  if (of.textContent !== text) of.textContent = text;
}
