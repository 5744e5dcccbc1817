// A table's data is beside it, as amanda/reports/packed_table.py says; only the rows that can be seen are elements of the page.
const LINE = 21, MARGIN = 5; // pixels of a row: of each line of its text, and of the rest
const AHEAD = 20; // rows above and below those that can be seen
const TALLEST = 15e6; // pixels: browsers draw no taller elements. Rows of longer tables scroll faster
const WIDEST = 60; // letters of a column; the rest of a text is in its tooltip

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

// The parts of a cell's text that are names, as [start, end, what they name].
const names_in = (heading, text) => {
  const [first, second] = text.split("\n");
  if (["op", "operator", "module"].includes(heading)) return [[0, first.length, "name"]];
  if (/:\d+$/.test(text) && second === undefined) return [[0, text.length, "line"]];
  if (heading !== "operator, module, line" || second === undefined) return [];
  const [, indent, module, line] = /^(\s*)(?:(.*), )?(.*)$/.exec(second);
  const start = first.length + 1 + indent.length, end = text.length;
  const names = [[0, first.length, "name"]];
  if (module) names.push([start, start + module.length, "name"]);
  if (line) names.push([end - line.length, end, "line"]);
  return names;
};

// A cell; what it names is a link: to the line of source code, or to all that the page has of an operator or a module.
const fill = (cell, heading, text) => {
  let done = 0;
  for (const [start, end, kind] of names_in(heading, text)) {
    const name = text.slice(start, end), row = kind === "line" ? listed_line(name) : undefined;
    if (!name || kind === "line" && !row) continue;
    cell.append(text.slice(done, start));
    const link = element("a", name, cell);
    link.href = "#";
    link.addEventListener("click", event => {
      event.preventDefault();
      if (row) show_line(row);
      else search_for(name);
    });
    done = end;
  }
  cell.append(text.slice(done));
  cell.title = text;
};

const show_table = async place => {
  const { heading, headings, numbers, columns, rows: held, total, own } = await unpacked(place.textContent);
  place.textContent = "";
  const filter = element("input", "", place);
  Object.assign(filter, { type: "search", placeholder: "filter" });
  filter.setAttribute("aria-label", `filter ${heading}`);
  const shown = element("span", "", place);
  shown.className = "shown";
  const pane = element("div", "", place);
  Object.assign(pane, { className: "pane", tabIndex: 0, role: "region", ariaLabel: heading });
  const table = element("table", "", pane);
  const widths = table.appendChild(document.createElement("colgroup"));
  const head = table.createTHead().insertRow();
  const body = table.createTBody();

  const lines = columns.some(({ texts }) => texts.words.some(word => word.includes("\n"))) ? 2 : 1;
  const height = LINE * lines + MARGIN;
  let letters = 0;
  columns.forEach(({ texts }, i) => {
    let longest = headings[i].length + 2; // and its arrow
    for (const word of texts.words) for (const line of word.split("\n")) longest = Math.max(longest, line.length);
    const wide = Math.min(longest, WIDEST);
    widths.appendChild(document.createElement("col")).style.width = `calc(${wide}ch + 1.4em)`;
    letters += wide;
  });
  table.style.width = `calc(${letters}ch + ${1.4 * columns.length}em)`;

  let order = own;
  let found = order; // those of `order` that the filter and the search let through
  let searched = "";

  // Puts the rows into the page that can be seen, between two empty ones that stand for the others.
  const draw = () => {
    const tall = Math.min(found.length * height, TALLEST), seen = Math.ceil(pane.clientHeight / height);
    const scrolled = Math.min(1, pane.scrollTop / Math.max(1, tall - pane.clientHeight));
    const first = Math.min(Math.floor(pane.scrollTop / height), found.length);
    const top = tall < TALLEST ? first : Math.round(scrolled * Math.max(0, found.length - seen));
    const from = Math.max(0, top - AHEAD), to = Math.min(found.length, top + seen + AHEAD);
    const above = tall < TALLEST ? from * height : Math.max(0, pane.scrollTop - (top - from) * height);
    body.textContent = "";
    body.insertRow().style.height = `${above}px`;
    for (let i = from; i < to; i++) {
      const line = body.insertRow();
      line.ariaRowIndex = i + 2; // the head is the first
      line.style.height = `${height}px`;
      columns.forEach(({ texts }, column) => {
        const cell = line.insertCell();
        cell.className = numbers[column] ? "number" : "name";
        fill(cell, headings[column], texts.words[texts.codes[found[i]]]);
      });
    }
    body.insertRow().style.height = `${Math.max(0, tall - above - (to - from) * height)}px`;
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
    found = order;
    for (const wanted of new Set([filter.value.toLowerCase(), searched])) {
      if (!wanted) continue;
      const match = matches(wanted);
      found = found.filter(row => match[row]);
    }
    const missing = total > held ? `; ${count(total - held)} more are not in this page` : "";
    shown.textContent = `${found.length < held ? `${count(found.length)} of ` : ""}${count(held)} rows${missing}`;
    table.ariaRowCount = found.length + 1;
    pane.scrollTop = 0;
    draw();
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
    const title = element("th", "", head);
    title.scope = "col";
    element("button", text, title).addEventListener("click", () => sort(title, column));
  });
  filter.addEventListener("input", show);
  pane.addEventListener("scroll", draw);
  addEventListener("resize", draw);
  show();
  return wanted => {
    searched = wanted;
    show();
    return found.length;
  };
};

for (const place of document.querySelectorAll("div.table")) {
  const section = place.closest("section");
  let table; // a promise of its search
  const load = () => {
    if (table) return table;
    place.setAttribute("aria-busy", "true");
    return table = show_table(place).catch(error => {
      place.textContent = `This browser cannot read the table: ${error.message}`;
      throw error;
    }).finally(() => place.removeAttribute("aria-busy"));
  };
  when_shown(section, load);
  searchable.push({ section, search: async wanted => (await load())(wanted) });
}
