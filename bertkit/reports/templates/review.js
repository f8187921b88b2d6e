// The review of label issues. Each issue is kept, changed or dropped; the decisions are exported as JSON lines.

const ISSUES_PER_PAGE = 20;
const ACTIONS = [["keep", "1"], ["change", "2"], ["drop", "3"]];
const FIX_KEYS = ["file", "row", "text", "word", "label"];
const formatLabel = (label) => label === true ? "present" : label === false ? "absent" :
  Array.isArray(label) ? label.join(" · ") || "no answer" : label === "" ? "no answer" : String(label);

class Review {
  constructor(data) {
    this.data = data;
    this.issues = data.issues;
    this.storageKey = `bertkit-label-issues-${data.key}`;
    this.decisions = this.load();  // by index of the issue: {action, to}
    this.canChange = data.task !== "qa";
    this.form = $("filters");
    this.searchTexts = this.issues.map((issue) => [issue.file, ...issue.fields.map(([, parts]) => parts.join(" "))].join("\n").toLowerCase());
    this.form.addEventListener("input", () => this.filter());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    $("save").addEventListener("click", () => this.save());
    $("previous").addEventListener("click", () => this.select(Math.max(0, this.start - 1)));
    $("next").addEventListener("click", () => this.select(this.start + ISSUES_PER_PAGE));
    document.addEventListener("keydown", (event) => this.handleKey(event));
    this.filter();
  }

  // The browser may forbid storage for local files; the decisions are then lost when the page is closed.
  load() {
    try { return new Map(JSON.parse(localStorage.getItem(this.storageKey) || "[]")); } catch { return new Map(); }
  }

  store() {
    try { localStorage.setItem(this.storageKey, JSON.stringify([...this.decisions])); } catch { /* see load */ }
  }

  filter() {
    const show = this.form.show.value, words = this.form.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.matches = [...this.issues.keys()].filter((index) => {
      const action = this.decisions.get(index)?.action;
      return (show === "all" || (show === "open" ? !action : action === show)) &&
        words.every((word) => this.searchTexts[index].includes(word));
    });
    this.position = 0;  // of the selected issue among the matches
    this.draw();
  }

  get start() { return Math.floor(this.position / ISSUES_PER_PAGE) * ISSUES_PER_PAGE; }

  select(position) {
    if (position < 0 || position >= this.matches.length) return;
    const page = this.start;
    this.position = position;
    if (this.start === page) this.mark(); else this.draw();
    this.items[this.position - this.start].focus();
  }

  handleKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select")) return;
    const move = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    const action = ACTIONS.find(([, key]) => key === event.key)?.[0];
    if (move) this.select(this.position + move);
    else if (action) this.decide(this.position, action, true);
    else if (event.key === "0") this.decide(this.position, null, false);
    else if (event.key === "s") this.save();
    else return;
    event.preventDefault();
  }

  decide(position, action, moves) {
    const index = this.matches[position];
    if (index === undefined || (action === "change" && !this.canChange)) return;
    if (action) this.decisions.set(index, { action, to: action === "change" ? this.getChoice(position) : null });
    else this.decisions.delete(index);
    this.store();
    this.position = position;
    this.updateItem(position);
    this.updateCount();
    this.mark();
    if (moves && position + 1 < this.matches.length) this.select(position + 1);
    else this.items[position - this.start].focus();
  }

  getChoice(position) {
    const issue = this.issues[this.matches[position]], control = this.items[position - this.start].querySelector("[name=to]");
    if (!control) return issue.suggested;
    return typeof issue.given === "number" ? Number(control.value) : control.value;
  }

  draw() {
    const end = Math.min(this.start + ISSUES_PER_PAGE, this.matches.length);
    this.items = this.matches.slice(this.start, end).map((index, offset) => this.createItem(index, this.start + offset));
    $("issues").replaceChildren(...this.items);
    this.items.forEach((_, offset) => this.updateItem(this.start + offset));
    $("shown-range").textContent = end ? `${this.start + 1} to ${end}` : "";
    $("previous").disabled = this.start === 0;
    $("next").disabled = end >= this.matches.length;
    $("pager").hidden = this.matches.length <= ISSUES_PER_PAGE;
    this.updateCount();
    this.mark();
  }

  updateCount() {
    const total = this.issues.length.toLocaleString("en"), decided = this.decisions.size.toLocaleString("en");
    $("count").textContent = `${this.matches.length.toLocaleString("en")} of ${total} issues, ${decided} decided`;
    $("save").disabled = this.decisions.size === 0;
  }

  mark() {
    this.items.forEach((item, offset) => {
      const isSelected = this.start + offset === this.position;
      item.classList.toggle("selected", isSelected);
      item.tabIndex = isSelected ? 0 : -1;
      if (isSelected) item.setAttribute("aria-current", "true"); else item.removeAttribute("aria-current");
    });
  }

  updateItem(position) {
    const item = this.items[position - this.start], decision = this.decisions.get(this.matches[position]);
    item.dataset.action = decision?.action ?? "";
    for (const button of item.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.name === decision?.action));
    }
  }

  createItem(index, position) {
    const issue = this.issues[index], item = createElement("li"), head = createElement("div", "labels");
    if (issue.label !== undefined) head.append(createIsolatedElement("span", "", `label ${issue.label}`));
    for (const [name, kind] of [["given", ""], ["suggested", "predicted"]]) {
      const label = createElement("span", "", `${name} `);
      label.append(createIsolatedElement("b", kind, formatLabel(issue[name])));
      head.append(label);
    }
    head.append(createIsolatedElement("span", "", issue.reason), createElement("span", "", `score ${issue.score}`));
    head.append(createIsolatedElement("span", "id", `${issue.file}: row ${issue.row}`));
    item.append(head, ...issue.fields.map((field) => this.createField(field, issue.fields.length > 1)));
    item.append(this.createButtons(issue, index, position));
    item.addEventListener("focusin", () => { if (this.position !== position) { this.position = position; this.mark(); } });
    return item;
  }

  createField([name, parts], showName) {
    const line = createElement("div", "field"), content = createIsolatedElement("span", "text");
    if (showName) line.append(createIsolatedElement("span", "name", name));
    if (parts.length === 1) content.append(parts[0]);
    else content.append(parts[0], " ", createElement("mark", "", parts[1]), " ", parts[2]);
    line.append(content);
    return line;
  }

  createButtons(issue, index, position) {
    const buttons = createElement("div", "decision");
    buttons.setAttribute("role", "group");
    buttons.setAttribute("aria-label", `decision about row ${issue.row} of ${issue.file}`);
    for (const [action, key] of ACTIONS) {
      if (action === "change" && !this.canChange) continue;
      const button = createElement("button", "", `${action} (${key})`);
      button.type = "button";
      button.name = action;
      button.addEventListener("click", () => this.decide(position, action, false));
      buttons.append(button);
      if (action === "change") buttons.append(...this.createChoices(issue, index, position));
    }
    return buttons;
  }

  // The labels to change to: a list, a number, or only the suggested label.
  createChoices(issue, index, position) {
    const chosen = this.decisions.get(index)?.to ?? issue.suggested;
    const isNumber = typeof issue.given === "number" && issue.label === undefined && this.data.task !== "swag";
    if (!isNumber && this.data.choices.length < 3) return [];
    const control = createElement(isNumber ? "input" : "select");
    control.name = "to";
    control.setAttribute("aria-label", "new label");
    if (isNumber) { control.type = "number"; control.step = "any"; }
    else for (const label of this.data.choices) if (label !== issue.given) control.append(new Option(label, label));
    control.value = chosen;
    control.addEventListener("change", () => this.decide(position, "change", false));
    return [control];
  }

  formatFixes() {
    const lines = [...this.decisions].sort(([left], [right]) => left - right).map(([index, { action, to }]) => {
      const issue = this.issues[index], fix = {};
      for (const key of FIX_KEYS) if (issue[key] !== undefined) fix[key] = issue[key];
      return JSON.stringify({ ...fix, action, from: issue.given, to });
    });
    return lines.map((line) => `${line}\n`).join("");
  }

  save() {
    if (!this.decisions.size) return;
    const link = createElement("a");
    link.href = URL.createObjectURL(new Blob([this.formatFixes()], { type: "application/jsonl" }));
    link.download = "label_fixes.jsonl";
    link.click();
    URL.revokeObjectURL(link.href);
  }
}

if ($("data")) new Review(JSON.parse($("data").textContent));
