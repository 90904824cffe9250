/**
 * A circuit over the grid of heads: edges from what writes to the residual stream to what reads it, as wide as their
 * scores. Layers go downwards; FFNs stand right of their layer's heads, the input above all, the logits below.
 */

import { element, segments, setText, svgElement } from "./dom.js";
import { plain, signed } from "./numbers.js";

const WIDEST = 4.5; // px
const PARTS = { q: "query", k: "key", v: "value", g: "gate", mlp: "FFN", mix: "mixing", logits: "logits" };
const READ_AT = { q: 0.2, k: 0.4, v: 0.6, g: 0.8 }; // where on a head's upper side its readers are
const NODE = /^([amx])(\d+)(?:\.(h|kv|attn|mlp)(\d*))?/;
const rounded = (value) => plain(Number(value.toFixed(2))); // no −.00
const percent = (share) => `${String(Number((100 * share).toPrecision(3)))} %`;

export class Circuit {
  /**
   * @param {View} view
   * @param {Column} column  whose model has a circuit
   * @param {HTMLElement} grid  of the heads; `place` finds squares in it by data-head, data-axis and data-part
   */
  constructor(view, column, grid) {
    this.view = view;
    this.column = column;
    this.grid = grid;
    const { curve, rows } = column.model.circuit;
    this.most = Math.max(...rows.map((row) => Math.abs(row[4])), 1e-12);
    this.streams = [...new Set(rows.map((row) => row[3]))];
    this.slider = element("input", {
      attributes: { type: "range", min: "0", max: String(curve.length - 1), step: "1", "aria-label": "Share of the edges" },
      on: { input: () => view.set({ share: curve[Number(this.slider.value)].share }) },
    });
    this.colour = segments("Colour of the edges", [["part", "Read as"], ["stream", "Stream"]], (value) => view.set({ edges: value }));
    this.colour.node.hidden = this.streams.length < 2;
    this.text = element("p", { class: "kept" });
    const row = element("label", { class: "pick" }, element("span", { text: "Edges" }), this.slider);
    this.bar = element("div", { class: "circuit-bar" }, row, this.colour.node, this.text);
    this.svg = svgElement("svg", { class: "edges", role: "img" });
    this.svg.addEventListener("pointerover", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("pointerout", (event) => event.target.closest(".hit") && this.leave());
    grid.append(this.svg);
  }

  /** The point of the curve nearest to the share chosen, or else to the file's own circuit. */
  chosen() {
    const { curve, share } = this.column.model.circuit;
    const wanted = this.view.state.share ?? share;
    return curve.reduce((a, b) => (Math.abs(b.share - wanted) < Math.abs(a.share - wanted) ? b : a));
  }

  /** The edges that are drawn: the largest by size, of which the page has the first thousand. */
  shown() {
    return this.column.model.circuit.rows.slice(0, this.chosen().edges);
  }

  draw() {
    const { view } = this;
    const { curve, edges } = this.column.model.circuit;
    const chosen = this.chosen();
    this.slider.value = String(curve.indexOf(chosen));
    this.slider.setAttribute("aria-valuetext", percent(chosen.share));
    this.colour.draw(view.state.edges);
    setText(this.text, sentence(chosen, edges, this.shown().length));
    this.svg.setAttribute("aria-label", this.text.textContent);
    this.drawEdges();
  }

  /** The places of all nodes, from the squares of the grid; heights and widths as they are now. */
  measure() {
    this.svg.setAttribute("width", "0"); // so that it does not widen what is measured
    this.svg.setAttribute("height", "0");
    this.boxes = new Map();
    for (const node of this.grid.children) {
      const { head, axis, part } = node.dataset;
      const name = head ? head.replace(/L(\d+)\.H(\d+)/, "a$1.h$2") : axis ? `axis ${axis}` : part;
      if (name && node.offsetWidth) this.boxes.set(name, { left: node.offsetLeft, top: node.offsetTop, width: node.offsetWidth, height: node.offsetHeight });
    }
    this.svg.setAttribute("width", String(this.grid.scrollWidth));
    this.svg.setAttribute("height", String(this.grid.scrollHeight));
  }

  /** The square of a node; that of a key-value head spans the heads that share it. */
  box(name) {
    const whole = name.replace(/<.*/, "");
    if (this.boxes.has(whole)) return this.boxes.get(whole);
    const found = NODE.exec(whole);
    if (!found) return null;
    const [, , layer, kind, index] = found;
    if (kind !== "kv") return this.boxes.get(`axis ${layer}`) ?? null;
    const { heads, circuit } = this.column.model;
    const first = Math.floor((Number(index) * heads) / circuit.kv_heads);
    const last = Math.floor(((Number(index) + 1) * heads) / circuit.kv_heads) - 1;
    const [a, b] = [first, last].map((head) => this.boxes.get(`a${layer}.h${head}`));
    return a && b ? { ...a, width: b.left + b.width - a.left } : null;
  }

  drawEdges() {
    this.svg.replaceChildren();
    if (!this.grid.offsetWidth) return; // nothing has a place while it is hidden
    this.measure();
    const marks = [];
    const hits = [];
    this.paths = [];
    for (const [at, [sender, reader, part, stream, score]] of [...this.shown().entries()].reverse()) {
      const d = this.path(sender, reader, part);
      if (!d) continue;
      const size = Math.abs(score) / this.most;
      const hue = this.view.state.edges === "stream" && this.streams.length > 1 ? this.streams.indexOf(stream) : Object.keys(PARTS).indexOf(part);
      const look = { class: `edge hue-${hue}${score < 0 ? " negative" : ""}`, "stroke-width": (0.6 + (WIDEST - 0.6) * size).toFixed(2), "stroke-opacity": (0.35 + 0.6 * size).toFixed(2), d };
      const mark = svgElement("path", look);
      const hit = svgElement("path", { class: "hit", d });
      hit.dataset.edge = String(at);
      marks.push(mark);
      hits.push(hit);
      this.paths[at] = mark;
    }
    this.svg.append(...marks, ...hits);
    this.drawFocus();
  }

  /** A curve from the lower side of the sender to the upper side of the reader. */
  path(sender, reader, part) {
    const [from, to] = [this.box(sender), this.box(reader)];
    if (!from || !to) return null;
    const centre = (box) => box.left + box.width / 2;
    const wide = (name) => name === "input" || name === "logits";
    const end = { x: to.left + to.width * (READ_AT[part] ?? 0.5), y: to.top };
    const start = { x: wide(sender) ? end.x : centre(from), y: from.top + from.height };
    if (wide(reader)) end.x = start.x;
    const sameRow = to.top < start.y; // the FFN of the same layer: round the row from below
    if (sameRow) end.y = to.top + to.height;
    const reach = sameRow ? 14 : Math.max(8, 0.4 * (end.y - start.y));
    const bend = !sameRow && Math.abs(end.x - start.x) < 4 && end.y - start.y > 20 ? 6 + 0.08 * (end.y - start.y) : 0; // round the squares between
    const points = [start.x + bend, start.y + reach, end.x + bend, end.y + (sameRow ? reach : -reach), end.x, end.y];
    return `M${start.x.toFixed(1)},${start.y.toFixed(1)} C${points.map((x) => x.toFixed(1)).join(" ")}`;
  }

  /** Fades the edges that do not touch the head that is pointed at. */
  drawFocus() {
    const head = this.view.preview?.replace(/L(\d+)\.H(\d+)/, "a$1.h$2");
    const { heads, circuit } = this.column.model;
    const shared = head?.replace(/h(\d+)$/, (_, h) => `kv${Math.floor((Number(h) * circuit.kv_heads) / heads)}`);
    this.shown().forEach(([sender, reader], at) => {
      const there = [sender, reader.replace(/<.*/, "")];
      const touches = !head || there.includes(head) || (circuit.kv_heads < heads && there[1] === shared);
      this.paths?.[at]?.classList.toggle("faded", !touches);
    });
  }

  point(event) {
    const hit = event.target.closest(".hit");
    if (!hit) return;
    const at = Number(hit.dataset.edge);
    const [sender, reader, part, stream, score] = this.column.model.circuit.rows[at];
    this.paths[at].classList.add("on");
    const { clientX: x, clientY: y } = event;
    const anchor = { getBoundingClientRect: () => new DOMRect(x, y, 0, 8) };
    const entering = this.column.model.circuit.curve.find((one) => one.edges > at);
    const lines = [
      `Score ${signed(score, 3)} nats: what the task loses without this edge.`,
      `Read as ${PARTS[part]}${this.streams.length > 1 ? `, from the ${stream} stream` : ""}.`,
      ...(entering ? [`Among the best ${percent(entering.share)} of the edges.`] : []),
    ];
    this.view.tip.show(anchor, [element("p", { class: "lead", text: `${sender} → ${reader}` }), ...lines.map((text) => element("p", { text }))]);
  }

  leave() {
    for (const path of this.paths ?? []) path?.classList.remove("on");
    this.view.tip.hide();
  }

  /** What the colours mean, for the legend: only those that are drawn. */
  keys() {
    const byStream = this.view.state.edges === "stream" && this.streams.length > 1;
    const names = byStream ? this.streams : Object.keys(PARTS);
    const drawn = new Set(this.shown().map((row) => row[byStream ? 3 : 2]));
    const colours = names.flatMap((name, hue) =>
      drawn.has(name) ? [element("span", { class: `key hue-${hue}` }, element("span", { class: "swatch" }), byStream ? name : PARTS[name])] : [],
    );
    const best = this.shown().slice(0, 3).map(([sender, reader, , , score]) => `${sender} → ${reader} ${signed(score)}`);
    return best.length ? [...colours, ` Strongest: ${best.join(", ")}.`] : [];
  }
}

/** How many edges are kept, and what they keep of the effect. */
function sentence({ share, edges, f, f_low: low, f_high: high, random }, total, drawn) {
  const count = `${percent(share)}: ${edges.toLocaleString("en")} of ${total.toLocaleString("en")} edges`;
  const part = drawn < edges ? `, the first ${drawn.toLocaleString("en")} drawn` : "";
  if (f === null) return `${count}${part}. The file does not say how much of the effect they keep.`;
  const interval = low === null || high === null ? "" : ` (${rounded(low)} to ${rounded(high)})`;
  return `${count}${part}, keep f = ${rounded(f)}${interval} of the effect${random === null ? "" : `; random ones ${rounded(random)}`}.`;
}
