// The page of `bertkit serve`: a form with the input columns of a model, and its prediction.

const state = { models: [], model: null, token: "" };

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (state.token) headers.Authorization = `Bearer ${state.token}`;
  const response = await fetch(path, { ...options, headers });
  const content = await response.json().catch(() => null);  // a proxy may send HTML
  if (content === null) throw Object.assign(new Error(`server: sent no JSON (status ${response.status}); try again later`), { status: response.status });
  if (!response.ok) throw Object.assign(new Error(content.error), { status: response.status });
  return content;
}

function showError(error) {
  $("error").textContent = error ? error.message : "";
  $("error").hidden = !error;
}

// ---- form

const PLACEHOLDERS = {
  text: "", words: "a sentence", texts: "one choice per line", "optional text": "optional",
};

function showModel(name) {
  state.model = state.models.find((model) => model.name === name);
  const fields = $("fields");
  fields.replaceChildren();
  for (const [column, kind] of Object.entries(state.model.columns)) {
    const label = createElement("label", "wide"), box = createElement("textarea");
    label.append(createIsolatedElement("span", "", column), box);
    Object.assign(box, { name: column, rows: kind === "text" || kind === "texts" ? 3 : 2, dir: "auto",
      required: kind !== "optional text", placeholder: PLACEHOLDERS[kind] });
    fields.append(label);
  }
  $("result").replaceChildren();
  showFacts();
}

function showFacts() {
  const { name, task, labels, model, data, backend, members, max_length, validation } = state.model;
  const facts = { name, task, "initial model": model, data, backend,
    "maximum length": `${max_length} tokens` };
  if (labels.length) facts.labels = labels.join(", ");
  if (members > 1) facts.ensemble = `${members} models`;
  for (const [score, value] of Object.entries(validation || {})) {
    if (typeof value === "number") facts[`validation ${score}`] = value.toFixed(3);
  }
  $("facts").replaceChildren();
  for (const [fact, value] of Object.entries(facts)) {
    $("facts").append(createElement("dt", "", fact), createIsolatedElement("dd", "", value));
  }
  $("subtitle").textContent = `${task} · ${data} · ${model}`;
  $("model").hidden = false;
}

function readRow() {
  const row = {};
  for (const [column, kind] of Object.entries(state.model.columns)) {
    const text = document.querySelector(`#fields textarea[name="${CSS.escape(column)}"]`).value;
    if (kind === "texts") row[column] = text.split("\n").filter((line) => line.trim());
    else if (kind !== "optional text" || text) row[column] = text;
  }
  return row;
}

// ---- prediction

function markSpans(text, spans) {
  // Offsets count Unicode characters, while JavaScript counts UTF-16 units.
  const characters = Array.from(text), field = createIsolatedElement("p", "field");
  const types = [...new Set(spans.map((span) => span.label))].sort();
  let position = 0;
  for (const { start, end, label, score } of spans) {
    const mark = createElement("mark", label ? `type${types.indexOf(label) % 8}` : "");
    mark.append(createIsolatedElement("span", "text", characters.slice(start, end).join("")));
    if (label) mark.append(createElement("small", "", `${label} ${score.toFixed(2)}`));
    field.append(characters.slice(position, start).join(""), mark);
    position = end;
  }
  field.append(characters.slice(position).join(""));
  return field;
}

function createTable(caption, rows) {
  const table = createElement("table"), body = createElement("tbody");
  table.append(createElement("caption", "note", caption), body);
  for (const [name, probability, isSelected] of rows) {
    const row = createElement("tr"), head = createIsolatedElement("th", "name", name);
    const cell = createElement("td", "bars"), bar = createElement("meter");
    const number = createElement("td", "n", probability.toFixed(3));
    head.scope = "row";
    if (isSelected) { head.classList.add("main"); number.classList.add("main"); }
    Object.assign(bar, { min: 0, max: 1, value: probability });
    bar.setAttribute("aria-label", `probability of ${name}`);
    cell.append(bar);
    row.append(head, cell, number);
    body.append(row);
  }
  const card = createElement("div", "scroll card");
  card.append(table);
  return card;
}

function getChoices(row, model) {
  const lists = Object.entries(model.columns).filter(([, kind]) => kind === "texts");
  if (lists.length) return row[lists[0][0]];
  return Object.keys(model.columns).filter((column) => column in row).map((column) => row[column]);
}

function showPrediction(record, row, model) {
  const parts = [], say = (text) => parts.push(createIsolatedElement("p", "main", text));
  if (record.entities) {
    parts.push(markSpans(record.text, record.entities));
    if (!record.entities.length) say("no entities");
  } else if ("answer" in record) {
    say(record.answer === "" ? "no answer in the text" : record.answer);
    const spans = record.answer === "" ? [] : [{ start: record.start, end: record.end }];
    parts.push(markSpans(record.context, spans));
    // "No answer" is decided by a threshold, so it may be shown even if it is not among the most probable.
    const answers = (record.nbest || []).filter((item, i) => i < 5 || item.text === "");
    parts.push(createTable("best answers", answers.map((item) => [item.text || "(no answer)", item.probability, item.text === record.answer])));
  } else if (Array.isArray(record.probabilities)) {
    const endings = getChoices(row, model).slice(-record.probabilities.length);
    const best = record.probabilities.indexOf(Math.max(...record.probabilities));
    parts.push(createTable("probability of each choice", endings.map((text, i) => [text, record.probabilities[i], i === best])));
  } else {
    const predicted = [record.predicted].flat().map(String);
    say(predicted.join(", ") || "no label");
    const rows = Object.entries(record.probabilities || {}).sort((a, b) => b[1] - a[1])
      .map(([label, probability]) => [label, probability, predicted.includes(label)]);
    if (rows.length) parts.push(createTable("probability of each label", rows));
  }
  if (record.abstained) say("The model abstains: its confidence is low.");
  // Before the labels, which can be many.
  if (record.out_of_scope) parts.unshift(createElement("p", "main", "Out of scope: the text seems to belong to no class."));
  const details = createElement("details");
  details.append(createElement("summary", "", "JSON"), createElement("pre", "field", JSON.stringify(record, null, 2)));
  $("result").replaceChildren(...parts, details);
}

async function predict() {
  showError(null);
  $("predict").disabled = true;
  const model = state.model;
  try {
    const row = readRow(), query = new URLSearchParams({ model: model.name, all_scores: "true" });
    const body = JSON.stringify(row), headers = { "Content-Type": "application/json" };
    const record = await request(`predict?${query}`, { method: "POST", body, headers });
    if (state.model === model) showPrediction(record, row, model);
  } catch (error) {
    if (state.model !== model) return;
    $("result").replaceChildren();
    showError(error);
  } finally {
    $("predict").disabled = false;
  }
}

// ---- start

async function start() {
  showError(null);
  try {
    state.models = (await request("info")).models;
  } catch (error) {
    $("token-form").hidden = error.status !== 401;
    // A link cannot send the token.
    if (error.status === 401) for (const link of document.querySelectorAll("nav a")) link.hidden = true;
    if (error.status !== 401 || state.token) showError(error);
    return;
  }
  $("token-form").hidden = true;
  const select = $("form").elements.model;
  select.replaceChildren(...state.models.map((model) => new Option(model.name)));
  $("model-label").hidden = state.models.length < 2;
  $("form").hidden = false;
  showModel(state.models[0].name);
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); predict(); });
$("form").elements.model.addEventListener("change", (event) => showModel(event.target.value));
$("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = event.target.elements.token.value.trim();
  start();
});
start();
