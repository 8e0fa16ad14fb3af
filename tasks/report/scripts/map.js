// The map of the rows: two columns against each other, coloured by a third; lasso, click, or arrow keys.
const CATEGORIES = ["#d55e00", "#0072b2", "#e69f00", "#56b4e9", "#cc79a7", "#009e73", "#8c6bb1", "#999933", "#aa4499", "#44aa99"];
const RAMPS = {
  light: ["#d3d8de", "#e8c48a", "#f08c2e", "#c04a02", "#5a1a00"],
  dark: ["#323a44", "#6d4a22", "#b5651d", "#f59a3c", "#fff1c4"],
};
const SIGNED = { light: ["#0b559f", "#78a9d4", "#cfd4da", "#e39a55", "#8f3d00"], dark: ["#7cc3ff", "#2f6ea5", "#3a424c", "#a9601c", "#ffb365"] };
const BINS = 24;
const map = { x: null, y: null, by: null, cursor: -1, path: null };

function mapColumns() {
  const found = [];
  if (data.plane) {
    const at = floats(data.plane);
    for (let axis = 0; axis < Math.min(2, data.plane.width); axis++) {
      const values = new Float32Array(rows);
      for (let row = 0; row < rows; row++) values[row] = at[row * data.plane.width + axis];
      found.push({ name: `plane ${axis + 1}`, label: `embedding, component ${axis + 1}`, kind: "number", at: values });
    }
  }
  return [...found, ...columns.values()];
}
function firstAxes(choices) {
  const features = data.along.map((each) => each.name).filter((name) => data.features.includes(name));
  const along = features.map((name) => columns.get(name)).filter((column) => column && column.kind === "number");
  if (!data.images && along.length > 1) return along;
  const planes = choices.filter((column) => column.name.startsWith("plane"));
  return planes.length > 1 ? planes : [columns.get("mean") || columns.get("mean_second") || choices[0], columns.get("cce") || columns.get("difference") || choices[1]];
}
function firstColour() {
  if (data.colour) return columns.get(data.colour);
  const fault = columns.get("calibration_fault");
  if (fault && fault.at.some((code) => code > 0)) return fault;
  return columns.get("evidence") || columns.get("cce_excess") || columns.get("cce");
}
function range(column) {
  if (column.kind === "category") return [-0.5, column.values.length - 0.5];
  const known = Array.from(column.at).filter(Number.isFinite).sort((a, b) => a - b);
  if (!known.length) return [0, 1];
  const low = known[Math.floor(0.002 * known.length)], high = known[Math.ceil(0.998 * (known.length - 1))];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}
const scatter = (row) => ((Math.sin(row * 12.9898) * 43758.5453) % 1) * 0.35;
// Points of whole numbers lie on lines: moved a little, each is seen.
const isWhole = (column) => column.kind === "number" && column.at.every((value) => !Number.isFinite(value) || Number.isInteger(value)) && new Set(column.at).size <= 100;
function placed(column, from, to) {
  const [low, high] = range(column), at = scale(low, high, from, to), found = new Float32Array(rows);
  const [least, most] = from < to ? [from, to] : [to, from], moved = column.kind === "category" || isWhole(column), apart = from < to ? 0 : 7919;
  for (let row = 0; row < rows; row++) {
    const value = column.at[row] + (moved ? scatter(row + apart) : 0);
    found[row] = Number.isFinite(value) ? Math.min(most, Math.max(least, at(value))) : NaN;
  }
  return found;
}

function mix(stops, part) {
  const place = Math.min(0.9999, Math.max(0, part)) * (stops.length - 1), k = Math.floor(place), rest = place - k;
  const read = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  const a = read(stops[k]), b = read(stops[k + 1]);
  return `rgb(${a.map((v, i) => Math.round(v + rest * (b[i] - v))).join(",")})`;
}
function paints(column) {
  if (column.kind === "category") {
    const empty = column.values[0] === "" ? 1 : 0;
    const shades = column.values.map((value, k) => (value === "" ? colour("faint") : CATEGORIES[(k - empty) % CATEGORIES.length]));
    return { of: column.at, shades, stops: null };
  }
  let [low, high] = range(column);
  const signed = low < 0 && high > 0 && column.name !== "target" && column.name !== "mean";
  if (signed) [low, high] = [-Math.max(-low, high), Math.max(-low, high)];
  const stops = (signed ? SIGNED : RAMPS)[isDark() ? "dark" : "light"], of = new Uint8Array(rows);
  for (let row = 0; row < rows; row++) of[row] = Math.min(BINS - 1, Math.max(0, Math.floor((BINS * (column.at[row] - low)) / (high - low))));
  const shades = Array.from({ length: BINS }, (_, k) => mix(stops, (k + 0.5) / BINS));
  return { of, shades, stops, low, high, signed };
}

function drawMap() {
  const canvas = byId("map"), ratio = Math.min(2, devicePixelRatio || 1), width = canvas.clientWidth, height = canvas.clientHeight;
  map.width = width;
  if (width === 0) return; // MLflow's frame may begin without a size: drawn when it has one, see startMap
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  map.px = placed(map.x, 14, width - 14);
  map.py = placed(map.y, height - 14, 14);
  const pen = canvas.getContext("2d"), paint = paints(map.by), size = rows > 6000 ? 1.6 : rows > 1500 ? 2.2 : 3;
  pen.scale(ratio, ratio);
  pen.fillStyle = colour("paper");
  pen.fillRect(0, 0, width, height);
  const layers = paint.shades.map(() => []), faint = [];
  for (let row = 0; row < rows; row++) if (Number.isFinite(map.px[row] + map.py[row])) (isSelected(row) ? layers[paint.of[row]] : faint).push(row);
  const dots = (which, shade, radius) => {
    pen.fillStyle = shade;
    pen.beginPath();
    for (const row of which) {
      pen.moveTo(map.px[row] + radius, map.py[row]);
      pen.arc(map.px[row], map.py[row], radius, 0, 6.2832);
    }
    pen.fill();
  };
  pen.globalAlpha = 0.35;
  dots(faint, colour("faint"), 1.2);
  pen.globalAlpha = rows > 3000 ? 0.8 : 0.9;
  const order = layers.map((_, k) => k);
  if (paint.signed) order.sort((a, b) => Math.abs(a - BINS / 2) - Math.abs(b - BINS / 2));
  for (const k of order) dots(layers[k], paint.shades[k], selected.mask ? size + 0.6 : size);
  pen.globalAlpha = 1;
  if (opened.row >= 0) ring(pen, opened.row, colour("ink"));
  if (map.cursor >= 0 && map.cursor !== opened.row) ring(pen, map.cursor, colour("mark"));
  if (map.path) lasso(pen);
  drawLegend(paint);
}
function ring(pen, row, shade) {
  pen.strokeStyle = shade;
  pen.lineWidth = 2.5;
  pen.beginPath();
  pen.arc(map.px[row], map.py[row], 7, 0, 6.2832);
  pen.stroke();
}
function lasso(pen) {
  pen.strokeStyle = colour("mark");
  pen.lineWidth = 1.5;
  pen.setLineDash([4, 3]);
  pen.beginPath();
  map.path.forEach(([x, y], k) => (k ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.closePath();
  pen.stroke();
  pen.setLineDash([]);
}
function drawLegend(paint) {
  const box = byId("legend"), column = map.by;
  if (column.kind === "number") {
    const ramp = document.createElement("span");
    ramp.className = "ramp";
    ramp.style.background = `linear-gradient(to right, ${paint.stops.join(",")})`;
    box.replaceChildren(number(paint.low, 3), ramp, number(paint.high, 3), ` ${column.label}`);
    return;
  }
  const counts = new Array(column.values.length).fill(0);
  for (let row = 0; row < rows; row++) if (isSelected(row)) counts[column.at[row]]++;
  const shown = column.values.map((value, k) => [value, k]).filter(([, k]) => counts[k] > 0);
  box.replaceChildren(
    ...shown.slice(0, 14).map(([value, k]) => {
      const button = document.createElement("button"), swatch = document.createElement("span");
      swatch.className = "swatch";
      swatch.style.background = paint.shades[k];
      button.className = "link";
      button.type = "button";
      button.append(swatch, `${value || "none found"} (${whole(counts[k])})`);
      button.addEventListener("click", () => select(maskOf({ any: [[{ column: column.name, value }]] }), `${column.label}: ${value || "none found"}`));
      return button;
    }),
  );
}

function nearest(x, y, within) {
  let best = -1, least = within * within;
  for (let row = 0; row < rows; row++) {
    const d = (map.px[row] - x) ** 2 + (map.py[row] - y) ** 2;
    if (d < least && isSelected(row)) [best, least] = [row, d];
  }
  return best;
}
function inside(path, x, y) {
  let found = false;
  for (let i = 0, j = path.length - 1; i < path.length; j = i++) {
    const [xi, yi] = path[i], [xj, yj] = path[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) found = !found;
  }
  return found;
}
function endLasso(event) {
  const path = map.path;
  map.path = null;
  if (!path) return;
  const [x, y] = path[path.length - 1];
  if (path.length < 4 || Math.max(...path.map(([a, b]) => Math.hypot(a - path[0][0], b - path[0][1]))) < 8) {
    const row = nearest(x, y, 18);
    if (row >= 0) openRow(row);
    return drawMap();
  }
  const mask = new Uint8Array(rows);
  for (let row = 0; row < rows; row++) if (inside(path, map.px[row], map.py[row])) mask[row] = 1;
  if (event.shiftKey && selected.mask) selected.mask.forEach((one, row) => one && (mask[row] = 1));
  select(mask, "drawn on the map");
}
function step(dx, dy) {
  if (map.cursor < 0) map.cursor = opened.row >= 0 ? opened.row : selectedRows()[0] ?? -1;
  if (map.cursor < 0) return;
  let best = -1, least = Infinity;
  const x = map.px[map.cursor], y = map.py[map.cursor];
  for (let row = 0; row < rows; row++) {
    const along = (map.px[row] - x) * dx + (map.py[row] - y) * dy, across = Math.abs((map.px[row] - x) * dy) + Math.abs((map.py[row] - y) * dx);
    if (along > 2 && along + 2 * across < least && isSelected(row)) [best, least] = [row, along + 2 * across];
  }
  if (best >= 0) map.cursor = best;
  drawMap();
  byId("map-said").textContent = `Row ${data.numbers[map.cursor]}, ${map.by.label} ${text(map.by, map.cursor)}. Enter opens it.`;
}
function fillMap() {
  const choices = mapColumns();
  [map.x, map.y] = data.axes ? data.axes.map((name) => columns.get(name)) : firstAxes(choices);
  map.by = firstColour();
  map.cursor = -1;
  for (const [id, key] of [["map-x", "x"], ["map-y", "y"], ["map-by", "by"]]) {
    byId(id).replaceChildren(...choices.map((column, k) => new Option(column.label, k, false, column === map[key])));
    byId(id).onchange = (event) => {
      map[key] = choices[event.target.value];
      drawMap();
    };
  }
}
function startMap() {
  fillMap();
  const canvas = byId("map"), at = (event) => [event.offsetX, event.offsetY];
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    map.path = [at(event)];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!map.path) return;
    map.path.push(at(event));
    drawMap();
  });
  canvas.addEventListener("pointerup", endLasso);
  canvas.addEventListener("pointercancel", () => (map.path = null));
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (move) step(...move);
    else if (event.key === "Enter" && map.cursor >= 0) openRow(map.cursor);
    else return;
    event.preventDefault();
  });
  listeners.push(drawMap);
  for (const look of ["(prefers-color-scheme: dark)", "print"]) matchMedia(look).addEventListener("change", drawMap);
  // Not the window's resize: a sandboxed frame may get its size after its scripts ran, without that event.
  new ResizeObserver(() => canvas.clientWidth === map.width || drawMap()).observe(canvas);
}
