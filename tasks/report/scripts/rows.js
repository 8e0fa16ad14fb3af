// The rows of the selection as a table, and the buttons that open one of them.
function openOf(kind) {
  const among = selectedRows();
  if (!among.length) return;
  if (kind === "worst") openRow(among[0]);
  else if (kind === "best") openRow(among[among.length - 1]);
  else if (kind === "next") openRow(among[(among.indexOf(opened.row) + 1) % among.length]);
  else openRow(among[Math.floor(Math.random() * among.length)]);
}

const TABLE_ROWS = 25;
function drawRows() {
  const box = byId("rows"), by = columns.get(byId("rows-by").value), up = byId("rows-order").value === "lowest";
  const among = selectedRows();
  if (by) {
    among.sort((a, b) => (up ? by.at[a] - by.at[b] : by.at[b] - by.at[a]) || a - b);
  }
  const first = ["difference", "target", "mean_first", "mean_second", "mean", "std", "cce", "calibration_fault", "crps", "absolute_error", "pit"].filter((name) => columns.has(name));
  const shown = [...first, ...data.features.filter((name) => columns.has(name)).slice(0, 10)].map((name) => columns.get(name));
  if (by && !shown.includes(by)) shown.unshift(by);
  const head = document.createElement("tr");
  head.append(...["row", "key", ...shown.map((column) => column.label)].map((name) => Object.assign(document.createElement("th"), { textContent: name })));
  const body = among.slice(0, TABLE_ROWS).map((row) => {
    const line = document.createElement("tr"), first = document.createElement("td"), button = document.createElement("button");
    button.type = "button";
    button.className = "link";
    button.textContent = String(data.numbers[row]);
    button.setAttribute("aria-label", `Open row ${data.numbers[row]}`);
    button.addEventListener("click", () => {
      openRow(row);
      byId("row-title").scrollIntoView({ block: "nearest" });
    });
    first.append(button);
    line.append(first);
    for (const said of [data.keys[row], ...shown.map((column) => text(column, row))]) line.append(Object.assign(document.createElement("td"), { textContent: said }));
    return line;
  });
  box.tHead.replaceChildren(head);
  box.tBodies[0].replaceChildren(...body);
  byId("rows-count").textContent = `${whole(Math.min(TABLE_ROWS, among.length))} of ${whole(among.length)}`;
}
function fillRows() {
  const first = data.score ? "difference" : "cce";
  const choices = [...columns.values()].filter((column) => column.kind === "number");
  byId("rows-by").replaceChildren(...choices.map((column) => new Option(column.label, column.name, false, column.name === first)));
}
// What is opened follows the selection, too.
function followSelection() {
  if (opened.row < 0 || !isSelected(opened.row)) openOf("worst");
}
function startRows() {
  fillRows();
  byId("rows-by").addEventListener("change", drawRows);
  byId("rows-order").addEventListener("change", drawRows);
  for (const button of document.querySelectorAll("[data-open]")) button.addEventListener("click", () => openOf(button.dataset.open));
  listeners.push(drawRows, followSelection);
}
// What is known of the opened row, column by column.
function fillValues(shown, row) {
  byId("row-values").replaceChildren(
    ...shown.map((column) => {
      const pair = document.createElement("div"), name = document.createElement("dt"), value = document.createElement("dd");
      name.textContent = column.label;
      value.textContent = text(column, row) || "none found";
      pair.append(name, value);
      return pair;
    }),
  );
}
