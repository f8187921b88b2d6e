// The error browser.

const ROWS_PER_PAGE = 20;

// ---- examples

class ErrorBrowser {
  constructor(data) {
    this.data = data;
    this.form = $("filters");
    this.page = 0;
    this.hasGold = data.rows.some((row) => row.correct !== null);
    this.setUpFilters();
    this.form.addEventListener("input", () => this.filter());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("reset", () => setTimeout(() => this.filter()));
    $("previous").addEventListener("click", () => this.turnPage(-1));
    $("next").addEventListener("click", () => this.turnPage(1));
    this.filter();
  }

  // Hides the filters that cannot exclude any example.
  setUpFilters() {
    const [gold, predicted] = this.data.filter_names;
    this.addChoices("gold", gold);
    this.addChoices("predicted", predicted);
    const hasMeasure = this.data.rows.some((row) => row.measure !== null);
    this.setUpControl("measure", hasMeasure, this.data.measure);
    this.setUpControl("wrong", this.hasGold);
    const rows = this.data.rows;
    this.form.wrong.defaultChecked = this.form.wrong.checked = rows.some((row) => row.correct === false);
    this.searchTexts = rows.map((row) => row.fields.map(([, text]) => this.data.texts[text]).join("\n").toLowerCase());
  }

  setUpControl(name, isShown, label) {
    const control = this.form.querySelector(`[data-for="${name}"]`);
    control.hidden = !isShown;
    if (label) control.querySelector("span").textContent = label;
  }

  addChoices(name, label) {
    const counts = new Map();
    for (const row of this.data.rows) for (const value of row[name]) counts.set(value, (counts.get(value) || 0) + 1);
    const select = this.form[name];
    select.append(new Option("any", ""));
    for (const value of [...counts.keys()].sort()) select.append(new Option(`${value} (${counts.get(value)})`, `=${value}`));
    this.setUpControl(name, counts.size > 1, label);
  }

  filter() {
    const form = this.form, parseBound = (input, fallback) => (input.value === "" ? fallback : Number(input.value));
    const gold = form.gold.value, predicted = form.predicted.value;
    const low = parseBound(form.low, -Infinity), high = parseBound(form.high, Infinity);
    const words = form.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const indices = [...this.data.rows.keys()].filter((index) => {
      const row = this.data.rows[index];
      return (!gold || row.gold.includes(gold.slice(1))) &&
        (!predicted || row.predicted.includes(predicted.slice(1))) &&
        (!form.wrong.checked || row.correct !== true) &&
        (row.measure === null ? form.low.value === "" && form.high.value === "" : row.measure >= low && row.measure <= high) &&
        words.every((word) => this.searchTexts[index].includes(word));
    });
    if (form.order.value === "best") indices.reverse();
    if (form.order.value === "row") indices.sort((left, right) => this.data.rows[left].row - this.data.rows[right].row);
    this.matches = indices;
    this.page = 0;
    this.draw();
  }

  // Shows only examples with these labels; a label that is not among the choices is ignored.
  showOnly(gold, predicted) {
    this.form.reset();
    this.form.wrong.checked = false;
    this.form.gold.value = `=${gold}`;
    this.form.predicted.value = `=${predicted}`;
    for (const select of [this.form.gold, this.form.predicted]) if (select.selectedIndex < 0) select.value = "";
    this.filter();
    this.form.scrollIntoView({ behavior: "smooth", block: "start" });
  }

  turnPage(offset) {
    this.page += offset;
    this.draw();
    $("filters").scrollIntoView({ block: "start" });
  }

  draw() {
    const start = this.page * ROWS_PER_PAGE, end = Math.min(start + ROWS_PER_PAGE, this.matches.length);
    const total = this.data.rows.length.toLocaleString("en");
    $("count").textContent = `${this.matches.length.toLocaleString("en")} of ${total} examples`;
    $("shown-range").textContent = end ? `${start + 1} to ${end}` : "";
    $("previous").disabled = start === 0;
    $("next").disabled = end >= this.matches.length;
    $("pager").hidden = this.matches.length <= ROWS_PER_PAGE;
    $("examples").replaceChildren(...this.matches.slice(start, end).map((index) => this.createItem(this.data.rows[index])));
  }

  createItem(row) {
    const item = createElement("li", row.correct === null ? "" : row.correct ? "correct" : "wrong");
    const head = createElement("div", "labels");
    const labels = row.labels || [row.gold.join(", "), row.predicted.join(", ")];
    this.data.filter_names.forEach((name, side) => {
      if (labels[side] === "") return;
      const label = createElement("span", "", `${name} `);
      label.append(createIsolatedElement("b", side ? "predicted" : "", labels[side]));
      head.append(label);
    });
    if (row.measure !== null) head.append(createElement("span", "", `${this.data.measure} ${row.measure.toFixed(3)}`));
    head.append(createIsolatedElement("span", "id", row.id));
    item.append(head, ...row.fields.map((field) => this.createField(field, row.fields.length > 1)));
    if (row.explained) item.append(this.createAttributionTable(row));
    return item;
  }

  // Creates a text with its marks or, if it has none, with its shaded words.
  createField([name, text, marks = [], words = []], showName) {
    const line = createElement("div", "field"), content = createIsolatedElement("span", "text");
    if (showName) line.append(createIsolatedElement("span", "name", this.data.texts[name]));
    const spans = [...marks.map((mark) => [mark, createMark]), ...words.map((word) => [word, createShadedWord])];
    const characters = spans.length ? Array.from(this.data.texts[text]) : [this.data.texts[text]];  // offsets count code points
    let position = 0;
    for (const [[start, end, ...details], createSpan] of spans) {
      content.append(characters.slice(position, start).join(""), createSpan(characters.slice(start, end).join(""), ...details));
      position = end;
    }
    content.append(characters.slice(position).join(""));
    line.append(content);
    return line;
  }

  // The same as the shading, for readers who cannot see it; the highest attributions come first.
  createAttributionTable({ explained: [target, error], fields }) {
    const details = createElement("details", "attributions"), summary = createElement("summary", "", "attributions to ");
    const table = createElement("table"), hasPairs = fields.length > 1;
    summary.append(createIsolatedElement("b", "", target));
    appendRow(table.createTHead(), "th", ["word", ...(hasPairs ? ["column"] : []), "attribution"]);
    const words = fields.flatMap(([name, text, , words = []]) => {
      const characters = Array.from(this.data.texts[text]), column = hasPairs ? [this.data.texts[name]] : [];
      return words.map(([start, end, value]) => [characters.slice(start, end).join(""), ...column, value]);
    }).sort((left, right) => Math.abs(right.at(-1)) - Math.abs(left.at(-1)));
    const body = table.createTBody();
    for (const [word, ...cells] of words) appendRow(body, "td", [word, ...cells.slice(0, -1), formatSigned(cells.at(-1))]);
    table.createCaption().textContent = `completeness error ${(100 * error).toFixed(1)} %`;
    details.append(summary, table);
    return details;
  }
}

function createMark(text, kind, label) {
  const mark = createElement("mark", kind, text);
  if (label) mark.append(createIsolatedElement("small", "", label));
  return mark;
}

function createShadedWord(text, value, strength) {
  const word = createElement("span", `attribution ${strength > 0 ? "raises" : "lowers"}`, text);
  word.style.setProperty("--strength", `${Math.round(100 * Math.abs(strength))}%`);
  word.title = formatSigned(value);
  return word;
}

const formatSigned = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toPrecision(2)}`;

function appendRow(section, tag, cells) {
  const row = section.insertRow();
  cells.forEach((cell, index) => {
    const node = createIsolatedElement(tag, index === cells.length - 1 ? "n" : "", cell);
    if (tag === "th") node.scope = "col";
    row.append(node);
  });
}

// ---- a click on a cell of a confusion matrix shows the examples of the cell

function linkCells(errorBrowser) {
  for (const figure of document.querySelectorAll("figure[data-names]")) {
    const names = JSON.parse(figure.dataset.names);
    figure.addEventListener("click", (event) => {
      const cell = /cell-(\d+)-(\d+)$/.exec(event.target.closest("g[id*='cell-']")?.id ?? "");
      if (cell) errorBrowser.showOnly(names[cell[1]], names[cell[2]]);
    });
  }
}

if ($("data")) linkCells(new ErrorBrowser(JSON.parse($("data").textContent)));
