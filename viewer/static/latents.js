/** The largest latents of a dictionary at every token: hover says what one raises, a click removes it or puts it back. */

import { card, element, quoted, scrollTable, setText } from "./dom.js";
import { colourAt } from "./colours.js";
import { hasLatent, setLatent } from "./edits.js";
import { plain } from "./numbers.js";

export class Latents {
  constructor(view, column) {
    this.view = view;
    this.column = column;
    const { dictionary, name } = column.model;
    const place = dictionary ? `Latents of ${[dictionary.hook, dictionary.stream].filter(Boolean).join(" ")}` : "Latents";
    const hint = "The five largest active latents of each token; the tint is the value. Hover one for the tokens that it raises. A click removes it from every token.";
    this.card = card("latents", view.columns.length > 1 ? `${place}, ${name}` : place, dictionary ? hint : "");
    Object.assign(this, scrollTable(view, (event) => this.point(event), (event) => this.toggle(event)));
    this.card.body.append(dictionary ? this.scroll : element("p", { class: "reason", text: `No dictionary was given for ${name}.` }));
    this.node = this.card.node;
  }

  /** The cell with a latent that the pointer is on. */
  at(event) {
    const cell = event.target.closest("td");
    return cell?.dataset.latent ? { cell, latent: Number(cell.dataset.latent), token: Number(cell.dataset.at) } : null;
  }

  point(event) {
    const at = this.at(event);
    if (!at) return this.view.leave();
    const { raised } = this.column.model.dictionary;
    const { pieces } = this.column.model.tokenizer;
    this.view.focus({ query: at.token, key: null });
    this.view.tip.show(at.cell, [
      element("p", { class: "lead", text: `latent ${at.latent} · ${this.column.texts[at.token].label} · ${plain(Number(at.cell.dataset.value))}` }),
      element("p", { text: `raises ${raised[at.latent].map((id) => quoted(pieces[id] ?? `#${id}`)).join(" ")}` }),
      element("p", { class: "hint", text: "Its direction through the final norm's gain and the head, without the layers between." }),
    ]);
    return undefined;
  }

  toggle(event) {
    const at = this.at(event);
    if (!at) return;
    const { edits } = this.view.state;
    const { folder } = this.column.model.dictionary;
    this.view.setEdits(setLatent(edits, folder, at.latent, !hasLatent(edits, folder, at.latent)));
  }

  draw(changes) {
    const { result, model } = this.column;
    if (!result || !model.dictionary) return;
    if (changes.has("result") || this.colours !== this.view.colours) this.drawTable();
    const at = this.view.focused(this.column)?.query ?? null;
    this.heads.forEach((head, t) => head.classList.toggle("focus", t === at));
  }

  drawTable() {
    const { column, view } = this;
    const { ids, values } = column.result.latents;
    const ranks = ids.length / column.tokens.length;
    const fresh = this.texts !== column.texts;
    if (fresh) this.build(ranks);
    this.colours = view.colours;
    const most = Math.max(...values.slice(column.texts[0].start ? ranks : 0)); // no dictionary of ours is trained on the start
    this.cells.forEach((cell, i) => {
      const value = values[i];
      if (value > 0) Object.assign(cell.dataset, { latent: String(ids[i]), value: String(value) });
      else delete cell.dataset.latent;
      setText(cell, value > 0 ? String(ids[i]) : "");
      cell.style.setProperty("--tint", colourAt(view.colours.lens, value > 0 ? Math.min(1, value / most) * 0.6 : 0));
      cell.classList.toggle("removed", value > 0 && hasLatent(column.edits, column.model.dictionary.folder, ids[i]));
    });
    if (fresh) this.scroll.scrollLeft = this.scroll.scrollWidth;
    this.cue();
  }

  /** Cells by token and rank; a row of the table is a rank. */
  build(ranks) {
    const { texts } = this.column;
    this.texts = texts;
    this.cells = Array.from({ length: texts.length * ranks }, (_, i) => element("td", { data: { at: String(Math.floor(i / ranks)) } }));
    this.heads = texts.map(({ label }) => element("th", { text: label, attributes: { scope: "col" } }));
    const rows = Array.from({ length: ranks }, (_, rank) => {
      const head = element("th", { text: String(rank + 1), attributes: { scope: "row" } });
      return element("tr", {}, head, ...texts.map((_, at) => this.cells[at * ranks + rank]));
    });
    this.table.replaceChildren(element("tr", {}, element("th", { class: "corner" }), ...this.heads), ...rows);
  }
}
