/** The logit lens, or a fitted one: layers × positions, the likeliest next token that is read from one stream. */

import { card, element, scrollTable, segments, setText, visible } from "./dom.js";
import { colourAt } from "./colours.js";
import { plain } from "./numbers.js";
import { probabilityRows } from "./stage.js";

const KEPT = 5;

export class Lens {
  constructor(view, column) {
    this.view = view;
    this.column = column;
    this.streams = column.model.streams;
    this.modes = segments("Stream", this.streams.map((name) => [name, name]), (value) => view.set({ lens: value }));
    const { lens, name } = column.model;
    const kind = lens ? `${lens.kind[0].toUpperCase()}${lens.kind.slice(1)} lens` : "Logit lens";
    const title = view.columns.length > 1 ? `${kind} of ${name}` : kind;
    const hint = lens
      ? `The next token that a stream holds after this layer, read by its own map of ${lens.file}. A state without a map is not read. Hover for five.`
      : "What the model would predict next if it stopped after this layer, read from one stream. Hover for five.";
    this.card = card("lens", title, hint, this.streams.length > 1 ? [this.modes.node] : []);
    Object.assign(this, scrollTable(view, (event) => this.point(event), (event) => this.lock(event)));
    this.card.body.append(this.scroll);
    if (column.model.no_lens) this.card.body.replaceChildren(element("p", { class: "reason", text: column.model.no_lens }));
    this.node = this.card.node;
  }

  at(event) {
    const cell = event.target.closest("td");
    return cell?.dataset.row ? { row: Number(cell.dataset.row), token: Number(cell.dataset.at), cell } : null;
  }

  point(event) {
    const at = this.at(event);
    if (!at || !this.found || this.texts !== this.column.texts) return this.view.leave(); // a table of the text before
    this.view.focus({ query: at.token, key: null });
    const entries = Array.from({ length: KEPT }, (_, k) => this.entry(at.row, at.token, k));
    const name = at.row ? `after layer ${at.row - 1}` : "embedding";
    this.view.tip.show(at.cell, [
      element("p", { class: "lead", text: `${this.column.texts[at.token].label} · ${name} · ${this.stream()}` }),
      probabilityRows(entries, this.column.model.tokenizer.pieces),
    ]);
    return undefined;
  }

  lock(event) {
    const at = this.at(event);
    if (at) this.view.lock(at.token, null);
  }

  stream() {
    return this.streams.includes(this.view.state.lens) ? this.view.state.lens : this.streams.at(-1);
  }

  /** Whether the state before layer `row` is read: by the logit lens every one, by a fitted lens those with a map. */
  reads(row) {
    const { lens } = this.column.model;
    return !lens || (row > 0 && lens.mapped[row - 1][this.streams.indexOf(this.stream())]);
  }

  entry(row, token, k) {
    const length = this.column.tokens.length;
    const at = (row * length + token) * KEPT + k;
    return { id: this.found.ids[at], p: this.found.p[at] };
  }

  /** Reads the lens when the rest of the page is drawn, and only of the newest answer. */
  async read() {
    const { result } = this.column;
    const stream = this.stream();
    if (this.asked?.result === result && this.asked.stream === stream) return;
    this.asked = { result, stream };
    const found = await this.view.alone(() => result.lens(this.streams.indexOf(stream)));
    if (this.asked.result !== result || this.asked.stream !== stream) return;
    this.found = found;
    this.answered = this.asked;
    this.node.classList.remove("stale");
    this.drawTable();
  }

  draw(changes) {
    const { result, model } = this.column;
    if (!result || model.no_lens) return;
    this.modes.draw(this.stream());
    this.node.classList.toggle("stale", this.answered?.result !== result || this.answered.stream !== this.stream());
    if (changes.has("result") || changes.has("view")) this.view.whenIdle(() => this.read());
    if (this.found && this.colours && this.colours !== this.view.colours) this.drawTable();
    this.drawFocus();
  }

  drawTable() {
    const { column, view } = this;
    const length = column.tokens.length;
    if (this.found.ids.length !== (column.model.layers + 1) * length * KEPT) return;
    this.colours = view.colours;
    const fresh = this.texts !== column.texts || (column.model.lens && this.built !== this.stream());
    if (fresh) this.build(length);
    const { scrollLeft, scrollWidth, clientWidth } = this.scroll;
    const atEnd = fresh || scrollLeft >= scrollWidth - clientWidth - 4; // the last token is what most people look at
    const first = this.columns.findLast((head) => head.offsetLeft <= scrollLeft) ?? this.columns[0];
    const beyond = scrollLeft - first.offsetLeft;
    this.cells.forEach((cell, i) => {
      if (!cell) return;
      const { id, p } = this.entry(Math.floor(i / length), i % length, 0);
      setText(cell, visible(column.model.tokenizer.pieces[id] ?? `#${id}`));
      cell.style.setProperty("--tint", colourAt(view.colours.lens, Math.min(1, p) * 0.6));
      cell.dataset.p = plain(p, 4);
    });
    this.scroll.scrollLeft = atEnd ? this.scroll.scrollWidth : first.offsetLeft + Math.min(beyond, first.offsetWidth - 1); // columns are as wide as their words
    this.cue();
    this.drawFocus();
  }

  build(length) {
    const { column } = this;
    this.texts = column.texts;
    this.built = this.stream();
    this.cells = [];
    const heads = column.texts.map(({ label }) => element("th", { text: label, attributes: { scope: "col" } }));
    const rows = [element("tr", {}, element("th", { class: "corner" }), ...heads)];
    for (let row = column.model.layers; row >= 0; row--) {
      const read = this.reads(row);
      const why = element("span", { text: `no map of this state in ${column.model.lens?.file}` });
      const blank = element("td", { class: "blank", attributes: { colspan: String(length) } }, why);
      const cells = Array.from({ length }, (_, at) => (read ? element("td", { data: { row: String(row), at: String(at) } }) : null));
      rows.push(element("tr", {}, element("th", { text: row ? `L${row - 1}` : "embed", attributes: { scope: "row" } }), ...(read ? cells : [blank])));
      this.cells.unshift(...cells);
    }
    this.columns = heads;
    this.table.replaceChildren(...rows);
  }

  drawFocus() {
    if (!this.cells) return;
    const at = this.view.focused(this.column)?.query ?? null;
    if (at === this.marked) return;
    this.marked = at;
    this.columns.forEach((head, t) => head.classList.toggle("focus", t === at));
  }
}
