// Tables after a <div class="sortable"> are sorted by a click on the header of a column.
"use strict";

const valueOf = (row, column) => {
  const text = row.cells[column].textContent.trim();
  return text === "" ? null : Number.isNaN(parseFloat(text)) ? text.toLowerCase() : parseFloat(text);
};

// Rows without a value come last in both directions.
const compare = (a, b, sign) => {
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * (typeof a === "string" ? String(a).localeCompare(String(b)) : a - b);
};

const sortBy = (table, header) => {
  const column = header.cellIndex;
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => compare(valueOf(a, column), valueOf(b, column), ascending ? 1 : -1));
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  table.tBodies[0].append(...rows);
};

for (const mark of document.querySelectorAll("div.sortable")) {
  // The theme may wrap tables to let them scroll.
  const next = mark.nextElementSibling;
  const table = next.matches("table") ? next : next.querySelector("table");
  for (const header of table.tHead.rows[0].cells) {
    header.tabIndex = 0;
    header.title = "Sort by this column";
    header.addEventListener("click", () => sortBy(table, header));
    header.addEventListener("keydown", ({ key }) => key === "Enter" && sortBy(table, header));
  }
}
