// A comparison: one version beside the baseline, row by row.
function drawBoth(box, row) {
  const at = (name) => columns.get(name)?.at[row], target = at("target");
  const both = [["second", everything.baseline, "var(--blue)"], ["first", data.label, "var(--mark)"]];
  const laws = both.map(([end, label, shade]) => ({ label, shade, mean: at(`mean_${end}`), std: at(`std_${end}`) }));
  if (!Number.isFinite(target) || !laws.every((each) => Number.isFinite(each.mean))) return box.replaceChildren();
  const width = 460, height = 190, left = 12, right = width - 12, top = 24;
  const drawing = frame(box, "Both predictions of this row", `Target ${number(target)}`, width, height);
  // Counts have no mass below 0, wherever two predicted spreads end.
  const all = columns.get("target").at, counts = all.every((value) => value >= 0 && Number.isInteger(value)), least = counts ? 0 : -Infinity;
  const places = [target, ...laws.flatMap(({ mean, std }) => [Math.max(least, mean - 2 * (std || 0)), mean + 2 * (std || 0)])];
  let low = Math.min(...places), high = Math.max(...places);
  const room = 0.05 * (high - low || 1), x = scale(low - room, high + room, left, right);
  laws.forEach(({ label, shade, mean, std }, k) => {
    const y = top + 30 + 52 * k;
    const name = x(target) > width / 2 ? [left, "start"] : [right, "end"];  // away from the line of the target
    drawing.append(words(name[0], y - 14, `${label}: ${number(mean)} ± ${number(std, 3)}`, { "text-anchor": name[1] }));
    for (const [reach, thick, opacity] of [[2, 5, 0.4], [1, 12, 0.6]])
      drawing.append(svg("line", { x1: x(Math.max(least, mean - reach * (std || 0))), x2: x(mean + reach * (std || 0)), y1: y, y2: y, stroke: shade, "stroke-width": thick, opacity }));
    drawing.append(svg("circle", { cx: x(mean), cy: y, r: 5, fill: shade, stroke: "var(--paper)" }));
  });
  const bottom = height - 44;
  drawing.append(svg("line", { x1: x(target), x2: x(target), y1: top - 6, y2: bottom, stroke: "var(--ink)", "stroke-width": 2.5 }));
  const side = x(target) > width / 2 ? "end" : "start";
  drawing.append(words(x(target) + (side === "end" ? -6 : 6), top - 6, `target ${number(target)}`, { "text-anchor": side, "font-weight": 600 }));
  drawing.append(svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, stroke: "var(--muted)" }));
  for (const tick of ticks(low, high, 5).filter((tick) => !counts || Number.isInteger(tick))) drawing.append(words(x(tick), bottom + 15, number(tick, 3), { "text-anchor": "middle", class: "muted" }));
  drawing.append(words(left, height - 8, "dot: predicted mean; bars: one and two predicted spreads on either side", { class: "muted" }));
}
function openRow(row) {
  if (row < 0 || row >= rows) return;
  opened.row = map.cursor = row;
  const difference = columns.get("difference").at[row], winner = difference < 0 ? data.label : everything.baseline;
  byId("row-title").textContent = `Row ${data.numbers[row]}: ${data.keys[row]}`;
  byId("row-winner").textContent = difference === 0 ? "Both score the same." : `${winner} scores better, by ${number(Math.abs(difference), 3)} (${data.score}).`;
  fillValues([...columns.values()], row);
  drawBoth(byId("law"), row);
  drawMap();
}
function selectSide(side) {
  const { at } = columns.get("difference");
  const mask = Uint8Array.from(at, (value) => ((side === "won" ? value < 0 : value > 0) ? 1 : 0));
  select(mask, `rows ${side} by ${data.label}`);
}
function lookAt(k) {
  load(everything.pairs[k]);
  byId("along-title").textContent = `${data.score}: ${data.label} less ${everything.baseline}`;
  for (const each of document.querySelectorAll("[data-pair]")) each.hidden = Number(each.dataset.pair) !== Number(k);
  fillMap();
  fillRows();
  select(null, "");
}
startTables();
if (everything.pairs.length) {
  load(everything.pairs[0]);
  startSelection();
  startMap();
  startAlong();
  startRows();
  const box = byId("pair");
  box.append(...everything.pairs.map((pair, k) => new Option(`${pair.label} against ${everything.baseline}`, k)));
  box.addEventListener("change", () => lookAt(box.value));
  for (const button of document.querySelectorAll("[data-look]"))
    button.addEventListener("click", () => {
      box.value = button.dataset.look;
      lookAt(box.value);
      byId("pair").scrollIntoView({ block: "start" });
    });
  byId("won").addEventListener("click", () => selectSide("won"));
  byId("lost").addEventListener("click", () => selectSide("lost"));
  lookAt(0);
}
document.documentElement.dataset.ready = "yes";
