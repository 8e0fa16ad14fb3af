// Risk against coverage: the mean loss of the rows that stay as more are withheld, by what is withheld first.
const SHADES = ["var(--blue)", "var(--mark)", "var(--good)"];
const DASHES = ["", "7 3", "2 3"];
function riskCoverage(box, spec) {
  const width = 400, height = 270, left = 56, right = width - 8, top = 28, bottom = height - 84;
  const drawing = frame(box, `Mean ${spec.loss} of the rest`, `Against the share withheld: ${spec.lines.map((line) => line.name).join(", ")}, and at random`, width, height);
  const every = [...spec.low, ...spec.high, ...spec.lines.flatMap((line) => line.kept)].filter(Number.isFinite);
  const room = 0.05 * (Math.max(...every) - Math.min(...every) || 1);
  const low = Math.min(...every) - room, high = Math.max(...every) + room, most = spec.share[spec.share.length - 1];
  const x = scale(0, most, left, right), y = scale(low, high, bottom, top);
  const points = (values) => values.map((value, at) => `${x(spec.share[at])},${y(value)}`);
  drawing.append(words(2, 14, `mean ${spec.loss} of the rest`, { "font-weight": 600 }));
  sideAxis(drawing, y, low, high, left, right);
  drawing.append(svg("polygon", { points: [...points(spec.low), ...points(spec.high).reverse()].join(" "), fill: "var(--band)", opacity: 0.45 }));
  drawing.append(svg("line", { x1: left, x2: right, y1: y(spec.random), y2: y(spec.random), stroke: "var(--muted)" }));
  spec.lines.forEach((line, k) => {
    drawing.append(svg("polyline", { points: points(line.kept).join(" "), fill: "none", stroke: SHADES[k % 3], "stroke-width": 2.2, "stroke-dasharray": DASHES[k % 3] }));
    const place = bottom + 34 + 15 * k;
    drawing.append(svg("line", { x1: left, x2: left + 26, y1: place - 4, y2: place - 4, stroke: SHADES[k % 3], "stroke-width": 2.2, "stroke-dasharray": DASHES[k % 3] }));
    drawing.append(words(left + 32, place, `${line.name} first`));
  });
  drawing.append(words(left, bottom + 34 + 15 * spec.lines.length, "grey: withheld at random, 95 of 100 times", { class: "muted" }));
  for (const tick of ticks(0, most, 5)) drawing.append(words(x(tick), bottom + 15, `${Math.round(100 * tick)} %`, { "text-anchor": "middle", class: "muted" }));
  spec.share.forEach((share, at) => {
    const from = at ? (x(spec.share[at - 1]) + x(share)) / 2 : left, to = at + 1 < spec.share.length ? (x(share) + x(spec.share[at + 1])) / 2 : right;
    const said = [`${(100 * share).toFixed(0)} % withheld`, ...spec.lines.map((line) => `${line.name}: ${number(line.kept[at], 3)}`), `at random: ${number(spec.random, 3)}`];
    drawing.append(svg("rect", { x: from, width: Math.max(0, to - from), y: top, height: bottom - top, fill: "transparent" }, svg("title", {}, said.join("\n"))));
  });
}
for (const panels of document.querySelectorAll("[data-curves]"))
  for (const spec of everything[panels.dataset.curves]) {
    const box = document.createElement("div");
    panels.append(box);
    riskCoverage(box, spec);
  }
startTables();
document.documentElement.dataset.ready = "yes";
