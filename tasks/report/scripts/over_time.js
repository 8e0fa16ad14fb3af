// Numbers over looks: dots with intervals, the bar that calls a version wrong, and the look at which the fault began.
function overLooks(box, spec) {
  const width = 400, height = 210, left = 56, right = width - 8, top = 28, bottom = height - 34, k = spec.value.length;
  const drawing = frame(box, spec.title, spec.described, width, height);
  const low = spec.low || [], high = spec.high || [];
  const every = [...spec.value, ...low, ...high, ...(spec.bars || [])].filter(Number.isFinite);
  let least = Math.min(...every), most = Math.max(...every);
  const room = 0.07 * (most - least || Math.abs(most) || 1);
  [least, most] = [least - room, most + room];
  const y = scale(least, most, bottom, top), x = scale(-0.5, k - 0.5, left, right), size = Math.max(1.5, Math.min(4, 150 / k));
  drawing.append(words(2, 14, spec.title, { "font-weight": 600 }));
  sideAxis(drawing, y, least, most, left, right);
  if (spec.began !== null) {
    drawing.append(svg("rect", { x: x(spec.began - 0.5), width: right - x(spec.began - 0.5), y: top, height: bottom - top, fill: "var(--mark)", opacity: 0.09 }));
    drawing.append(svg("line", { x1: x(spec.began - 0.5), x2: x(spec.began - 0.5), y1: top, y2: bottom, stroke: "var(--mark)", "stroke-width": 2 }));
  }
  for (const bar of spec.bars || []) drawing.append(svg("line", { x1: left, x2: right, y1: y(bar), y2: y(bar), stroke: "var(--bad)", "stroke-dasharray": "5 4", "stroke-width": 1.5 }));
  if (spec.joined) drawing.append(svg("polyline", { points: spec.value.map((value, at) => `${x(at)},${y(value)}`).join(" "), fill: "none", stroke: "var(--blue)", "stroke-width": 1.5 }));
  spec.value.forEach((value, at) => {
    if (!Number.isFinite(value)) return;
    const group = svg("g"), shade = spec.began !== null && at >= spec.began ? "var(--mark)" : "var(--blue)";
    if (Number.isFinite(low[at]) && Number.isFinite(high[at])) group.append(svg("line", { x1: x(at), x2: x(at), y1: y(low[at]), y2: y(high[at]), stroke: shade, "stroke-width": 1.5 }));
    group.append(svg("circle", { cx: x(at), cy: y(value), r: size, fill: shade }));
    const interval = Number.isFinite(low[at]) ? ` (${number(low[at], 3)} to ${number(high[at], 3)})` : "";
    group.append(svg("title", {}, `${spec.when[at]}: ${number(value, 3)}${interval}, ${whole(spec.rows[at])} rows`));
    drawing.append(group);
  });
  drawing.append(words(left, bottom + 15, spec.when[0], { class: "muted" }));
  if (k > 1) drawing.append(words(right, bottom + 15, spec.when[k - 1], { "text-anchor": "end", class: "muted" }));
  if (spec.began !== null) {
    const place = Math.min(Math.max(x(spec.began), left + 115), right - 115);
    drawing.append(words(place, bottom + 29, `began ${spec.when[spec.began]}`, { "text-anchor": "middle", fill: "var(--mark)" }));
  }
}
for (const panels of document.querySelectorAll("[data-series]")) {
  const series = everything.series[Number(panels.dataset.series)], shared = { when: series.when, rows: series.rows, began: series.began };
  const add = (spec) => {
    const box = document.createElement("div");
    panels.append(box);
    overLooks(box, { ...shared, ...spec });
  };
  add({ title: "Evidence that it is wrong (powers of 10)", described: "Called wrong from the dashed line on", value: series.evidence, bars: [series.bar], joined: true });
  add({ title: "Evidence of a change (powers of 10)", described: "An alarm from the dashed line on", value: series.change, bars: [series.changeBar], joined: true });
  for (const metric of Object.values(series.metrics)) {
    const spec = { title: metric.label, described: "One dot a look, with its interval", value: metric.value, low: metric.low, high: metric.high };
    for (const side of ["value", "low", "high"]) spec[side] = spec[side].map((value) => (value === null ? NaN : value));
    add(spec);
  }
}
document.documentElement.dataset.ready = "yes";
