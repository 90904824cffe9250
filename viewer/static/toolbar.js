/** The top of the page: models, snapshots, the text with its menu of sentences, what is changed, and the copy buttons. */

import { element, quoted, setText } from "./dom.js";
import { fitEdits, listEdits } from "./edits.js";
import { meanLoss, plain, probability, topTokens } from "./numbers.js";

export class Toolbar {
  constructor(view) {
    this.view = view;
    const { models } = view.data;
    this.models = picker("Model", models, false, (id) => view.chooseModels(id, view.state.second === id ? null : view.state.second));
    this.second = picker("Compare with", models, true, (id) => view.chooseModels(view.state.model, id || null));
    this.second.node.hidden = models.length < 2;
    this.step = element("input", { attributes: { type: "range", min: "0", step: "1", "aria-label": "Training step" }, on: { input: () => this.chooseStep() } });
    this.stepText = element("output");
    this.steps = element("label", { class: "pick steps" }, element("span", { text: "Training step" }), this.step, this.stepText);
    const button = (text, title, click) => element("button", { text, title, attributes: { type: "button" }, on: { click } });
    this.saveEdits = button("Save edits", "For --edit edits.json of an instrument", () => view.saveEdits());
    this.copied = element("span", { class: "copied", attributes: { role: "status" } });
    const actions = element(
      "div",
      { class: "actions" },
      this.copied,
      ...(view.host.address ? [button("Copy link", "The address that holds all you see", () => view.copyLink())] : []),
      button("Copy as Python", "The lines that compute these numbers", () => view.copyPython()),
      this.saveEdits,
    );
    if (view.data.report) actions.append(element("a", { text: "Report", attributes: { href: view.data.report } }));
    const brand = element("div", { class: "brand" }, element("h1", { text: "streamscope" }), element("p", { text: "Look into a model, change it, see what happens" }));
    this.bar = element("div", { class: "bar-top" }, brand, this.models.node, this.second.node, this.steps, actions);

    this.text = element("textarea", {
      attributes: { rows: "1", spellcheck: "false", "aria-label": "Text", placeholder: "Type a sentence to begin", title: "Enter runs the model, Shift Enter begins a line", autocomplete: "off", dir: "auto" },
      on: {
        input: () => view.typeText(this.text.value),
        keydown: (event) => {
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          view.typeText(this.text.value, 0);
        },
      },
    });
    this.suites = element("select", { attributes: { "aria-label": "Sentences of the suites" }, on: { change: () => this.chooseCase() } });
    this.fillSuites();
    this.swap = element("button", { text: "Swap order", attributes: { type: "button" }, on: { click: () => view.swapCase() } });
    this.entry = element("div", { class: "entry" }, this.text, element("div", { class: "sentences" }, this.suites, this.swap));
    this.notice = element("p", { class: "notice", attributes: { role: "alert" } });
    this.changes = element("div", { class: "changes", attributes: { "aria-live": "polite" } });
    new ResizeObserver(() => this.grow()).observe(this.entry);
    this.node = element("div", { class: "top" }, this.bar, this.entry, this.notice, this.changes);
  }

  /** Says for two seconds that something was copied. */
  sayCopied() {
    clearTimeout(this.copiedTimer);
    setText(this.copied, "Copied");
    this.copiedTimer = setTimeout(() => setText(this.copied, ""), 2000);
  }

  fillSuites() {
    this.cases = [];
    const empty = element("option", { text: "Sentences …", attributes: { value: "" } });
    const groups = this.view.data.models[0].suites.map(({ title, cases }) => {
      const options = cases.map((entry) => element("option", { text: entry.text, attributes: { value: String(this.cases.push(entry) - 1) } }));
      return element("optgroup", { attributes: { label: title } }, ...options);
    });
    this.suites.replaceChildren(empty, ...groups);
    this.suites.hidden = !this.cases.length;
  }

  /** The suite's case that the text is, with the other of its pair; or null. */
  caseOf(text) {
    const found = this.cases.find((entry) => entry.text === text);
    const other = this.cases.find((entry) => found?.pair && entry.pair === found.pair && entry !== found);
    return found ? { ...found, other } : null;
  }

  chooseCase() {
    const entry = this.cases[Number(this.suites.value)];
    if (this.suites.value && entry) this.view.set({ text: entry.text, token: null, key: null });
  }

  chooseStep() {
    const { snapshots } = this.view.columns[0].model;
    const { step } = snapshots[Number(this.step.value)];
    this.view.set({ step: step === snapshots.at(-1).step ? null : step });
  }

  draw(changes) {
    const { state, columns } = this.view;
    if (!changes.has("result")) {
      if (changes.has("lock")) this.drawChanges();
      return;
    }
    this.models.draw(state.model);
    this.second.draw(state.second ?? "", state.model);
    const { snapshots } = columns[0].model;
    this.steps.hidden = snapshots.length < 2;
    if (snapshots.length > 1) {
      const shown = this.view.nearestStep(columns[0].model) ?? snapshots.at(-1).step;
      this.step.max = String(snapshots.length - 1);
      this.step.value = String(snapshots.findIndex(({ step }) => step === shown));
      setText(this.stepText, snapshots[Number(this.step.value)].step.toLocaleString("en"));
    }
    if (this.text.value !== state.text) this.text.value = state.text;
    const found = this.caseOf(state.text);
    const index = this.cases.findIndex((entry) => entry.text === state.text);
    this.suites.value = index < 0 ? "" : String(index);
    this.swap.hidden = !found?.other;
    this.grow();
    this.drawChanges();
  }

  /** Makes the field as high as its text. */
  grow() {
    this.text.style.height = "auto";
    this.text.style.height = `${this.text.scrollHeight + 2}px`;
  }

  drawChanges() {
    const entries = listEdits(this.view.state.edits);
    this.saveEdits.disabled = !this.view.columns[0].edited;
    if (!entries.length) {
      this.changes.replaceChildren(
        element("p", { class: "lead quiet", text: "Nothing is changed. Choose a head below and turn it off." }, element("span", { class: "keys", text: " Or press space." })),
        element("div", { class: "chips" }),
      );
      return;
    }
    const acts = (edits) => this.view.columns.some(({ model }) => Object.keys(fitEdits(edits, model).edits).length);
    const chips = entries.map(({ label, only, without }) =>
      element("button", {
        class: acts(only) ? "chip" : "chip idle",
        text: label,
        title: acts(only) ? "Undo this change" : "No model shown can be changed so: remove it",
        attributes: { type: "button" },
        on: { click: () => this.view.setEdits(without()) },
      }),
    );
    const missing = this.view.columns.flatMap((column) => column.problems);
    const note = missing.length ? [element("span", { class: "quiet", text: missing[0] + (missing.length > 1 ? ` (and ${missing.length - 1} more)` : "") })] : [];
    const effect = this.effect();
    const { scrollLeft = 0 } = this.changes.querySelector(".chips") ?? {};
    const row = element("div", { class: "chips" }, ...note, ...chips);
    this.changes.replaceChildren(element("p", { class: "lead", text: effect, title: effect }), row);
    row.scrollLeft = scrollLeft;
  }

  /** What the edits do, in one sentence: to the next token, and to the loss; "" without edits, and before an answer. */
  effect(columns = this.view.columns) {
    const { edits } = this.view.state;
    const answered = columns.filter((column) => column.asked === edits);
    if (!listEdits(edits).length || !answered.length) return "";
    const labels = [...new Set(answered.flatMap((column) => listEdits(column.edits).map(({ label }) => label)))]; // what acts
    if (!labels.length) return `Nothing is changed in ${answered.map(({ model }) => model.name).join(" and ")}: ${answered[0].problems[0]}.`;
    const [first] = labels;
    const subject = labels.length > 1 ? `With these ${labels.length} changes` : / off$/.test(first) ? `Without ${first.replace(/ off$/, "")}` : `With ${first}`;
    const several = columns.length > 1;
    const parts = answered.map((column) => {
      const { base, result, model } = column;
      const made = listEdits(column.edits).length;
      if (!made) return `in ${model.name}: nothing is changed`;
      const at = this.view.predictAt(column);
      const [before] = topTokens(base.logits, at, model.vocab, 1);
      const [after] = topTokens(result.logits, at, model.vocab, 1);
      const name = ({ id }) => quoted(model.tokenizer.pieces[id]);
      const next = before.id === after.id ? `stays ${name(after)} (${probability(before.p)} → ${probability(after.p)})` : `becomes ${name(after)} instead of ${name(before)}`;
      const share = made < labels.length ? `, with ${made} of them` : "";
      if (several) return `in ${model.name}${share}: ${name(before)} ${before.id === after.id ? `stays (${probability(before.p)} → ${probability(after.p)})` : `→ ${name(after)}`}`;
      const change = meanLoss(column.losses) - meanLoss(column.baseLosses);
      const loss = Math.abs(change) < 0.0005 ? "the loss stays" : `the loss ${change > 0 ? "rises" : "falls"} by ${plain(Math.abs(change), 3)} nats`;
      return `the next token ${next} and ${loss}`;
    });
    return `${subject}, ${several ? "next token " : ""}${parts.join("; ")}.`;
  }

  say(text) {
    setText(this.notice, text);
    this.notice.hidden = !text;
  }
}

function picker(label, models, optional, onChoice) {
  const select = element("select", { on: { change: () => onChoice(select.value) } });
  if (optional) select.append(element("option", { text: "no other", attributes: { value: "" } }));
  for (const { id, name } of models) select.append(element("option", { text: name, attributes: { value: id } }));
  const node = element("label", { class: "pick" }, element("span", { text: label }), select);
  const draw = (value, other) => {
    select.value = value;
    for (const option of select.options) option.disabled = optional && option.value === other;
    node.title = models.find(({ id }) => id === value)?.about ?? "";
  };
  return { node, draw };
}
