"use strict";
// A table's data is beside it, as amanda/reports/packed_table.py says; only the rows that are shown are elements of the page.
const STEP = 200;
const element = (name, text = "", parent = null) => {
  const made = document.createElement(name);
  made.textContent = text;
  parent?.append(made);
  return made;
};
const count = number => number.toLocaleString("en-US");

const unpacked = async text => {
  const bytes = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const arrays = 8 + new DataView(buffer).getUint32(0, true);
  const table = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, arrays - 8)));
  const own = Uint32Array.from({ length: table.rows }, (_, row) => row); // the codes if each row has its own word
  for (const one of table.columns.flatMap(column => [column.texts, column.keys])) {
    if (one?.words) one.codes = one.codes === null ? own : new Uint32Array(buffer, arrays + one.codes, table.rows);
    else if (one) one.numbers = new Float64Array(buffer, arrays + one.numbers, table.rows);
  }
  return { ...table, own };
};

// Case does not count in names, and their numbers do: conv9 comes before Conv10.
const natural = word => word.toLowerCase().replace(/\d+/g, digits => digits.padStart(20, "0"));

// A number for each row, in the order of its words; NaN: nothing is known.
const ordered = ({ words, codes }) => {
  const names = words.map(word => word === null ? null : natural(word));
  const known = Uint32Array.from(names.keys()).filter(word => names[word] !== null);
  known.sort((a, b) => names[a] < names[b] ? -1 : names[a] > names[b] ? 1 : 0);
  const places = new Float64Array(words.length).fill(NaN);
  known.forEach((word, i) => {
    places[word] = i > 0 && names[word] === names[known[i - 1]] ? places[known[i - 1]] : i;
  });
  return Float64Array.from(codes, word => places[word]);
};

const show_table = async place => {
  const { heading, headings, numbers, columns, rows: held, total, own } = await unpacked(place.textContent);
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

  let order = own;
  let found = order; // those of `order` that the filter lets through
  let rows = 0; // of the page

  const append = () => {
    const next = found.subarray(rows, rows + STEP);
    for (const row of next) {
      const line = body.insertRow();
      columns.forEach(({ texts }, i) => {
        element("td", texts.words[texts.codes[row]], line).className = numbers[i] ? "number" : "name";
      });
    }
    rows += next.length;
    more.hidden = rows === found.length;
    const matching = filter.value ? ` that match, of ${count(held)}` : "";
    const missing = total > held ? `; ${count(total - held)} more are not in this page` : "";
    shown.textContent = `${count(rows)} of ${count(found.length)} rows${matching}${missing}`;
  };
  const matches = wanted => {
    const match = new Uint8Array(held);
    for (const { texts } of columns) {
      texts.lower ??= texts.words.map(word => word.toLowerCase());
      const hits = Uint8Array.from(texts.lower, word => word.includes(wanted));
      if (hits.includes(1)) for (let row = 0; row < held; row++) match[row] |= hits[texts.codes[row]];
    }
    return match;
  };
  const show = () => {
    const match = filter.value && matches(filter.value.toLowerCase());
    found = match ? order.filter(row => match[row]) : order;
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
    const by = columns[column].keys ?? columns[column].texts;
    const key = by.numbers ??= ordered(by);
    const known = order.filter(row => key[row] === key[row]); // not NaN
    known.sort(down ? (a, b) => key[b] - key[a] : (a, b) => key[a] - key[b]);
    const unknown = order.filter(row => key[row] !== key[row]);
    order = new Uint32Array(held);
    order.set(known);
    order.set(unknown, known.length);
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
};

for (const place of document.querySelectorAll("div.table")) {
  show_table(place).catch(error => {
    place.textContent = `This browser cannot read the table: ${error.message}`;
    throw error;
  }).finally(() => place.removeAttribute("aria-busy"));
}
