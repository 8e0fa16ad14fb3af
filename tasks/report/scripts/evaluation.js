// The report of one version: all of its views, started once.
function drawDeciles() {
  const box = byId("deciles");
  if (!box) return;
  const each = JSON.parse(box.dataset.deciles), of = (name) => each.map((one) => one[name]);
  const band = ["ratio", "low", "high", "null_low", "null_high"].map(of), counts = of("rows");
  const bins = each.map((one, k) => `${k + 1}`), all = counts.reduce((a, b) => a + b, 0);
  binned(box, { title: "actual / expected by tenth of the prediction, lowest first", right: 1, described: "", bins, band, rows: counts, all });
}
function metric(name) {
  const row = document.querySelector(`tr[data-metric="${name}"]`);
  return row ? Number(row.dataset.value) : NaN;
}
// CRPS = uncertainty - discrimination + miscalibration, one bar after the other.
function drawTerms(box) {
  const [uncertainty, discrimination, miscalibration] = ["uncertainty", "discrimination", "miscalibration"].map((part) => metric(`crps_${part}`));
  if (!Number.isFinite(uncertainty) || uncertainty <= 0) return;
  const width = 380, height = 200, left = 112, right = width - 70, total = uncertainty - discrimination + miscalibration;
  const drawing = frame(box, "CRPS taken apart", `Uncertainty ${number(uncertainty, 3)}, discrimination ${number(discrimination, 3)}, miscalibration ${number(miscalibration, 3)}`, width, height);
  const x = scale(0, 1.02 * Math.max(uncertainty, total), left, right), after = uncertainty - discrimination;
  drawing.append(words(2, 14, "CRPS taken apart", { "font-weight": 600 }));
  const bars = [
    ["without the input", 0, uncertainty, "var(--faint)", ""],
    ["discrimination", after, uncertainty, "var(--blue)", "-"],
    ["miscalibration", after, total, "var(--mark)", "+"],
    ["this version", 0, total, "var(--muted)", "= "],
  ];
  bars.forEach(([name, from, to, shade, sign], k) => {
    const y = 30 + 38 * k;
    drawing.append(words(left - 6, y + 17, name, { "text-anchor": "end" }));
    drawing.append(svg("rect", { x: x(from), width: Math.max(1.5, x(to) - x(from)), y, height: 26, fill: shade }));
    drawing.append(words(x(to) + 5, y + 17, sign + number(Math.abs(to - from), 3)));
  });
  drawing.append(words(2, height - 4, "little discrimination: useless; much miscalibration: recalibrate", { class: "muted" }));
}
// Pinball loss by level: of the version, of the law of all targets, and what recalibration would take off.
function drawLevels(box) {
  const { levels, score, miscalibration, uncertainty } = data.levels;
  const width = 380, height = 200, left = 50, right = width - 6, top = 26, bottom = height - 48, last = levels.length - 1;
  const drawing = frame(box, "Pinball loss by level", `At the median ${number(score[last / 2], 3)}, without the input ${number(uncertainty[last / 2], 3)}, miscalibration ${number(miscalibration[last / 2], 3)}`, width, height);
  const most = 1.05 * Math.max(...score, ...uncertainty), x = scale(0, 1, left, right), y = scale(0, most, bottom, top);
  drawing.append(words(2, 14, "Pinball loss by level", { "font-weight": 600 }));
  sideAxis(drawing, y, 0, most, left, right);
  const lines = [
    [uncertainty, "var(--muted)", "5 4", "without the input"],
    [score, "var(--blue)", "", "this version"],
    [miscalibration, "var(--mark)", "1 3", "miscalibration"],
  ];
  let from = 2;
  for (const [values, stroke, dashes, name] of lines) {
    const points = values.map((value, k) => `${x(levels[k])},${y(Math.max(0, value))}`).join(" ");
    drawing.append(svg("polyline", { points, fill: "none", stroke, "stroke-width": 2.5, "stroke-dasharray": dashes, "stroke-linecap": "round" }));
    drawing.append(svg("line", { x1: from, x2: from + 20, y1: height - 8, y2: height - 8, stroke, "stroke-width": 2.5, "stroke-dasharray": dashes, "stroke-linecap": "round" }));
    drawing.append(words(from + 26, height - 4, name, { class: "muted" }));
    from += 40 + 6.2 * name.length;
  }
  levels.forEach((level, k) => {
    const before = k ? (levels[k - 1] + level) / 2 : 0, after = k < last ? (level + levels[k + 1]) / 2 : 1;
    const said = `level ${number(level, 3)}: ${number(score[k], 3)} = ${number(miscalibration[k], 3)} miscalibration - ${number(uncertainty[k] - score[k] + miscalibration[k], 3)} discrimination + ${number(uncertainty[k], 3)} uncertainty`;
    drawing.append(svg("rect", { x: x(before), width: x(after) - x(before), y: top, height: bottom - top, fill: "transparent" }, svg("title", {}, said)));
  });
  for (const tick of [0.05, 0.25, 0.5, 0.75, 0.95]) drawing.append(words(x(tick), bottom + 14, `${100 * tick} %`, { "text-anchor": "middle", class: "muted" }));
}
// The largest fault along the feature that shows it, beside the sentence that names it.
function drawFault() {
  const box = byId("fault");
  if (!box) return;
  const feature = data.along[Number(box.dataset.feature)], kind = box.dataset.kind, bins = binsOfRows(feature);
  box.replaceChildren(panel(feature, kind, bins, besides(feature, bins), `${KINDS[kind][0]}, by ${feature.name}`));
}
load(everything);
startTables();
if (rows) {
  startSelection();
  startMap();
  startAlong();
  listeners.push(drawFault);
  startRange();
  startRows();
  if (data.pit.length) pitHistogram(byId("pit"), data.pit);
  drawDeciles();
  if (byId("terms")) drawTerms(byId("terms"));
  if (byId("levels") && data.levels.levels) drawLevels(byId("levels"));
  select(null, "");
}
document.documentElement.dataset.ready = "yes";
