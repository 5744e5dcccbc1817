"use strict";
// A table's data is beside it as JSON; only the rows that are shown are elements of the page.
const STEP = 200;
const element = (name, text = "", parent = null) => {
  const made = document.createElement(name);
  made.textContent = text;
  parent?.append(made);
  return made;
};
const count = number => number.toLocaleString("en-US");

for (const place of document.querySelectorAll("div.table")) {
  const { heading, headings, numbers, texts, keys, total } = JSON.parse(place.textContent);
  const held = texts[0]?.length ?? 0;
  place.textContent = "";
  const filter = element("input", "", place);
  Object.assign(filter, { type: "search", placeholder: "filter" });
  filter.setAttribute("aria-label", `filter ${heading}`);
  const shown = element("span", "", place);
  shown.className = "shown";
  const wide = element("div", "", place);
  wide.className = "wide";
  const table = element("table", "", wide);
  const head = table.createTHead().insertRow();
  const body = table.createTBody();
  const more = element("button", `${count(STEP)} more`, place);

  let order = Array.from({ length: held }, (_, row) => row);
  let found = order; // those of `order` that the filter lets through
  let rows = 0; // of the page
  let searched = null; // a text for each row; made when something is looked for

  const append = () => {
    const next = found.slice(rows, rows + STEP);
    for (const row of next) {
      const line = body.insertRow();
      texts.forEach((column, i) => { element("td", column[row], line).className = numbers[i] ? "number" : "name"; });
    }
    rows += next.length;
    more.hidden = rows === found.length;
    const matching = filter.value ? ` that match, of ${count(held)}` : "";
    const missing = total > held ? `; ${count(total - held)} more are not in this page` : "";
    shown.textContent = `${count(rows)} of ${count(found.length)} rows${matching}${missing}`;
  };
  const show = () => {
    const wanted = filter.value.toLowerCase();
    if (wanted) searched ??= order.map((_, row) => texts.map(column => column[row]).join("\n").toLowerCase());
    found = wanted ? order.filter(row => searched[row].includes(wanted)) : order;
    body.textContent = "";
    rows = 0;
    append();
  };
  const sort = (title, column) => {
    // Numbers begin with the largest, names with A.
    const was = title.getAttribute("aria-sort");
    const down = was ? was === "ascending" : numbers[column];
    for (const other of head.cells) other.removeAttribute("aria-sort");
    title.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = keys[column] ?? texts[column];
    const sign = down ? -1 : 1;
    const known = order.filter(row => key[row] !== null);
    const collator = new Intl.Collator("en", { numeric: true });
    known.sort(typeof key[known[0]] === "string"
      ? (a, b) => sign * collator.compare(key[a], key[b])
      : (a, b) => sign * (key[a] - key[b]));
    order = [...known, ...order.filter(row => key[row] === null)];
    show();
  };

  headings.forEach((text, column) => {
    const title = element("th", text, head);
    title.scope = "col";
    title.addEventListener("click", () => sort(title, column));
  });
  filter.addEventListener("input", show);
  more.addEventListener("click", append);
  show();
}
