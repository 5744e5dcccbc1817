// A table's data is beside it, as amanda/reports/packed_table.py says; only the rows that can be seen are elements of the page.
const LINE = 21, MARGIN = 5; // pixels of a row: of each line of its text, and of the rest
const AHEAD = 20; // rows above and below those that can be seen
const TALLEST = 15e6; // pixels: browsers draw no taller elements. Rows of longer tables scroll faster
const WIDEST = 60; // letters of a column; the rest of a text is in its tooltip

const PIECE = 1 << 22; // letters of base64 at once: a multiple of 4. Between two, the page answers
const MANY = 1e5; // words: after so many, the page answers
const answer = () => new Promise(done => setTimeout(done, 0));

const decompressed = async text => {
  const pieces = [];
  for (let start = 0; start < text.length; start += PIECE) {
    if (start) await answer();
    const letters = atob(text.slice(start, start + PIECE)), bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
    pieces.push(bytes);
  }
  return new Response(new Blob(pieces).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
};

// Many words as one text, which is read when it is needed: the browser has no object for each.
class Words {
  constructor(bytes, { count, unknown, same }) {
    Object.assign(this, { bytes, count, unknown, same });
  }
  get text() { return this.decoded ??= new TextDecoder().decode(this.bytes); }
  get ends() { return this.found ??= this.ends_in(this.text); }
  ends_in(text) {
    const ends = new Uint32Array(this.count);
    for (let word = 0, end = -1; word < this.count; word++) {
      end = text.indexOf("\0", end + 1);
      ends[word] = end < 0 ? text.length : end;
    }
    return ends;
  }
  at(word) { return this.text.slice(word ? this.ends[word - 1] + 1 : 0, this.ends[word]); }
  // 1 for each word that has the text, which is in lower case. Letters may have other lengths there.
  with(wanted) {
    this.lower ??= this.text.toLowerCase();
    const ends = this.ends_of_lower ??= this.ends_in(this.lower), hits = new Uint8Array(this.count);
    for (let word = 0, at = this.lower.indexOf(wanted); at >= 0; at = this.lower.indexOf(wanted, ends[word])) {
      while (ends[word] < at) word++;
      hits[word] = 1;
    }
    return hits;
  }
  // The place of each word in their order; NaN: nothing is known.
  get places() {
    const places = new Float64Array(this.count);
    for (let word = 0; word < this.count; word++) places[word] = word;
    for (const word of this.same) places[word] = places[word - 1];
    if (this.unknown !== null) places[this.unknown] = NaN;
    return places;
  }
}

const unpacked = async text => {
  const buffer = await decompressed(text);
  const arrays = 8 + new DataView(buffer).getUint32(0, true);
  const table = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, arrays - 8)));
  const own = new Uint32Array(table.rows); // the codes if each row has its own word
  for (let row = 0; row < table.rows; row++) own[row] = row;
  for (const one of table.columns.flatMap(column => [column.texts, column.keys])) {
    if (one?.words) {
      const [start, end] = one.words;
      one.words = new Words(new Uint8Array(buffer, arrays + start, end - start), one);
      one.codes = one.codes === null ? own : new Uint32Array(buffer, arrays + one.codes, table.rows);
      if (one.words.ends.length > MANY) await answer();
    } else if (one) one.numbers = new Float64Array(buffer, arrays + one.numbers, table.rows);
  }
  return { ...table, own };
};

// The place of each row's word.
const of_words = ({ words, codes }) => {
  const { places } = words, numbers = new Float64Array(codes.length);
  for (let row = 0; row < codes.length; row++) numbers[row] = places[codes[row]];
  return numbers;
};

// The bits of numbers as two integers for each, in an order in which integers are sorted as the numbers are.
const sortable = numbers => {
  const bits = new Uint32Array(2 * numbers.length), negative = 0x80000000;
  const floats = new Float64Array(bits.buffer);
  for (let i = 0; i < numbers.length; i++) floats[i] = numbers[i] + 0; // 0 is -0
  for (let high = 1; high < bits.length; high += 2) {
    const flips = bits[high] & negative ? 0xffffffff : 0;
    bits[high - 1] ^= flips;
    bits[high] ^= flips || negative;
  }
  return bits;
};

// Rows in the order of their keys, equal ones as they were: 16 bits at a time, which takes no comparisons.
const sorted = (rows, bits, down) => {
  const flip = down ? 0xffff : 0;
  for (const [half, shift] of [[0, 0], [0, 16], [1, 0], [1, 16]]) {
    const starts = new Uint32Array(0x10001), next = new Uint32Array(rows.length);
    const digit = row => bits[2 * row + half] >>> shift & 0xffff ^ flip;
    for (let i = 0; i < rows.length; i++) starts[digit(rows[i]) + 1]++;
    if (starts.includes(rows.length)) continue; // all have the same
    for (let i = 1; i < starts.length; i++) starts[i] += starts[i - 1];
    for (let i = 0; i < rows.length; i++) next[starts[digit(rows[i])]++] = rows[i];
    rows = next;
  }
  return rows;
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
  const { heading, headings, numbers, columns, rows: held, lines, total, own } = await unpacked(place.textContent);
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

  const height = LINE * Math.min(lines, 2) + MARGIN;
  let letters = 0;
  columns.forEach(({ widest }, i) => {
    const wide = Math.min(Math.max(widest, headings[i].length + 2), WIDEST); // and the arrow
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
        fill(cell, headings[column], texts.words.at(texts.codes[found[i]]));
      });
    }
    body.insertRow().style.height = `${Math.max(0, tall - above - (to - from) * height)}px`;
  };
  const matches = wanted => {
    const match = new Uint8Array(held);
    for (const { texts } of columns) {
      const hits = texts.words.with(wanted), { codes } = texts;
      if (hits.includes(1)) for (let row = 0; row < held; row++) match[row] |= hits[codes[row]];
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
    const key = by.numbers ??= of_words(by);
    const known = order.filter(row => key[row] === key[row]); // not NaN
    const unknown = order.filter(row => key[row] !== key[row]);
    order = new Uint32Array(held);
    order.set(sorted(known, by.bits ??= sortable(key), down));
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
