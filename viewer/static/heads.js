/**
 * All heads as thumbnails, layers downwards: the pattern, its change, how much the model needs the head, or the edges of a circuit. The bar below is how
 * far a change moved it, the bar above its attention between two tokens: the locked or last one, and the one pointed at.
 */

import { Circuit } from "./circuit.js";
import { card, cueEdges, element, segments, setText } from "./dom.js";
import { colourAt, paintPattern } from "./colours.js";
import { headName } from "./edits.js";
import { Effects } from "./effects.js";
import { plain, signed } from "./numbers.js";

/** What asks for a pointer: a saved picture leaves it out. */
const invitation = (text) => element("span", { class: "invites", text });

export class Heads {
  constructor(view, column) {
    this.view = view;
    this.column = column;
    const { model } = column;
    const modes = [["pattern", "Pattern"], ["change", "Change"], ["effect", "Effect"]];
    if (view.columns.some((one) => one.model.circuit)) modes.push(["circuit", "Circuit"]);
    this.modes = segments("Thumbnails show", modes, (value) => view.set({ grid: value }));
    this.card = card("heads", view.columns.length > 1 ? `Heads of ${model.name}` : "All heads", "", [this.modes.node]);
    this.effects = new Effects(view, column, () => this.drawEffects());
    this.thumbs = [];
    const grid = element("div", {
      class: "grid",
      attributes: { role: "listbox", "aria-label": "Heads", tabindex: "0" },
      on: {
        pointerover: (event) => this.point(event),
        pointerleave: () => view.previewHead(null),
        click: (event) => this.choose(event),
      },
    });
    grid.style.setProperty("--heads", String(model.heads));
    grid.style.setProperty("--layers", String(model.layers));
    cueEdges(grid);
    const part = (name, text, wide) => element("span", { class: `part${wide ? " wide" : ""}`, text, data: { part: name }, title: name });
    if (model.circuit) grid.append(part("input", "input", true));
    grid.append(element("span", { class: "corner" }));
    for (let head = 0; head < model.heads; head++) grid.append(element("span", { class: "axis", text: `H${head}` }));
    if (model.circuit) grid.append(element("span", { class: "axis of-parts", text: "FFN" }));
    for (let layer = 0; layer < model.layers; layer++) {
      grid.append(element("span", { class: "axis", text: `L${layer}`, data: { axis: String(layer) } }));
      for (let head = 0; head < model.heads; head++) {
        const canvas = element("canvas");
        const mark = element("span", { class: "mark" });
        const moved = element("span", { class: "moved" });
        const looks = element("span", { class: "looks" });
        const name = headName(layer, head);
        const node = element("div", { class: "thumb", data: { head: name }, attributes: { role: "option" } }, canvas, mark, moved, looks);
        this.thumbs.push({ node, canvas, mark, moved, looks, name });
        grid.append(node);
      }
      if (model.circuit) grid.append(part(`m${layer}`, `m${layer}`, false));
    }
    if (model.circuit) grid.append(part("logits", "logits", true));
    this.circuit = model.circuit ? new Circuit(view, column, grid) : null;
    if (this.circuit) {
      this.resize = new ResizeObserver(() => this.placeEdges());
      this.resize.observe(grid);
    }
    this.legend = element("p", { class: "legend" });
    this.finders = element("p", { class: "finders", on: { click: (event) => this.chooseFinder(event) } });
    this.card.body.append(...(this.circuit ? [this.circuit.bar] : []), grid, this.finders, this.legend);
    this.node = this.card.node;
  }

  point(event) {
    const thumb = event.target.closest(".thumb");
    this.view.previewHead(thumb && event.pointerType !== "touch" ? thumb.dataset.head : null);
  }

  choose(event) {
    const below = document.elementsFromPoint(event.clientX, event.clientY); // an edge may lie over the square
    const thumb = event.target.closest(".thumb") ?? below.find((node) => node.matches(".thumb"));
    if (thumb) this.view.chooseHead(thumb.dataset.head);
  }

  chooseFinder(event) {
    const button = event.target.closest("button");
    if (button) this.view.chooseHead(button.dataset.head);
  }

  /** The pair of tokens whose attention is compared: the later one looks at the earlier one. */
  pair() {
    const { token } = this.view.state;
    const focus = this.view.focused(this.column);
    if (!focus) return null;
    if (focus.key !== null) return [focus.query, focus.key];
    const at = focus.query;
    const other = token === null || token === at ? this.column.tokens.length - 1 : token;
    return at === other ? null : [Math.max(at, other), Math.min(at, other)];
  }

  /** Which heads attend from one token of the pair to the other: a blue bar on each, and the three that do most. */
  drawPair() {
    const { column } = this;
    const pair = this.pair();
    const key = pair && `${pair} ${column.tokens.length}`;
    if (key === this.drawnPair && column.result === this.drawnResult) return;
    this.drawnPair = key;
    this.drawnResult = column.result;
    const length = column.tokens.length;
    const weights = this.thumbs.map((_, at) => (pair ? column.result.patterns[(at * length + pair[0]) * length + pair[1]] : 0));
    this.thumbs.forEach(({ looks }, at) => looks.style.setProperty("--share", weights[at].toFixed(3)));
    if (!pair) {
      this.finders.replaceChildren(invitation("Point at a token to find the heads that attend to it."));
      return;
    }
    const best = weights.map((weight, at) => ({ weight, name: this.thumbs[at].name })).sort((a, b) => b.weight - a.weight);
    const [from, to] = pair.map((at) => column.texts[at].quoted);
    this.finders.replaceChildren(
      `Attention from ${from} to ${to}: `,
      ...best.slice(0, 3).map(({ weight, name }) =>
        element("button", { text: `${name} ${plain(weight)}`, data: { head: name }, attributes: { type: "button" } }),
      ),
    );
  }

  circuitShown() {
    return this.view.state.grid === "circuit" && this.circuit !== null;
  }

  /** Puts the edges of a circuit where the squares are now. */
  placeEdges() {
    if (this.circuitShown()) this.circuit.drawEdges();
  }

  /** The edges of the circuit, with what their colours mean below. */
  drawCircuit(changes) {
    const { view, circuit } = this;
    this.node.classList.toggle("circuit", this.circuitShown());
    if (view.state.grid !== "circuit") return;
    if (!circuit) {
      setText(this.card.hint, `No circuit was given for ${this.column.model.name}.`);
      return;
    }
    if (["result", "view", "edges"].some((name) => changes.has(name))) {
      setText(this.card.hint, `${this.column.model.circuit.file}: what reads what, from above. Wider: a larger score; dotted: below 0. Point at an edge for its name.`);
      circuit.draw();
      this.legend.replaceChildren(...circuit.keys());
    } else if (changes.has("head")) circuit.drawFocus();
  }

  /** Colours each square by its head's effect, with the strongest in a sentence below. */
  drawEffects() {
    const { view, column, effects } = this;
    if (view.state.grid !== "effect" || !column.result) return;
    const job = effects.current();
    const known = this.thumbs.map(({ name }, at) => ({ name, value: job.values[at] })).filter(({ value }) => Number.isFinite(value));
    known.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const most = Math.max(0.01, ...known.map(({ value }) => Math.abs(value)));
    this.thumbs.forEach(({ node, name }, at) => {
      const value = job.values[at];
      const share = 0.5 + 0.5 * Math.sign(value) * Math.sqrt(Math.abs(value) / most);
      node.style.setProperty("--effect", Number.isFinite(value) ? colourAt(view.colours.change, share) : "transparent");
      node.dataset.effect = Number.isFinite(value) ? String(value) : "";
      node.title = Number.isFinite(value) ? `${name} off: ${job.score.name} ${signed(value)}` : `${name}: not measured yet`;
    });
    setText(this.card.hint, "Each head off alone. Blue: the score falls without it; orange: it rises.");
    if (effects.waits(job)) {
      const seconds = Math.ceil(effects.milliseconds(job) / 1000);
      const click = () => {
        effects.allow();
        this.drawEffects();
      };
      this.legend.replaceChildren(element("button", { text: `Measure all heads (about ${seconds} s)`, attributes: { type: "button" }, on: { click } }));
      return;
    }
    const shown = known.find(({ name }) => name === view.preview);
    const list = known.slice(0, 3).map(({ name, value }) => `${name} ${signed(value)}`);
    const progress = job.done < job.count ? `Measuring: ${job.done} of ${job.count}. ` : "";
    setText(
      this.legend,
      job.problem ?? (shown ? `${shown.name} off: ${job.score.name} ${signed(shown.value)}.` : `${progress}${list.length ? `Strongest on the ${job.score.name}: ${list.join(", ")}.` : ""}`),
    );
    if (!view.running) effects.measure();
  }

  draw(changes) {
    const { view, column } = this;
    if (!column.result) return;
    const { state } = view;
    const length = column.tokens.length;
    const changing = state.grid === "change";
    if (changes.has("result") || changes.has("view")) {
      const packed = changing ? view.colours.change : view.colours.pattern;
      const most = Math.max(1e-9, ...view.columns.flatMap(({ shift }) => [...(shift ?? [])])); // one scale for all models
      this.thumbs.forEach(({ canvas, mark, moved, name, node }, at) => {
        const before = changing ? column.base.patterns : null;
        paintPattern(canvas, packed, column.result.patterns, at * length * length, length, before);
        const settings = column.edits.heads?.[name];
        const off = settings?.scale === 0;
        node.classList.toggle("off", off);
        const scale = settings?.scale === undefined || off ? "" : `×${settings.scale}`;
        setText(mark, settings && !off ? scale || (settings.alpha ? `α${settings.alpha}` : settings.gate) : "");
        moved.style.setProperty("--share", column.edited ? Math.max(0, column.shift[at] / most).toFixed(3) : "0");
        node.title = `${name}${off ? ", off" : ""}${column.edited ? `: pattern moved by ${plain(column.shift[at], 3)}` : ""}`;
      });
      setText(
        this.card.hint,
        changing
          ? "Orange: more attention than as trained; blue: less."
          : "A square per head. A row is a token; stronger cells are the tokens it attends to.",
      );
      const top = column.edited ? column.shift.indexOf(Math.max(...column.shift)) : -1;
      this.legend.replaceChildren(
        top >= 0 && column.shift[top] > 0.0005
          ? `Orange: how far your change moved each pattern; most that of ${this.thumbs[top].name}, ${plain(column.shift[top], 3)}.`
          : column.edited
            ? "Your change moved no pattern."
            : invitation("Point at a head to preview it, click to keep it."),
      );
    }
    this.drawPair();
    this.drawCircuit(changes);
    this.modes.draw(state.grid);
    this.node.classList.toggle("effects", state.grid === "effect");
    this.drawEffects();
    if (!changes.has("result") && !changes.has("head")) return;
    for (const { node, name } of this.thumbs) {
      node.classList.toggle("chosen", name === state.head);
      node.setAttribute("aria-selected", String(name === state.head));
    }
  }
}
