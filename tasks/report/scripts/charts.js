// SVG drawings: axes, bars with bands, lines. Each has a title and a description, for those who do not see it.
const SPACE = "http://www.w3.org/2000/svg";
function svg(name, attributes = {}, ...inside) {
  const found = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.append(...inside);
  return found;
}
function words(x, y, said, attributes = {}) {
  return svg("text", { x, y, ...attributes }, String(said));
}
function ticks(low, high, wanted = 4) {
  const raw = (high - low) / wanted, size = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 5, 10].map((k) => k * size).find((k) => k >= raw) || size;
  const found = [];
  for (let k = Math.ceil(low / unit); k * unit <= high + 1e-9 * unit; k++) found.push(Number((k * unit).toPrecision(10)));
  return found;
}
const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

function frame(box, title, described, width, height) {
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${described}` });
  box.replaceChildren(drawing);
  return drawing;
}
function sideAxis(drawing, y, low, high, left, right) {
  for (const tick of ticks(low, high)) {
    drawing.append(svg("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), stroke: "var(--line)" }));
    drawing.append(words(left - 5, y(tick) + 4, number(tick, 3), { "text-anchor": "end", class: "muted" }));
  }
}

// One number in each bin: dots with intervals, the band of a version that is right, and the selected rows beside.
function binned(box, spec) {
  const width = 380, height = 236, left = 50, right = width - 6, top = 26, bottom = height - 62;
  const drawing = frame(box, spec.title, spec.described || "", width, height), k = spec.bins.length;
  const [value, lows, highs, rightLow, rightHigh] = spec.band;
  const every = [...value, ...lows, ...highs, ...rightLow, ...rightHigh, spec.right, ...(spec.beside || [])].filter(Number.isFinite);
  let low = Math.min(...every), high = Math.max(...every);
  const room = 0.06 * (high - low || 1);
  [low, high] = [low - room, high + room];
  const y = scale(low, high, bottom, top), x = scale(0, k, left + 4, right), step = (right - left - 4) / k;
  // Cut in its middle: a feature's name says at its end which one it is.
  drawing.append(words(2, 14, spec.title.length > 56 ? `${spec.title.slice(0, 30)}…${spec.title.slice(-25)}` : spec.title, { "font-weight": 600 }));
  sideAxis(drawing, y, low, high, left, right);
  drawing.append(svg("line", { x1: left, x2: right, y1: y(spec.right), y2: y(spec.right), stroke: "var(--muted)" }));
  spec.bins.forEach((name, bin) => {
    const middle = x(bin) + step / 2, group = svg("g", { class: "bin" });
    // What is said of a part is said of a version that all tests together call wrong: of a right one 1 of 20 bins is off.
    const beyond = data.wrong !== false && (lows[bin] > spec.right || highs[bin] < spec.right);
    const shade = beyond ? "var(--mark)" : "var(--blue)";
    if (Number.isFinite(rightLow[bin]))
      group.append(svg("rect", { x: x(bin) + 0.1 * step, width: 0.8 * step, y: y(rightHigh[bin]), height: Math.max(1, y(rightLow[bin]) - y(rightHigh[bin])), fill: "var(--band)", opacity: 0.55 }));
    if (Number.isFinite(lows[bin])) group.append(svg("line", { x1: middle, x2: middle, y1: y(lows[bin]), y2: y(highs[bin]), stroke: shade, "stroke-width": 2 }));
    if (Number.isFinite(value[bin])) group.append(svg(beyond ? "rect" : "circle", beyond ? { x: middle - 4, y: y(value[bin]) - 4, width: 8, height: 8, fill: shade } : { cx: middle, cy: y(value[bin]), r: 4, fill: shade }));
    if (spec.beside && Number.isFinite(spec.beside[bin])) group.append(svg("circle", { cx: middle, cy: y(spec.beside[bin]), r: 5.5, fill: "none", stroke: "var(--ink)", "stroke-width": 2 }));
    const said = `${name}: ${number(value[bin], 3)} (${number(lows[bin], 3)} to ${number(highs[bin], 3)}); right: ${number(rightLow[bin], 3)} to ${number(rightHigh[bin], 3)}; ${whole(spec.rows[bin])} rows (${share(spec.rows[bin], spec.all)})`;
    group.append(svg("rect", { x: x(bin), width: step, y: top, height: bottom - top + 50, fill: "transparent" }), svg("title", {}, said));
    if (spec.pick) {
      group.setAttribute("tabindex", 0);
      group.setAttribute("role", "button");
      group.setAttribute("aria-label", `Select ${said}`);
      group.style.cursor = "pointer";
      group.addEventListener("click", () => spec.pick(bin));
      group.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), spec.pick(bin)));
    }
    const bar = (20 * spec.rows[bin]) / Math.max(...spec.rows);
    group.append(svg("rect", { x: x(bin) + 0.1 * step, width: 0.8 * step, y: height - bar, height: bar, fill: "var(--faint)" }));
    drawing.append(group);
  });
  binNames(drawing, spec.bins, x, step, bottom + 13);
  return drawing;
}
function binNames(drawing, bins, x, step, y) {
  const cut = (letters) => bins.map((name) => (name.length > letters ? name.slice(0, letters - 1) + "…" : name));
  const short = cut(22), room = Math.min(22, Math.floor((step - 1) / 6));
  // Below its own bin where half of the names and more are whole there: the middle one of four slices may be the wrong one.
  if (room > 2 && 2 * bins.filter((name) => name.length <= room).length >= bins.length) {
    cut(room).forEach((name, bin) => drawing.append(words(x(bin) + step / 2, y, name, { "text-anchor": "middle", class: "muted" })));
    return;
  }
  const ends = [0, bins.length - 1];
  drawing.append(words(x(0), y, short[ends[0]], { class: "muted" }));
  drawing.append(words(x(bins.length), y, short[ends[1]], { "text-anchor": "end", class: "muted" }));
  drawing.append(words(x(bins.length / 2), y + 14, `${bins.length} bins; bars below: share of rows`, { "text-anchor": "middle", class: "muted" }));
}

// The share of PIT values in each of equal bins, with the band of a version that is right.
function pitHistogram(box, counts) {
  const width = 380, height = 200, left = 50, right = width - 6, top = 26, bottom = height - 34, k = counts.length;
  const drawing = frame(box, "PIT histogram", "Flat if calibrated on average", width, height);
  const all = counts.reduce((a, b) => a + b, 0), even = 1 / k, reach = 1.96 * Math.sqrt((even * (1 - even)) / all);
  const density = counts.map((count) => (count / all) * k), most = Math.max(...density, (even + reach) * k) * 1.05;
  const y = scale(0, most, bottom, top), x = scale(0, k, left, right);
  drawing.append(words(2, 14, "PIT values: flat if right on average", { "font-weight": 600 }));
  sideAxis(drawing, y, 0, most, left, right);
  density.forEach((value, bin) => drawing.append(svg("rect", { x: x(bin) + 1, width: (right - left) / k - 2, y: y(value), height: bottom - y(value), fill: "var(--blue)" }, svg("title", {}, `${(bin / k).toFixed(2)} to ${((bin + 1) / k).toFixed(2)}: ${number(value, 3)}, ${whole(counts[bin])} rows`))));
  drawing.append(svg("rect", { x: left, width: right - left, y: y((even + reach) * k), height: y((even - reach) * k) - y((even + reach) * k), fill: "var(--ink)", opacity: 0.25 }));
  drawing.append(words(left, bottom + 14, "0", { class: "muted" }), words(right, bottom + 14, "1", { class: "muted", "text-anchor": "end" }));
  drawing.append(words((left + right) / 2, bottom + 28, "grey: where 95 of 100 right versions have each bar", { class: "muted", "text-anchor": "middle" }));
}
