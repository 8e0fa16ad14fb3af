// The report of one version: all of its views, started once.
function drawDeciles() {
  const box = byId("deciles");
  if (!box) return;
  const each = JSON.parse(box.dataset.deciles), of = (name) => each.map((one) => one[name]);
  const band = ["ratio", "low", "high", "right_low", "right_high"].map(of), counts = of("rows");
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
  drawing.append(words(left, height - 4, "little discrimination: useless; much miscalibration: recalibrate", { class: "muted" }));
}
load(everything);
startTables();
if (rows) {
  startSelection();
  startMap();
  startAlong();
  startRange();
  startRows();
  if (data.pit.length) pitHistogram(byId("pit"), data.pit);
  drawDeciles();
  if (byId("terms")) drawTerms(byId("terms"));
  select(null, "");
}
document.documentElement.dataset.ready = "yes";
