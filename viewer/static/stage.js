/** The focal point: the sentence, tinted by loss, and over it one large head as lines or below it as a matrix. */

import { card, element, segments, setText, svgElement, visible } from "./dom.js";
import { colourAt, paintPattern } from "./colours.js";
import { hasHead, parseHead } from "./edits.js";
import { meanLoss, plain, probability, signed, topTokens } from "./numbers.js";

const FULL_LOSS = 8; // nats at which the tint is full
const MOVED = 0.05; // a weight that changed by more is drawn as it was, dashed
const NOTED = 0.05; // nats: smaller changes of a token's loss are not written below it
const SMALLEST = 0.7; // the sentence is shrunk to one row if that leaves at least this share of its size
const HINTS = {
  lines: "Lines run to the earlier tokens that this head attends to. Thicker is more attention.",
  matrix: "A row is the token that looks, a column the token it looks at. A stronger colour is more attention.",
  change: "A row is the token that looks. Orange: more attention than as trained; blue: less.",
};

export class Stage {
  constructor(view, column) {
    this.view = view;
    this.column = column;
    this.modes = segments("Large head as", [["lines", "Lines"], ["matrix", "Matrix"]], (value) => view.set({ view: value }));
    this.card = card("stage", "", "", [this.modes.node]);
    this.badge = element("span", { class: "badge" });
    this.score = element("p", { class: "score" });
    this.title = element("span", { class: "title" });
    this.preview = element("span", { class: "badge preview", text: "preview", title: "The head that you point at. Click its square to keep it." });
    this.card.heading.append(this.title, this.preview, this.badge);
    this.lines = svgElement("svg", { class: "lines", "aria-hidden": "true" });
    this.words = element("div", {
      class: "words",
      attributes: { role: "listbox", "aria-label": "Tokens", tabindex: "0" },
      on: {
        pointerover: (event) => this.point(event),
        pointerleave: () => view.leave(),
        click: (event) => this.lock(event),
      },
    });
    this.strip = element("div", { class: "strip" }, this.lines, this.words);
    this.matrix = new Matrix(view, column);
    this.status = element("p", { class: "status" });
    this.card.body.append(this.strip, this.matrix.node, this.status, this.score);
    this.node = this.card.node;
    this.tokens = [];
    this.resize = new ResizeObserver(() => {
      if (this.width === this.strip.clientWidth) return;
      this.width = this.strip.clientWidth;
      this.place();
      this.drawLines();
      this.matrix.draw();
    });
    this.resize.observe(this.strip);
  }

  at(event) {
    const token = event.target.closest(".token");
    return token ? Number(token.dataset.at) : null;
  }

  point(event) {
    const at = this.at(event);
    this.view.focus(at === null ? null : { query: at, key: null });
    if (at !== null && event.pointerType !== "touch") this.tip(at, event.target.closest(".token"));
  }

  lock(event) {
    const at = this.at(event);
    if (at !== null) this.view.lock(at, null);
  }

  /** The five likeliest next tokens, and this token's own loss. */
  tip(at, anchor) {
    const { column } = this;
    const { model, result, base, texts } = column;
    const rows = [];
    if (at > 0) {
      const [before, after] = [column.baseLosses[at], column.losses[at]];
      const change = result === base ? "" : ` (${signed(after - before)})`;
      rows.push(element("p", { text: `Loss ${plain(after)} nats${change}` }));
    }
    rows.push(element("p", { class: "lead", text: `Next after ${texts[at].label}` }));
    rows.push(probabilityRows(topTokens(result.logits, at, model.vocab, 5), column.model.tokenizer.pieces));
    this.view.tip.show(anchor, rows);
  }

  draw(changes) {
    const { view, column } = this;
    const { state } = view;
    if (!column.result) return;
    if (changes.has("result")) this.drawTokens();
    const at = parseHead(view.shownHead());
    const inside = hasHead(column.model, view.shownHead());
    const prefix = view.columns.length > 1 ? `${column.model.name} · ` : "";
    setText(this.title, `${prefix}Layer ${at.layer}, head ${at.head}${inside ? "" : ": not in this model"}`);
    this.drawBadge();
    this.modes.draw(state.view);
    const changing = column.edited && state.view === "matrix" && state.grid === "change";
    const dashed = column.edited && state.view === "lines" ? " Dashed: as trained." : "";
    setText(this.card.hint, HINTS[changing ? "change" : state.view] + dashed);
    this.node.classList.toggle("matrix-view", state.view === "matrix");
    if (changes.has("result") || changes.has("view")) this.place();
    this.drawLines();
    this.matrix.draw();
  }

  drawBadge() {
    const settings = this.column.edits.heads?.[this.view.shownHead()] ?? {};
    const words = [];
    if (settings.scale !== undefined) words.push(settings.scale === 0 ? "off" : `× ${settings.scale}`);
    if (settings.alpha !== undefined) words.push(`α = ${settings.alpha}`);
    if (settings.gate !== undefined) words.push(`gate ${settings.gate}`);
    setText(this.badge, words.join(", "));
    this.badge.hidden = !words.length;
    this.preview.hidden = this.view.preview === null;
  }

  drawTokens() {
    const { column, view } = this;
    const { texts, losses, baseLosses, edited } = column;
    const same = this.tokens.length === texts.length && this.tokens.every((t, i) => t.node.title === texts[i].title);
    if (!same) {
      this.tokens = texts.map(({ label, title, spaced, start }, at) => {
        const word = element("span", { class: "word", text: label });
        const number = element("span", { class: "number" });
        const kind = `token${spaced ? " spaced" : ""}${start ? " start" : ""}`;
        const node = element("span", { class: kind, title, data: { at: String(at) }, attributes: { role: "option" } }, word, number);
        node.title = title;
        return { node, word, number };
      });
      this.words.replaceChildren(...this.tokens.map((token) => token.node));
    }
    this.tokens.forEach(({ word, number }, at) => {
      const loss = losses[at];
      const change = loss - baseLosses[at];
      word.style.setProperty("--tint", at ? colourAt(view.colours.loss, Math.min(1, loss / FULL_LOSS) * 0.62) : "transparent");
      const size = edited ? Math.abs(change) : 0;
      setText(number, at === 0 || (edited && size < NOTED) ? "" : edited ? signed(change, size < 10 ? 1 : 0) : plain(loss, loss < 10 ? 1 : 0));
      number.className = `number${size < NOTED ? "" : change > 0 ? " worse" : " better"}${size >= 0.5 ? " large" : ""}`;
    });
    const [before, after] = [meanLoss(baseLosses), meanLoss(losses)];
    const parts = Number.isFinite(after)
      ? edited
        ? `Mean loss ${plain(before, 3)} → ${plain(after, 3)} nats (${signed(after - before, 3)}). Below a token: the change of its loss, from ${plain(NOTED)} on.`
        : `Mean loss ${plain(after, 3)} nats. The tint of a token, and the number below it, is its loss.`
      : "";
    setText(this.score, parts);
  }

  /** Shrinks the words where that puts the whole sentence on one row. */
  fit() {
    const last = this.tokens.at(-1).node;
    const set = (share) => this.strip.style.setProperty("--fit", share.toFixed(3));
    const fits = (share) => {
      set(share);
      return last.getBoundingClientRect().right <= this.words.getBoundingClientRect().right - 0.5; // parts of a pixel wrap too
    };
    this.words.style.flexWrap = "nowrap";
    let share = 1;
    if (!fits(1) && fits(SMALLEST)) {
      let [low, high] = [SMALLEST, 1];
      while (high - low > 0.02) {
        share = (low + high) / 2;
        if (fits(share)) low = share;
        else high = share;
      }
      share = low;
    }
    set(share);
    this.words.style.flexWrap = "";
  }

  /** Gives the rows room for the lines and notes where every token stands. */
  place() {
    this.boxes = null;
    this.room = this.strip.clientWidth;
    if (!this.tokens.length || !this.room) return; // nothing has a place while it is hidden
    this.fit();
    const rows = new Set(this.tokens.map(({ node }) => node.offsetTop)).size;
    const gap = this.view.state.view === "matrix" ? 10 : rows === 1 ? 132 : rows === 2 ? 78 : 54;
    this.strip.style.setProperty("--gap", `${gap}px`);
    const tops = [...new Set(this.tokens.map(({ node }) => node.offsetTop))];
    this.gap = gap;
    this.boxes = this.tokens.map(({ node, word }) => ({
      x: word.offsetLeft + word.offsetWidth / 2,
      top: word.offsetTop,
      bottom: node.offsetTop + node.offsetHeight,
      row: tops.indexOf(node.offsetTop),
    }));
  }

  /** The pattern of the head shown, after the edits: weight(query, key). */
  weights(answer = this.column.result) {
    const { column, view } = this;
    if (!hasHead(column.model, view.shownHead())) return null;
    const at = parseHead(view.shownHead());
    const length = column.tokens.length;
    const start = (at.layer * column.model.heads + at.head) * length * length;
    return (query, key) => answer.patterns[start + query * length + key];
  }

  /** The gate of the head shown at a token: the share of its output that it lets through. */
  gate(query) {
    const { model, result, tokens } = this.column;
    const at = parseHead(this.view.shownHead());
    return result.gates[(at.layer * model.heads + at.head) * tokens.length + query];
  }

  drawLines() {
    const { view, column, boxes } = this;
    if (!column.result || !boxes || boxes.length !== column.tokens.length) return;
    const focus = view.focused(column);
    const weight = this.weights();
    const before = column.edited ? this.weights(column.base) : null;
    const length = boxes.length;
    this.tokens.forEach(({ node }, t) => {
      const attended = focus && weight && t < focus.query ? weight(focus.query, t) : 0;
      const attending = focus && weight && t > focus.query && focus.key === null ? weight(t, focus.query) : 0;
      node.classList.toggle("focus", Boolean(focus) && t === focus.query);
      node.classList.toggle("locked", view.state.token === t);
      node.classList.toggle("attended", focus?.key === t || (focus?.key === null && attended >= 0.05));
      node.classList.toggle("attending", attending >= 0.05);
      node.setAttribute("aria-selected", String(view.state.token === t));
    });
    const drawn = [];
    if (weight && view.state.view === "lines") {
      const add = (q, k, kind) => {
        const w = weight(q, k);
        const was = before ? before(q, k) : w;
        if (kind === "out" && q !== k && Math.abs(w - was) >= MOVED && was >= MOVED) drawn.push({ q, k, w: was, kind: "was" });
        if (w >= (kind === "rest" ? 0.1 : 0.015)) drawn.push({ q, k, w, kind });
      };
      if (focus?.key !== null && focus) add(focus.query, focus.key, "out");
      else if (focus) {
        for (let k = 0; k <= focus.query; k++) add(focus.query, k, "out");
        for (let q = focus.query + 1; q < length; q++) add(q, focus.query, "in");
      } else for (let q = 0; q < length; q++) for (let k = 0; k <= q; k++) add(q, k, q === length - 1 ? "out" : "rest");
    }
    const order = { rest: 0, in: 1, was: 2, out: 3 };
    drawn.sort((a, b) => order[a.kind] - order[b.kind] || a.w - b.w);
    const strongest = drawn.filter(({ kind, q, k, w }) => kind === "out" && q !== k && w >= 0.1).slice(-3);
    const written = []; // from the strongest on, where no number stands yet: the sentence below names all
    for (const { q, k, w } of strongest.reverse()) {
      const { x, y } = this.weightPlace(q, k);
      if (written.some((other) => Math.abs(x - other.x) < 26 && Math.abs(y - other.y) < 12)) continue;
      written.push({ x, y, text: plain(w) });
    }
    this.lines.replaceChildren(
      ...drawn.map((line) => this.line(line)),
      ...written.map(({ x, y, text }) => svgElement("text", { class: "weight", x: x.toFixed(1), y: y.toFixed(1), "text-anchor": "middle" }, text)),
    );
    this.drawStatus(focus, weight, before);
  }

  /** A line of the kind "out", "in", "rest" or "was"; a ring where a token attends to itself. */
  line({ q, k, w, kind }) {
    const from = this.boxes[q];
    const to = this.boxes[k];
    const [width, opacity] = kind === "rest" ? [0.5 + 4 * w, 0.15 + 0.4 * w] : [0.6 + 6 * w, 0.25 + 0.75 * Math.sqrt(w)];
    const look = { class: kind, "stroke-width": width.toFixed(2), "stroke-opacity": opacity.toFixed(2) };
    if (q === k) return svgElement("circle", { ...look, cx: from.x, cy: from.top - 7, r: 4, "stroke-width": (0.6 + 2.5 * w).toFixed(2) });
    return svgElement("path", { ...look, d: this.curve(from, to) });
  }

  height(from, to) {
    const share = Math.min(1, Math.abs(from.x - to.x) / this.room);
    return 12 + (this.gap - 30) * share ** 0.6;
  }

  /** An arc above a row, a curve between neighbouring rows, and a way round the rows between others. */
  curve(from, to) {
    const start = `M${from.x.toFixed(1)},${from.top - 2}`;
    if (from.row === to.row) {
      const h = (this.height(from, to) * 4) / 3;
      return `${start} C${from.x.toFixed(1)},${from.top - 2 - h} ${to.x.toFixed(1)},${to.top - 2 - h} ${to.x.toFixed(1)},${to.top - 2}`;
    }
    const end = `${to.x.toFixed(1)},${to.bottom + 1}`;
    const rise = (this.gap - (to.bottom - to.top)) * 0.5 + 8;
    if (from.row === to.row + 1)
      return `${start} C${from.x.toFixed(1)},${from.top - rise - 10} ${to.x.toFixed(1)},${to.bottom + rise + 10} ${end}`;
    const right = from.x + to.x > this.room; // round the rows between, by the nearer margin
    const margin = right ? this.room + 3 : -3;
    const near = right ? margin - 14 : margin + 14;
    const [low, high] = [from.top - rise, to.bottom + rise];
    return (
      `${start} C${from.x.toFixed(1)},${low} ${from.x.toFixed(1)},${low} ${near},${low} Q${margin},${low} ${margin},${low - 12}` +
      ` L${margin},${high + 12} Q${margin},${high} ${near},${high} C${to.x.toFixed(1)},${high} ${to.x.toFixed(1)},${high} ${end}`
    );
  }

  /** Where the number of a line stands. */
  weightPlace(q, k) {
    const from = this.boxes[q];
    const to = this.boxes[k];
    return from.row === to.row
      ? { x: (from.x + to.x) / 2, y: from.top - 2 - this.height(from, to) - 4 }
      : { x: to.x, y: to.bottom + 14 };
  }

  drawStatus(focus, weight, before) {
    if (!weight) {
      setText(this.status, "This model has no such head: choose another below.");
      return;
    }
    const { texts } = this.column;
    const query = focus?.query ?? texts.length - 1;
    const name = (t) => texts[t].quoted;
    const lock = focus && !this.view.hover ? "Locked, Esc unlocks: " : "";
    const was = (q, k) => (before && Math.abs(weight(q, k) - before(q, k)) >= 0.01 ? ` (was ${plain(before(q, k))})` : "");
    if (focus && focus.key !== null) {
      setText(this.status, `${lock}${name(query)} attends to ${name(focus.key)}: ${plain(weight(query, focus.key), 3)}${was(query, focus.key)}`);
      return;
    }
    const list = (pairs, other) => {
      const weighed = pairs.map(([q, k]) => ({ q, k, w: weight(q, k) })).filter(({ w }) => w >= 0.05);
      const best = weighed.sort((a, b) => b.w - a.w).slice(0, 3);
      return best.map((pair) => `${name(pair[other])} ${plain(pair.w)}${was(pair.q, pair.k)}`).join(", ");
    };
    const all = texts.map((_, t) => t);
    const out = list(all.filter((t) => t <= query).map((t) => [query, t]), "k");
    const into = list(all.filter((t) => t > query).map((t) => [t, query]), "q");
    const gate = this.column.result.gates ? ` Its gate there is ${plain(this.gate(query), 3)} (mean over channels).` : "";
    setText(this.status, `${lock}${name(query)} attends to ${out || "nothing much"}${into ? `. It is attended to by ${into}` : ""}.${gate}`);
  }
}

/** Rows of "token, bar, probability". */
export function probabilityRows(entries, strings) {
  return element(
    "ul",
    { class: "rows" },
    ...entries.map(({ id, p }) => {
      const bar = element("span", { class: "bar" });
      bar.style.setProperty("--share", p.toFixed(4));
      return element("li", {}, element("span", { class: "name", text: visible(strings[id] ?? `#${id}`) }), bar, element("span", { class: "value", text: probability(p, 2) }));
    }),
  );
}

/** The large head as a matrix: hover reads a cell, click locks it. */
class Matrix {
  constructor(view, column) {
    this.view = view;
    this.column = column;
    this.canvas = element("canvas", {
      on: {
        pointermove: (event) => this.point(event),
        pointerleave: () => view.focus(null),
        click: (event) => {
          const cell = this.cell(event);
          if (cell) view.lock(cell.query, cell.key);
        },
      },
    });
    this.row = element("div", { class: "band query" });
    this.line = element("div", { class: "band key" });
    this.rows = element("div", { class: "labels rows" });
    this.heads = element("div", { class: "labels heads" });
    this.frame = element("div", { class: "frame" }, this.canvas, this.row, this.line);
    this.node = element("div", { class: "matrix" }, this.heads, this.rows, this.frame);
  }

  cell(event) {
    const box = this.canvas.getBoundingClientRect();
    const length = this.column.tokens.length;
    const query = Math.floor(((event.clientY - box.top) / box.height) * length);
    const key = Math.floor(((event.clientX - box.left) / box.width) * length);
    return query < length && key >= 0 && query >= key ? { query, key } : null;
  }

  point(event) {
    this.view.focus(this.cell(event));
  }

  draw() {
    const { view, column } = this;
    this.node.hidden = view.state.view !== "matrix" || !column.result || !hasHead(column.model, view.shownHead());
    if (this.node.hidden) return;
    const at = parseHead(view.shownHead());
    const length = column.tokens.length;
    const start = (at.layer * column.model.heads + at.head) * length * length;
    const changing = view.state.grid === "change" && column.edited;
    const packed = changing ? view.colours.change : view.colours.pattern;
    paintPattern(this.canvas, packed, column.result.patterns, start, length, changing ? column.base.patterns : null);
    const room = Math.min(440, (this.node.parentNode.clientWidth || 400) - 90);
    const size = Math.max(2, Math.min(24, Math.floor(room / length)));
    this.node.style.setProperty("--size", `${size}px`);
    this.node.style.setProperty("--count", String(length));
    if (this.texts !== column.texts || this.size !== size) {
      const labels = () => (size < 10 ? [] : column.texts.map(({ label }) => element("span", { text: label.trim() || label })));
      this.rows.replaceChildren(...labels());
      this.heads.replaceChildren(...labels());
      this.texts = column.texts;
      this.size = size;
    }
    const focus = view.focused(column);
    this.row.hidden = this.line.hidden = !focus;
    if (!focus) return;
    this.row.style.setProperty("--at", String(focus.query));
    this.line.style.setProperty("--at", String(focus.key ?? focus.query));
  }
}
