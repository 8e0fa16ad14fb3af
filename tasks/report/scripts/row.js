// One row: its picture or features, the predicted law with the target in it, the targets of its neighbours, its scores.
const NEIGHBOURS = 20;
const law = everything.law || {};
const lawParts = {};
for (const name of ["at", "mass", "first"]) if (law[name]) lawParts[name] = floats(law[name]);
const plane = everything.plane ? floats(everything.plane) : null;

function neighbours(row) {
  const near = [];
  let distance;
  if (plane) {
    const width = data.plane.width;
    distance = (other) => {
      let sum = 0;
      for (let k = 0; k < width; k++) sum += (plane[other * width + k] - plane[row * width + k]) ** 2;
      return sum;
    };
  } else return near;
  for (let other = 0; other < rows; other++) if (other !== row) near.push([distance(other), other]);
  near.sort((a, b) => a[0] - b[0]);
  return near.slice(0, NEIGHBOURS).map(([, other]) => other);
}

// The law as points [y, height]; bars for counts.
function shape(row) {
  const mean = columns.get("mean")?.at[row], std = columns.get("std")?.at[row];
  if (law.kind === "mass" && row < law.rows) {
    const bars = [];
    for (let k = 0; k < law.width; k++) bars.push([lawParts.first[row] + k, lawParts.mass[row * law.width + k]]);
    const least = 1e-3 * Math.max(...bars.map((bar) => bar[1]));
    return { bars: bars.filter((bar) => bar[1] > least), said: "predicted probability of each count" };
  }
  if (law.kind === "quantiles" && row < law.rows) {
    const levels = law.levels, q = levels.map((_, k) => lawParts.at[row * levels.length + k]), steps = [];
    const least = 1e-6 * (q[q.length - 1] - q[0] || 1);
    for (let k = 1; k < levels.length; k++) steps.push([q[k - 1], q[k], (levels[k] - levels[k - 1]) / Math.max(least, q[k] - q[k - 1])]);
    return { steps, said: "predicted density between quantiles at 21 levels" };
  }
  if (law.kind === "normal" && std > 0) {
    const curve = [];
    for (let k = -40; k <= 40; k++) curve.push([mean + (k / 10) * std, Math.exp(-0.5 * (k / 10) ** 2)]);
    return { curve, said: "predicted density" };
  }
  return Number.isFinite(mean) ? { mean, std, said: "predicted mean, and one predicted spread on either side" } : null;
}
function drawLaw(box, row) {
  const target = columns.get("target")?.at[row], found = shape(row), near = neighbours(row);
  if (!found || !Number.isFinite(target)) return box.replaceChildren();
  const targets = near.map((other) => columns.get("target").at[other]).filter(Number.isFinite);
  const width = 460, height = 205, left = 12, right = width - 12, top = 22, bottom = height - 70;
  const drawing = frame(box, "Predicted distribution of this row", `Target ${number(target)}`, width, height);
  const places = [target, ...targets];
  let most = 1;
  if (found.bars) places.push(...found.bars.map((bar) => bar[0])), (most = Math.max(...found.bars.map((bar) => bar[1])));
  else if (found.steps) {
    places.push(found.steps[0][0], found.steps[found.steps.length - 1][1]);
    most = Math.min(Math.max(...found.steps.map((each) => each[2])), 4 * found.steps.map((each) => each[2]).sort((a, b) => a - b)[Math.floor(0.6 * found.steps.length)]);
  } else if (found.curve) places.push(found.curve[0][0], found.curve[found.curve.length - 1][0]);
  else places.push(found.mean - 2 * found.std, found.mean + 2 * found.std);
  let low = Math.min(...places), high = Math.max(...places);
  const room = 0.04 * (high - low || 1);
  const x = scale(low - room, high + room, left, right), y = scale(0, most * 1.05, bottom, top), up = (value) => Math.max(top, y(value));
  if (found.bars) {
    const thick = Math.max(1.5, Math.min(26, 0.8 * (x(1) - x(0))));
    for (const [at, mass] of found.bars) drawing.append(svg("rect", { x: x(at) - thick / 2, width: thick, y: y(mass), height: bottom - y(mass), fill: "var(--blue)", opacity: at === target ? 1 : 0.6 }, svg("title", {}, `${number(at)}: ${number(mass, 3)}`)));
  } else if (found.steps) {
    for (const [a, b, high] of found.steps) drawing.append(svg("rect", { x: x(a), width: Math.max(0.5, x(b) - x(a)), y: up(high), height: bottom - up(high), fill: "var(--blue)", opacity: 0.6 }));
  } else if (found.curve) {
    const points = found.curve.map(([at, value]) => `${x(at)},${y(value)}`).join(" ");
    drawing.append(svg("polygon", { points: `${x(found.curve[0][0])},${bottom} ${points} ${x(found.curve[found.curve.length - 1][0])},${bottom}`, fill: "var(--blue)", opacity: 0.5 }));
  } else {
    drawing.append(svg("line", { x1: x(found.mean - found.std), x2: x(found.mean + found.std), y1: bottom - 20, y2: bottom - 20, stroke: "var(--blue)", "stroke-width": 8, opacity: 0.6 }));
    drawing.append(svg("circle", { cx: x(found.mean), cy: bottom - 20, r: 6, fill: "var(--blue)" }));
  }
  drawing.append(svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, stroke: "var(--muted)" }));
  const marks = ticks(low, high, 5).filter((tick) => !found.bars || Number.isInteger(tick));
  for (const tick of marks) drawing.append(words(x(tick), bottom + 14, number(tick, 3), { "text-anchor": "middle", class: "muted" }));
  drawing.append(svg("line", { x1: x(target), x2: x(target), y1: top - 14, y2: bottom, stroke: "var(--mark)", "stroke-width": 3 }));
  const side = x(target) > width / 2 ? "end" : "start";
  drawing.append(words(x(target) + (side === "end" ? -6 : 6), top - 6, `target ${number(target)}`, { "text-anchor": side, "font-weight": 600 }));
  for (const other of targets) drawing.append(svg("line", { x1: x(other), x2: x(other), y1: bottom + 21, y2: bottom + 33, stroke: "var(--ink)", "stroke-width": 1.5, opacity: 0.7 }));
  if (targets.length) drawing.append(words(left, height - 20, `ticks: targets of the ${targets.length} rows nearest to it among those shown`, { class: "muted" }));
  drawing.append(words(left, height - 5, `blue: ${found.said}`, { class: "muted" }));
}

function openRow(row) {
  if (row < 0 || row >= rows) return;
  opened.row = map.cursor = row;
  byId("row-title").textContent = `Row ${data.numbers[row]}: ${data.keys[row]}`;
  const panel = byId("row"), shown = data.pictures[row], picture = data.images && shown;
  byId("row-text").textContent = data.images ? "" : shown || "";
  panel.classList.toggle("pictured", Boolean(picture));
  const image = byId("row-picture");
  image.hidden = !picture;
  if (picture) image.src = picture;
  const features = new Set(data.features);
  const ordered = [...columns.values()].sort((a, b) => features.has(b.name) - features.has(a.name));
  const near = (column) => ["mean", "target", "cce"].indexOf(column.name);
  ordered.sort((a, b) => near(b) - near(a));
  const named = new Set(), once = ordered.filter(({ label }) => !named.has(label) && named.add(label));
  fillValues(once.slice(0, 44), row);
  drawLaw(byId("law"), row);
  drawMap();
}
