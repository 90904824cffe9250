/** All heads as thumbnails, layers downwards: the pattern, or its change; below each, how far it moved. */

import { card, element, segments, setText } from "./dom.js";
import { paintPattern } from "./colours.js";
import { headName } from "./edits.js";
import { plain } from "./numbers.js";

export class Heads {
  constructor(view, column) {
    this.view = view;
    this.column = column;
    const { model } = column;
    this.modes = segments("Thumbnails show", [["pattern", "Pattern"], ["change", "Change"]], (value) => view.set({ grid: value }));
    this.card = card("heads", view.columns.length > 1 ? `Heads of ${model.name}` : "All heads", "", [this.modes.node]);
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
    grid.append(element("span", { class: "corner" }));
    for (let head = 0; head < model.heads; head++) grid.append(element("span", { class: "axis", text: `H${head}` }));
    for (let layer = 0; layer < model.layers; layer++) {
      grid.append(element("span", { class: "axis", text: `L${layer}` }));
      for (let head = 0; head < model.heads; head++) {
        const canvas = element("canvas");
        const mark = element("span", { class: "mark" });
        const moved = element("span", { class: "moved" });
        const name = headName(layer, head);
        const node = element("div", { class: "thumb", data: { head: name }, attributes: { role: "option" } }, canvas, mark, moved);
        this.thumbs.push({ node, canvas, mark, moved, name });
        grid.append(node);
      }
    }
    this.legend = element("p", { class: "legend" });
    this.card.body.append(grid, this.legend);
    this.node = this.card.node;
  }

  point(event) {
    const thumb = event.target.closest(".thumb");
    this.view.previewHead(thumb && event.pointerType !== "touch" ? thumb.dataset.head : null);
  }

  choose(event) {
    const thumb = event.target.closest(".thumb");
    if (thumb) this.view.set({ head: thumb.dataset.head });
  }

  draw(changes) {
    const { view, column } = this;
    if (!column.result) return;
    const { state } = view;
    const length = column.tokens.length;
    const changing = state.grid === "change";
    if (changes.has("result") || changes.has("view")) {
      const packed = changing ? view.colours.change : view.colours.pattern;
      const most = Math.max(1e-9, ...column.shift);
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
          ? "Change of each pattern: orange is more attention than as trained, blue is less."
          : "A square per head: each row is a token, darker cells are the tokens it attends to.",
      );
      const top = column.edited ? column.shift.indexOf(Math.max(...column.shift)) : -1;
      setText(
        this.legend,
        top >= 0 && column.shift[top] > 0.0005
          ? `Orange bars: how far your change moved each pattern. Most: ${this.thumbs[top].name}, ${plain(column.shift[top], 3)} of its attention.`
          : column.edited
            ? "Your change moved no pattern."
            : "Hover to preview a head, click to keep it.",
      );
    }
    this.modes.draw(state.grid);
    for (const { node, name } of this.thumbs) {
      node.classList.toggle("chosen", name === state.head);
      node.setAttribute("aria-selected", String(name === state.head));
    }
  }
}
