// The rows of the page, and which of them are selected: every view listens, any may select.
const everything = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function bytes(text) {
  const raw = atob(text), found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
  return found;
}
const floats = (packed) => new Float32Array(bytes(packed.f32).buffer);

// What is looked at: the version, or one of the pairs of a comparison.
let data = {}, rows = 0;
const columns = new Map();
function load(source) {
  data = source;
  rows = data.rows ? data.rows.shown : 0;
  columns.clear();
  for (const column of data.columns || []) {
    column.at = column.kind === "number" ? floats(column) : bytes(column.u8);
    columns.set(column.name, column);
  }
  opened.row = -1;
}
const opened = { row: -1 };
const columnOf = (name) => columns.get(name) || columns.get("slice:" + name);

function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(digits - 2);
  return Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 8, useGrouping: "min2" });
}
const whole = (value) => Math.round(value).toLocaleString("en-US");
function share(part, all) {
  const value = (100 * part) / all, apart = Math.min(value, 100 - value), shown = Number(value.toFixed(apart < 0.95 ? 2 : apart < 4.95 ? 1 : 0));
  return shown === 0 && part ? "under 0.01 %" : shown === 100 && part < all ? "over 99.99 %" : `${shown} %`;
}
function text(column, row) {
  return column.kind === "number" ? number(column.at[row]) : column.values[column.at[row]];
}

// A selection is {any: [[condition, ...], ...]}, see report/evaluation.py.
function meets(condition) {
  const column = columnOf(condition.column);
  if (!column) return () => false;
  const { at } = column;
  if (column.kind === "category") {
    const wanted = column.values.map((value) => ("not" in condition ? value !== condition.not : value === condition.value));
    return (row) => wanted[at[row]];
  }
  const low = condition.above ?? -Infinity, high = condition.upto ?? Infinity;
  if ("value" in condition) return (row) => at[row] === Math.fround(Number(condition.value));
  return low === -Infinity ? (row) => at[row] <= high : (row) => at[row] > low && at[row] <= high;
}
function maskOf(selection) {
  const mask = new Uint8Array(rows);
  for (const conditions of selection.any) {
    const tests = conditions.map(meets);
    for (let row = 0; row < rows; row++) if (tests.every((test) => test(row))) mask[row] = 1;
  }
  return mask;
}

const selected = { mask: null, count: rows, words: "" };
const listeners = [];
function select(mask, words, source = null) {
  selected.mask = mask;
  selected.count = mask ? mask.reduce((sum, one) => sum + one, 0) : rows;
  selected.words = words;
  for (const button of document.querySelectorAll("[data-select]")) button.setAttribute("aria-pressed", String(button === source));
  const bar = byId("selected");
  bar.classList.toggle("some", mask !== null);
  const sampled = data.rows.shown < data.rows.valid ? ` shown of ${whole(data.rows.valid)}` : "";
  byId("selected-words").textContent = mask
    ? `Selected: ${words}: ${whole(selected.count)} rows (${share(selected.count, rows)} of ${whole(rows)}${sampled})`
    : `Nothing selected: all ${whole(rows)} rows${sampled}`;
  byId("clear").hidden = mask === null;
  for (const listen of listeners) listen();
}
const isSelected = (row) => selected.mask === null || selected.mask[row] === 1;
function selectedRows() {
  const found = [];
  for (let row = 0; row < rows; row++) if (isSelected(row)) found.push(row);
  return found;
}

function shortened(said, most = 90) {
  const plain = said.trim().replace(/\.$/, "");
  return plain.length > most ? `${plain.slice(0, most - 1)}…` : plain;
}
function startSelection() {
  for (const button of document.querySelectorAll("[data-select]")) {
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      if (button.getAttribute("aria-pressed") === "true") return select(null, "");
      select(maskOf(JSON.parse(button.dataset.select)), shortened(button.dataset.words || button.textContent), button);
    });
  }
  byId("clear").addEventListener("click", () => select(null, ""));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") select(null, "");
  });
}

// Colours are the style sheet's, so that drawings follow light, dark and print.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches;
