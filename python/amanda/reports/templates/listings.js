// Lines of source code, by the end of their file's path: links go to them.
const listed_lines = new Map(); // rows of a listing, by "name:line"
for (const table of document.querySelectorAll("table.listing[data-path]")) {
  for (const row of table.tBodies[0].rows) {
    const key = `${table.dataset.path.split("/").pop()}:${row.cells[0].textContent}`;
    listed_lines.set(key, [...listed_lines.get(key) ?? [], row]);
  }
}
// The row of a listing for "folder/file.py:7"; undefined if the page does not have it, or several.
const listed_line = source => {
  const rows = listed_lines.get(source.split("/").pop()) ?? [];
  const path = source.slice(0, source.lastIndexOf(":"));
  const found = rows.filter(row => `/${row.closest("table").dataset.path}`.endsWith(`/${path.replace(/^\//, "")}`));
  return found.length === 1 ? found[0] : undefined;
};
const show_line = row => {
  reveal(row.closest("section"));
  row.closest("details.file").open = true;
  row.scrollIntoView({ block: "center" });
  document.querySelector("tr.marked")?.classList.remove("marked");
  row.classList.add("marked");
};

for (const section of document.querySelectorAll("main section")) {
  const rows = [...section.querySelectorAll(".listing tbody tr")];
  const words = rows.map(row => row.lastElementChild.textContent.toLowerCase());
  const text = section.querySelector("p.text.code");
  if (!rows.length && !text) continue;
  const search = wanted => {
    let hits = text?.textContent.toLowerCase().includes(wanted) ? 1 : 0;
    rows.forEach((row, i) => {
      row.hidden = !words[i].includes(wanted);
      hits += !row.hidden && row.closest("details.file") ? 1 : 0;
    });
    const file = section.querySelector("details.file");
    if (file && wanted) file.open = hits > 0;
    return hits;
  };
  searchable.push({ section, search });
}
