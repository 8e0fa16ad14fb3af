// Tables that sort by a click on a column's name and show the lines that hold the words of their filter.
function cellValue(row, place) {
  const cell = row.cells[place], given = cell ? (cell.dataset.value ?? cell.textContent.trim()) : "";
  const value = given === "" || given === "–" ? NaN : Number(given);
  return Number.isNaN(value) ? given : value;
}
function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number") return -1;
  if (typeof b === "number") return 1;
  return a.localeCompare(b, undefined, { numeric: true });
}
function sortBy(table, place, header) {
  const direction = header.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1, body = table.tBodies[0];
  const ordered = [...body.rows].map((row) => [cellValue(row, place), row]).sort((a, b) => sign * compare(a[0], b[0]));
  body.append(...ordered.map(([, row]) => row));
}
function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((header, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    button.addEventListener("click", () => sortBy(table, place, header));
  });
}
function startTables() {
  document.querySelectorAll("table.sorts").forEach(makeSortable);
  for (const input of document.querySelectorAll("input[data-filters]")) {
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of byId(input.dataset.filters).tBodies[0].rows) {
        const said = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => said.includes(word));
      }
    });
  }
}
