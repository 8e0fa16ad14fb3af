// Along each feature and slice: what is wrong in its bins, with the selected rows beside.
const KINDS = {
  bias: ["target less prediction", 0],
  level: ["level of the PIT (0 if right)", 0],
  spread: ["targets' spread / predicted spread", 1],
  skew: ["skew of the PIT (0 if right)", 0],
  tails: ["tails of the PIT (0 if right)", 0],
  ratio: ["actual / expected", 1],
  difference: ["mean difference of the score", 0],
};
const POLYNOMIALS = [
  (v) => Math.sqrt(3) * v,
  (v) => (Math.sqrt(5) * (3 * v * v - 1)) / 2,
  (v) => (Math.sqrt(7) * (5 * v ** 3 - 3 * v)) / 2,
  (v) => (3 * (35 * v ** 4 - 30 * v * v + 3)) / 8,
];
let along = null;

function binsOfRows(feature) {
  const column = columnOf(feature.column || feature.name);
  if (!column) return null;
  const found = new Int16Array(rows).fill(-1), { at } = column;
  if (feature.edges && column.kind === "number") {
    const edges = feature.edges.map(Math.fround), missing = feature.bins.length - 1;
    for (let row = 0; row < rows; row++) {
      let bin = 0;
      while (bin < edges.length && at[row] >= edges[bin]) bin++;
      found[row] = Number.isFinite(at[row]) ? bin : missing;
    }
    return found;
  }
  const place = new Map(feature.bins.map((name, bin) => [column.kind === "number" && name !== "missing" ? Math.fround(Number(name)) : name, bin]));
  for (let row = 0; row < rows; row++) found[row] = place.get(column.kind === "number" ? (Number.isFinite(at[row]) ? at[row] : "missing") : column.values[at[row]]) ?? -1;
  return found;
}
function meansOf(values, bins, groups) {
  const sum = new Float64Array(groups), n = new Float64Array(groups);
  for (let row = 0; row < rows; row++) {
    if (!selected.mask[row] || bins[row] < 0) continue;
    sum[bins[row]] += values[row];
    n[bins[row]]++;
  }
  return Array.from(n, (count, bin) => (count >= 5 ? sum[bin] / count : NaN));
}
// Of the selected rows the same numbers as of all; the spread is that of errors over predicted ones, close to the factor.
function besides(feature, bins) {
  if (!selected.mask || !bins) return {};
  if (data.score) return { difference: meansOf(columns.get("difference").at, bins, feature.bins.length) };
  const target = columns.get("target"), mean = columns.get("mean"), std = columns.get("std"), pit = columns.get("pit");
  if (!target || !mean || !std || !pit) return {};
  const sums = { n: [], bias: [], level: [], spread: [], skew: [], tails: [], y: [], m: [], z: [] };
  for (const name of Object.keys(sums)) sums[name] = new Float64Array(feature.bins.length);
  for (let row = 0; row < rows; row++) {
    const bin = bins[row];
    if (!selected.mask[row] || bin < 0) continue;
    const error = target.at[row] - mean.at[row], v = 2 * pit.at[row] - 1, z = error / std.at[row];
    sums.n[bin]++;
    sums.y[bin] += target.at[row];
    sums.m[bin] += mean.at[row];
    sums.bias[bin] += error;
    sums.level[bin] += POLYNOMIALS[0](v);
    sums.z[bin] += z;
    sums.spread[bin] += z * z;
    sums.skew[bin] += POLYNOMIALS[2](v);
    sums.tails[bin] += POLYNOMIALS[3](v);
  }
  const each = (compute) => Array.from(sums.n, (n, bin) => (n >= 5 ? compute(bin, n) : NaN));
  return {
    bias: each((bin, n) => sums.bias[bin] / n),
    level: each((bin, n) => sums.level[bin] / n),
    spread: feature.level ? undefined : each((bin, n) => Math.sqrt(Math.max(0, sums.spread[bin] / n - (sums.z[bin] / n) ** 2))),
    skew: each((bin, n) => sums.skew[bin] / n),
    tails: each((bin, n) => sums.tails[bin] / n),
    ratio: each((bin) => sums.y[bin] / sums.m[bin]),
  };
}
// One number of one feature, bin by bin.
function panel(feature, kind, bins, beside, title) {
  const box = document.createElement("div"), all = feature.rows.reduce((a, b) => a + b, 0), right = KINDS[kind][1];
  const pick = (bin) => bins && select(Uint8Array.from(bins, (each) => (each === bin ? 1 : 0)), `${feature.name} ${feature.bins[bin]}`);
  binned(box, { title, right, described: `By ${feature.name}`, bins: feature.bins, band: feature[kind], rows: feature.rows, all, beside: beside[kind], pick });
  return box;
}
const DIFFERENCES = 8;
function drawDifferences() {
  const panels = data.along.slice(0, DIFFERENCES).map((feature) => {
    const bins = binsOfRows(feature);
    return panel(feature, "difference", bins, besides(feature, bins), `by ${feature.name}`);
  });
  byId("along").replaceChildren(...panels);
}
function drawAlong() {
  if (data.score) return drawDifferences();
  if (!along) return;
  const bins = binsOfRows(along), beside = besides(along, bins);
  const kinds = [along.level ? "level" : along.ratio ? "ratio" : "bias", "spread", "skew", "tails"];
  byId("along").classList.add("four");
  byId("along").replaceChildren(...kinds.map((kind) => panel(along, kind, bins, beside, KINDS[kind][0])));
}
function startAlong() {
  if (!byId("along")) return;
  const box = byId("along-feature");
  along = data.along[0] || null;
  if (box) {
    box.append(...data.along.map((each, k) => new Option(`${each.name} (explains ${share(each.explained, 1)})`, k)));
    box.addEventListener("change", () => {
      along = data.along[box.value];
      drawAlong();
    });
  }
  listeners.push(drawAlong);
}
function startRange() {
  const box = byId("range-column");
  if (!box) return;
  const low = byId("range-low"), high = byId("range-high"), value = byId("range-value");
  for (const column of columns.values()) box.append(new Option(column.label, column.name));
  const offer = () => {
    const column = columns.get(box.value), isNumber = column.kind === "number";
    low.parentElement.hidden = high.parentElement.hidden = !isNumber;
    value.parentElement.hidden = isNumber;
    if (!isNumber) value.replaceChildren(...column.values.map((each) => new Option(each || "none found", each)));
  };
  box.addEventListener("change", offer);
  offer();
  byId("range").addEventListener("submit", (event) => {
    event.preventDefault();
    const column = columns.get(box.value), condition = { column: box.value };
    if (column.kind === "category") condition.value = value.value;
    else {
      const least = low.value === "" ? -Infinity : Number(low.value), most = high.value === "" ? Infinity : Number(high.value);
      const mask = Uint8Array.from(column.at, (each) => (each >= least && each <= most ? 1 : 0));
      return select(mask, `${column.label} ${low.value === "" ? "" : `from ${low.value} `}${high.value === "" ? "" : `up to ${high.value}`}`.trim());
    }
    select(maskOf({ any: [[condition]] }), `${column.label} ${value.value || "none found"}`);
  });
}
