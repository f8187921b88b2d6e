"use strict";
// The error browser and the switch between light and dark. Texts go into the page as text, never as HTML.

const ROWS_AT_A_TIME = 20;
const $ = (id) => document.getElementById(id);

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function isolated(name, className, text) {
  const made = element(name, className, text);
  made.dir = "auto";
  return made;
}

// ---- light and dark

(() => {
  const root = document.documentElement, button = $("theme");
  const isDark = () => getComputedStyle(root).colorScheme === "dark" ||
    (root.dataset.theme === undefined && matchMedia("(prefers-color-scheme: dark)").matches);
  const named = () => { button.textContent = isDark() ? "light" : "dark"; };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; named(); });
  named();
  button.hidden = false;
})();

// ---- examples

class Browser {
  constructor(data) {
    this.data = data;
    this.form = $("filters");
    this.page = 0;
    this.hasRight = data.rows.some((row) => row.right !== null);
    this.prepare();
    this.form.addEventListener("input", () => this.filter());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("reset", () => setTimeout(() => this.filter()));
    $("back").addEventListener("click", () => this.turn(-1));
    $("on").addEventListener("click", () => this.turn(1));
    this.filter();
  }

  // What there is to filter by: a label that all examples share is no choice.
  prepare() {
    const [gold, predicted] = this.data.named;
    this.choices("gold", gold);
    this.choices("predicted", predicted);
    const measured = this.data.rows.some((row) => row.measure !== null);
    this.show("measure", measured, this.data.measure);
    this.show("wrong", this.hasRight);
    const rows = this.data.rows;
    this.form.wrong.defaultChecked = this.form.wrong.checked = rows.some((row) => row.right === false);
    this.words = rows.map((row) => row.fields.map(([, text]) => this.data.texts[text]).join("\n").toLowerCase());
  }

  show(name, shown, label) {
    const place = this.form.querySelector(`[data-for="${name}"]`);
    place.hidden = !shown;
    if (label) place.querySelector("span").textContent = label;
  }

  choices(name, label) {
    const counts = new Map();
    for (const row of this.data.rows) for (const one of row[name]) counts.set(one, (counts.get(one) || 0) + 1);
    const select = this.form[name];
    select.append(new Option("any", ""));
    for (const one of [...counts.keys()].sort()) select.append(new Option(`${one} (${counts.get(one)})`, `=${one}`));
    this.show(name, counts.size > 1, label);
  }

  filter() {
    const form = this.form, bound = (input, other) => (input.value === "" ? other : Number(input.value));
    const gold = form.gold.value, predicted = form.predicted.value;
    const low = bound(form.low, -Infinity), high = bound(form.high, Infinity);
    const words = form.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const numbers = [...this.data.rows.keys()].filter((number) => {
      const row = this.data.rows[number];
      return (!gold || row.gold.includes(gold.slice(1))) &&
        (!predicted || row.predicted.includes(predicted.slice(1))) &&
        (!form.wrong.checked || row.right !== true) &&
        (row.measure === null ? form.low.value === "" && form.high.value === "" : row.measure >= low && row.measure <= high) &&
        words.every((word) => this.words[number].includes(word));
    });
    if (form.order.value === "best") numbers.reverse();
    if (form.order.value === "row") numbers.sort((one, other) => this.data.rows[one].row - this.data.rows[other].row);
    this.found = numbers;
    this.page = 0;
    this.draw();
  }

  // The examples of one gold and one predicted label, as far as there is a choice of that name.
  only(gold, predicted) {
    this.form.reset();
    this.form.wrong.checked = false;
    this.form.gold.value = `=${gold}`;
    this.form.predicted.value = `=${predicted}`;
    for (const select of [this.form.gold, this.form.predicted]) if (select.selectedIndex < 0) select.value = "";
    this.filter();
    this.form.scrollIntoView({ behavior: "smooth", block: "start" });
  }

  turn(pages) {
    this.page += pages;
    this.draw();
    $("filters").scrollIntoView({ block: "start" });
  }

  draw() {
    const first = this.page * ROWS_AT_A_TIME, last = Math.min(first + ROWS_AT_A_TIME, this.found.length);
    const all = this.data.rows.length.toLocaleString("en");
    $("count").textContent = `${this.found.length.toLocaleString("en")} of ${all} examples`;
    $("place").textContent = last ? `${first + 1} to ${last}` : "";
    $("back").disabled = first === 0;
    $("on").disabled = last >= this.found.length;
    $("pager").hidden = this.found.length <= ROWS_AT_A_TIME;
    $("examples").replaceChildren(...this.found.slice(first, last).map((number) => this.row(this.data.rows[number])));
  }

  row(row) {
    const item = element("li", row.right === null ? "" : row.right ? "right" : "wrong");
    const head = element("div", "said");
    const said = row.said || [row.gold.join(", "), row.predicted.join(", ")];
    this.data.named.forEach((name, side) => {
      if (said[side] === "") return;
      const place = element("span", "", `${name} `);
      place.append(isolated("b", side ? "guess" : "", said[side]));
      head.append(place);
    });
    if (row.measure !== null) head.append(element("span", "", `${this.data.measure} ${row.measure.toFixed(3)}`));
    head.append(isolated("span", "id", row.id));
    item.append(head, ...row.fields.map((field) => this.field(field, row.fields.length > 1)));
    return item;
  }

  field([name, text, marks], named) {
    const line = element("div", "field"), place = isolated("span", "text");
    if (named) line.append(isolated("span", "name", this.data.texts[name]));
    const letters = marks ? Array.from(this.data.texts[text]) : [this.data.texts[text]];  // by code points
    let at = 0;
    for (const [start, end, kind, label] of marks || []) {
      const mark = element("mark", kind, letters.slice(start, end).join(""));
      if (label) mark.append(isolated("small", "", label));
      place.append(letters.slice(at, start).join(""), mark);
      at = end;
    }
    place.append(letters.slice(at).join(""));
    line.append(place);
    return line;
  }
}

// ---- cells of a matrix show their examples

function followCells(browser) {
  for (const figure of document.querySelectorAll("figure[data-names]")) {
    const names = JSON.parse(figure.dataset.names);
    figure.addEventListener("click", (event) => {
      const cell = /cell-(\d+)-(\d+)$/.exec(event.target.closest("g[id*='cell-']")?.id ?? "");
      if (cell) browser.only(names[cell[1]], names[cell[2]]);
    });
  }
}

if ($("data")) followCells(new Browser(JSON.parse($("data").textContent)));
