/** Holds the state, asks the engines, and draws what changed. */

import { readColours } from "./colours.js";
import { Controls } from "./controls.js";
import { element, printable } from "./dom.js";
import { fitEdits, hasHead, headName, parseHead, setHead, spellOut } from "./edits.js";
import { Heads } from "./heads.js";
import { Latents } from "./latents.js";
import { Lens } from "./lens.js";
import { Next } from "./next.js";
import { patternShift, tokenLosses, topTokens } from "./numbers.js";
import { download, drawPng, drawSvg } from "./save.js";
import { Stage } from "./stage.js";
import { fromHash, toHash } from "./state.js";
import { Tip } from "./tip.js";
import { Toolbar } from "./toolbar.js";

const TYPING_PAUSE = 120; // ms
const BROAD = 12; // heads in a layer: more take the whole width
const ALL = ["result", "focus", "head", "view", "lock", "edges"];

/** One model on the page: its engine, the tokens, the answer as trained (`base`) and with the edits (`result`). */
class Column {
  constructor(model, engine) {
    this.model = model;
    this.engine = engine;
    this.edits = {};
    this.problems = [];
    this.tokens = [];
    this.texts = [];
    this.answers = [];
    this.asked = null;
    this.base = null;
    this.result = null;
    this.edited = false;
  }
}

export class View {
  /**
   * @param {HTMLElement} root
   * @param {Object} data  models, suites and the first state, as the host packed them
   * @param {function(Object): Object} makeEngine  a model's description to its engine
   * @param {{address?: boolean, onAnswer?: function({text: string, edits: Object}): void}} [host]  whether the address
   *   holds the state, and a function that gets what the first model answered
   */
  constructor(root, data, makeEngine, host = {}) {
    this.root = root;
    this.data = data;
    this.makeEngine = makeEngine;
    this.host = host;
    this.engines = new Map();
    this.defaults = this.firstState();
    this.state = { ...this.defaults };
    this.columns = [];
    this.hover = null;
    this.preview = null;
    this.errors = [];
    root.classList.add("viewer");
    this.toolbar = new Toolbar(this);
    this.panels = element("div", { class: "panels" });
    const keys = "Keys: ← → token, ↑ ↓ head, Shift ↑ ↓ layer, space turns the head off or on, Esc unlocks.";
    root.append(this.toolbar.node, this.panels, element("p", { class: "hint keys", text: keys }));
    this.panels.hidden = true;
    this.toolbar.say("Starting the model.");
    this.tip = new Tip(root);
    this.colours = readColours(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.colours = readColours(root);
      this.draw(ALL);
    });
    (host.address ? document : root).addEventListener("keydown", (event) => this.key(event));
    if (host.address) {
      this.readAddress();
      addEventListener("hashchange", () => this.readAddress());
    } else this.apply(this.state, []);
  }

  firstState() {
    const { data } = this;
    const model = data.models[0];
    const text = model.suites[0]?.cases[0]?.text ?? "Lily had a red ball. She";
    const state = { text, model: model.id, second: null, step: null, head: null, token: null, key: null, compare: null, view: "lines", grid: "pattern", share: null, edges: "part", lens: "sum", edits: {} };
    return { ...state, ...data.state };
  }

  // State

  readAddress() {
    if (location.hash === this.address) return;
    this.address = location.hash;
    const { state, problems, missing } = fromHash(location.hash, this.defaults, this.data.models);
    const lines = [["Not understood in the address", problems], ["In the address, but not in what is shown", missing]];
    this.apply(state, lines.filter(([, names]) => names.length).map(([line, names]) => `${line}: ${names.join(", ")}.`));
  }

  apply(state, notices) {
    this.state = state;
    this.foreign = notices;
    this.build();
    this.refresh();
  }

  /** Changes the state: draws what follows from it, and runs the model where an answer depends on it. */
  set(changes) {
    const before = this.state;
    this.state = { ...before, ...changes };
    this.foreign = [];
    const differs = (...names) => names.some((name) => before[name] !== this.state[name]);
    if (differs("model", "second")) this.build();
    if (differs("model", "second", "text", "step", "edits", "compare")) this.refresh();
    const drawn = [];
    if (differs("view", "grid", "lens")) drawn.push("view", "focus");
    if (differs("share", "edges")) drawn.push("edges");
    if (differs("head")) drawn.push("head", "focus");
    if (differs("token", "key")) drawn.push("lock", "focus");
    if (drawn.length) this.draw(drawn);
    this.writeAddress();
  }

  writeAddress() {
    if (!this.host.address) return;
    this.address = toHash(this.state, this.defaults);
    history.replaceState(null, "", this.address);
  }

  setEdits(edits) {
    this.set({ edits });
  }

  chooseModels(model, second) {
    this.set({ model, second: second === model ? null : second, step: null });
  }

  typeText(text, pause = TYPING_PAUSE) {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.set({ text, token: null, key: null }), pause);
  }

  swapCase() {
    const { text } = this.state;
    const found = this.toolbar.caseOf(text);
    if (found?.other) this.set({ text: found.other.text, token: null, key: null });
  }

  toggleHead() {
    const { edits } = this.state;
    const head = this.shownHead();
    if (!this.columns.some(({ model }) => hasHead(model, head) && model.controls.scale === true)) return;
    this.setEdits(setHead(edits, head, "scale", edits.heads?.[head]?.scale === 0 ? 1 : 0));
  }

  // Focus: what the pointer is on, else what is locked

  focus(target) {
    const same = this.hover?.query === target?.query && this.hover?.key === target?.key;
    if (same) return;
    this.hover = target;
    this.draw(["focus"]);
  }

  /** The pointer is on no token any more. */
  leave() {
    this.focus(null);
    this.tip.hide();
  }

  /** The focus in a column; null if it lies beyond its text: what is pointed at may be a token of another text. */
  focused({ tokens }) {
    const { token, key } = this.state;
    const focus = this.hover ?? (token === null ? null : { query: token, key });
    return focus && Math.max(focus.query, focus.key ?? 0) < tokens.length ? focus : null;
  }

  lock(token, key) {
    const again = this.state.token === token && this.state.key === key;
    this.set(again ? { token: null, key: null } : { token, key });
  }

  /** The head that stage, controls and keys are about: the one pointed at, else the chosen one. */
  shownHead() {
    return this.preview ?? this.state.head;
  }

  previewHead(head) {
    const next = head === this.state.head ? null : head;
    if (next === this.preview) return;
    this.preview = next;
    this.draw(["head", "focus"]);
  }

  key(event) {
    const { target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      if (target instanceof HTMLElement && target.matches("textarea, input, select")) target.blur();
      else this.set({ token: null, key: null });
      return;
    }
    if (target instanceof Element && target.closest("textarea, input, select")) return;
    if (event.key === " " && target instanceof Element && target.closest("button, a")) return;
    const moves = { ArrowLeft: () => this.moveToken(-1), ArrowRight: () => this.moveToken(1), " ": () => this.toggleHead() };
    moves.ArrowUp = () => this.moveHead(event.shiftKey ? -this.columns[0].model.heads : -1);
    moves.ArrowDown = () => this.moveHead(event.shiftKey ? this.columns[0].model.heads : 1);
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  }

  moveToken(by) {
    const { length } = this.columns[0].tokens;
    if (!length) return;
    const at = this.state.token === null ? (by > 0 ? 0 : length - 1) : this.state.token + by;
    this.set({ token: Math.max(0, Math.min(length - 1, at)), key: null });
  }

  chooseHead(head) {
    this.preview = null;
    if (head === this.state.head) this.draw(["head", "focus"]);
    else this.set({ head });
  }

  moveHead(by) {
    if (this.shownHead() === null) return;
    const { layers, heads } = this.columns[0].model;
    const { layer, head } = parseHead(this.shownHead());
    const at = Math.max(0, Math.min(layers * heads - 1, layer * heads + head + by));
    this.chooseHead(headName(Math.floor(at / heads), at % heads));
  }

  /** The position whose next token is shown: the last one where a case asks for it, else the locked one. */
  predictAt({ tokens, answers }) {
    const last = tokens.length - 1;
    return answers.length ? last : Math.min(this.state.token ?? last, last);
  }

  likeliest({ result, model }, at) {
    return topTokens(result.logits, at, model.vocab, 1)[0].id;
  }

  // Answers

  /** Columns and panels for the models of the state. */
  build() {
    const ids = [this.state.model, this.state.second].filter((id) => id !== null);
    const models = ids.map((id) => this.data.models.find((model) => model.id === id));
    this.columns = models.map((model) => {
      if (!this.engines.has(model.id)) this.engines.set(model.id, this.makeEngine(model));
      return new Column(model, this.engines.get(model.id));
    });
    const { head, edits } = this.state;
    this.state = { ...this.state, head: hasHead(models[0], head) ? head : null, edits: spellOut(edits, models) };
    for (const panel of this.drawn ?? []) panel.resize?.disconnect();
    const each = (Panel) => this.columns.map((column) => new Panel(this, column));
    const groups = { stages: each(Stage), middle: [each(Heads), [new Controls(this)], each(Next)].flat(), lenses: each(Lens) };
    if (models.some((model) => model.dictionary)) groups.lenses.push(...each(Latents));
    this.drawn = Object.values(groups).flat();
    for (const panel of this.drawn) if (panel.column) this.addSaving(panel);
    this.panels.replaceChildren(...Object.entries(groups).map(([name, panels]) => element("div", { class: name }, ...panels.map((panel) => panel.node))));
    this.panels.classList.toggle("two", this.columns.length > 1);
    this.panels.classList.toggle("broad", models.some(({ heads }) => heads > BROAD));
    this.key0 = null;
  }

  addSaving(panel) {
    const save = (kind) =>
      element("button", {
        class: "quiet",
        text: kind,
        title: `Save this picture as ${kind}`,
        attributes: { type: "button" },
        on: { click: () => this.save(panel, kind) },
      });
    panel.card.head.lastElementChild.prepend(element("span", { class: "saving" }, save("SVG"), save("PNG")));
  }

  async save(panel, kind) {
    const name = `${panel.column.model.id}-${panel.node.classList[1]}.${kind.toLowerCase()}`;
    const title = [...panel.card.heading.childNodes].filter((part) => !part.hidden).map((part) => part.textContent).join(" ");
    const svg = drawSvg(panel.node, `${title}: ${panel.column.text}`, this.caption(panel.column), () => panel.placeEdges?.());
    download(kind === "SVG" ? new Blob([svg], { type: "image/svg+xml" }) : await drawPng(svg), name);
  }

  /** What a saved picture says below: model, text and head changes, which the card alone does not show. */
  caption(column) {
    const changes = this.toolbar.effect([column]);
    const step = this.nearestStep(column.model);
    const name = step === null ? column.model.name : `${column.model.name}, training step ${step.toLocaleString("en")}`;
    return [`${name}: ${column.text}`, ...(changes ? [changes] : [])];
  }

  /** Runs the models for the newest state; a call during a run is remembered, older states are skipped. */
  async refresh() {
    this.panels.classList.toggle("stale", this.columns.some(({ text }) => text !== this.state.text));
    if (this.running) {
      this.again = true;
      return;
    }
    this.running = true;
    this.root.dataset.state = "busy";
    do {
      this.again = false;
      const notices = [...(this.foreign ?? [])];
      for (const column of [...this.columns]) {
        try {
          const refused = await this.answer(column);
          if (refused) notices.push(refused);
        } catch (error) {
          notices.push(error instanceof Error ? error.message : String(error));
        }
      }
      if (this.again) continue;
      this.toolbar.say(notices.join(" "));
      this.draw(ALL);
    } while (this.again);
    this.running = false;
    this.panels.classList.remove("stale");
    this.root.dataset.state = "ready";
    for (const panel of this.drawn) panel.drawEffects?.();
    const { text, edits } = this.columns[0];
    if (text !== undefined) this.host.onAnswer?.({ text, edits });
  }

  /** Brings a column up to the state; returns one line where the text is refused. */
  async answer(column) {
    const { model, engine } = column;
    const { text, edits } = this.state;
    const ids = await engine.tokenize(text);
    const typed = Int32Array.from(model.tokenizer.bos_id === null ? ids : [model.tokenizer.bos_id, ...ids]);
    const refused = refusal(typed, column);
    const tokens = refused ? column.tokens : typed; // edits act on the text that is shown
    if (!tokens.length) return refused;
    const step = this.nearestStep(model);
    const fitted = fitEdits(edits, model);
    const basis = JSON.stringify([Array.from(tokens), step]);
    const started = performance.now();
    const run = (changes) => this.alone(() => engine.run(tokens, changes, step));
    const fresh = column.basis !== basis;
    const edited = Object.keys(fitted.edits).length > 0;
    const base = fresh ? await run({}) : column.base;
    const result = edited ? await run(fitted.edits) : base;
    const shown = refused ? column.text : text;
    const question = JSON.stringify([shown, this.state.compare]);
    const answers = column.question === question ? column.answers : await this.answersOf(engine, shown);
    // no await from here on, so that all that is drawn is of one answer
    if (fresh) {
      column.basis = basis;
      column.base = base;
      column.tokens = tokens;
      column.text = shown;
      column.texts = describeTokens(tokens, model.tokenizer);
      column.baseLosses = tokenLosses(base.logits, tokens, model.vocab);
    }
    column.answers = answers;
    column.question = question;
    if (this.state.head === null) this.state = { ...this.state, head: (model.start?.text === shown && model.start.head) || mostAttentive(column) };
    column.result = result;
    column.asked = edits;
    column.edits = fitted.edits;
    column.problems = fitted.problems;
    column.edited = edited;
    column.losses = column.edited ? tokenLosses(column.result.logits, tokens, model.vocab) : column.baseLosses;
    column.shift = patternShift(column.base.patterns, column.result.patterns, model.layers * model.heads, tokens.length);
    column.milliseconds = performance.now() - started;
    const { token, key } = this.state;
    if (Math.max(token ?? 0, key ?? 0) < tokens.length) return refused;
    this.state = { ...this.state, token: null, key: null };
    return refused ?? `Token ${token} is not in this text: none is locked.`;
  }

  /** The snapshot of a model whose training step is nearest to the one chosen; null for the final weights. */
  nearestStep(model) {
    const { step } = this.state;
    if (step === null || model.snapshots.length < 2) return null;
    return model.snapshots.reduce((a, b) => (Math.abs(b.step - step) < Math.abs(a.step - step) ? b : a)).step;
  }

  /** The first tokens of two candidates: those of one's own, else the answers of the suite whose case the text is. */
  async answersOf(engine, text) {
    const own = this.state.compare;
    const found = this.toolbar.caseOf(text);
    const roles = own ? ["first", "second"] : ["right", "wrong"];
    const words = own ? own.map(withSpace) : [found?.answers[0], found?.foils[0]];
    const answers = [];
    for (const [at, word] of words.entries()) {
      const ids = word ? await engine.tokenize(word) : [];
      if (ids.length) answers.push({ role: roles[at], id: ids[0], label: word.trim() });
    }
    return answers.length === 2 && answers[0].id !== answers[1].id ? answers : [];
  }

  draw(names) {
    const changes = new Set(names);
    const started = performance.now();
    this.toolbar.draw(changes);
    this.panels.hidden = !this.columns[0].result;
    if (this.panels.hidden) return;
    for (const panel of this.drawn) panel.draw(changes);
    this.drawMilliseconds = performance.now() - started;
  }

  /** Runs one piece of work with the engines at a time: a session of ONNX Runtime answers one question after the other. */
  alone(work) {
    const turn = (this.turn ?? Promise.resolve()).then(work);
    this.turn = turn.catch(() => {});
    return turn;
  }

  /** Does work after what is drawn now, at the latest after a fifth of a second. */
  whenIdle(work) {
    if (globalThis.requestIdleCallback) requestIdleCallback(work, { timeout: 200 });
    else setTimeout(work);
  }

  // Copies

  async copyLink() {
    await this.copy("Link", location.href);
  }

  async copyPython() {
    if (this.columns[0].result) await this.copy("Python", this.python());
  }

  /** Lets the browser save the edits of the first model, for `--edit` of the commands. */
  saveEdits() {
    const text = `${JSON.stringify(this.columns[0].edits, null, 2)}\n`;
    download(new Blob([text], { type: "application/json" }), "edits.json");
  }

  /** The lines of Python that compute what the first model shows. */
  python() {
    const { model, text, edits } = this.columns[0];
    const { layer, head } = parseHead(this.state.head);
    const values = {
      TEXT: JSON.stringify(text),
      EDITS: JSON.stringify(edits, null, 1).replaceAll(/\n */g, " "),
      LAYER: String(layer),
      HEAD: String(head),
      STEP: this.nearestStep(model) === null ? "" : `@${this.nearestStep(model)}`,
    };
    return model.python.replace(/\{(TEXT|EDITS|LAYER|HEAD|STEP)\}/g, (_, name) => values[name]);
  }

  /** Copies a text and says so for two seconds. Where the browser forbids it, the text is shown to be copied by hand. */
  async copy(title, text) {
    const writing = navigator.clipboard?.writeText(text) ?? Promise.reject(new Error("no clipboard"));
    if (await writing.then(() => true, () => this.copySelected(text))) {
      this.toolbar.sayCopied();
      return;
    }
    const area = element("textarea", { attributes: { readonly: "", rows: String(Math.min(16, text.split("\n").length + 1)) } });
    area.value = text;
    const note = element("p", { class: "hint", text: "Press Ctrl+C to copy it." });
    const close = element("button", { text: "Close", attributes: { type: "button" }, on: { click: () => dialog.close() } });
    const dialog = element("dialog", { attributes: { "aria-label": title }, on: { close: () => dialog.remove() } }, element("h2", { text: title }), note, area, close);
    this.root.append(dialog);
    dialog.showModal();
    area.select();
  }

  /** Copies a text without the clipboard's permission, through a selection; returns whether the browser did it. */
  copySelected(text) {
    const area = element("textarea", { class: "unseen", attributes: { readonly: "", "aria-hidden": "true" } });
    const focused = document.activeElement;
    area.value = text;
    this.root.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focused?.focus?.();
    return copied;
  }
}

/** A word as it follows another one: with a space in front. What begins with a mark or a space stays. */
function withSpace(word) {
  return /^[\p{L}\p{N}]/u.test(word) ? ` ${word}` : word;
}

/** Why a column does not read these tokens, in one line, or null. */
function refusal(tokens, { model, tokens: shown }) {
  if (tokens.length < 2) return "Type at least one word.";
  if (tokens.length <= model.n_ctx) return null;
  const last = shown.length ? " The last text that fitted is shown." : "";
  return `${tokens.length} of ${model.n_ctx} tokens: ${model.name} reads no longer text, so shorten it.${last}`;
}

/** The head of a text that nobody measured before: it attends most from the last token to a case's answer, else to a word. */
function mostAttentive({ model, base, tokens, answers }) {
  const length = tokens.length;
  const words = [...tokens.keys()].slice(1, -1);
  const nouns = words.filter((t) => answers[0]?.id === tokens[t]);
  const keys = nouns.length ? nouns : words;
  let best = { weight: -1, at: (model.layers - 1) * model.heads };
  for (let at = 0; at < model.layers * model.heads; at++)
    for (const key of keys) {
      const weight = base.patterns[(at * length + length - 1) * length + key];
      if (weight > best.weight) best = { weight, at };
    }
  return headName(Math.floor(best.at / model.heads), best.at % model.heads);
}

/** What the page writes for each token: its label, its full text, and whether a space stands before it. */
function describeTokens(tokens, { pieces, bos_id: bos }) {
  return Array.from(tokens, (id, at) => {
    const text = pieces[id] ?? `#${id}`;
    if (at === 0 && id === bos) return { label: "start", title: text, quoted: "the start", spaced: true, start: true };
    const label = printable(text);
    const word = label.trim() ? label.replace(/^ /, "") : label.replaceAll(" ", "␣") || "∅";
    return { label: word, title: text, quoted: `“${word.trim()}”`, spaced: label.startsWith(" ") };
  });
}
