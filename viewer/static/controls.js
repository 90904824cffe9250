/** What can be changed: the chosen head, whole streams, mixing matrices and Canon layers. Shared by all models shown. */

import { card, element, segments, setText } from "./dom.js";
import { ALPHA, PLACES, SCALE, hasHead, parseHead, placesOf, setHead, setPlaces, setStream, streamsOf } from "./edits.js";

const STREAM_CHOICES = [["", "on"], ["unembedding", "off for the unembedding"], ["everywhere", "off everywhere"]];
const LACKING = { gate: "gates", streams: "parallel streams", mixing: "mixing matrices", h_res: "hyper-connections", canon: "Canon layers" };
const TIPS = {
  scale: "The head's output is multiplied by this number: 0 turns it off, 1 is as trained.",
  alpha: "The head's scores are multiplied by α before the softmax: above 1 the strongest attention weights gain.",
  gate: "The share of the head's output that passes: open is all of it, shut none.",
  token: "The stream that starts as the token's embedding. Attention writes to it, unless it is frozen as in LFA.",
  context: "The stream that starts as 0. The feed-forward layers write to it, and attention where the token stream is frozen.",
  mixing: "Matrices by which a projection mixes channels, within heads or between them; the identity mixes none.",
  h_res: "The matrices by which parallel residual streams exchange their content between layers.",
  canon: "Small convolutions that mix a token with the few before it.",
  stream: "Off for the unembedding: only the prediction at the end reads 0. Off everywhere: the layers read 0 too.",
};
const PLACE_LABELS = { mixing: "Mixing matrices", h_res: "Stream mixing", canon: "Canon layers" };

export class Controls {
  constructor(view) {
    this.view = view;
    const reset = element("button", { class: "quiet", text: "Reset all", attributes: { type: "button" }, on: { click: () => view.setEdits({}) } });
    this.reset = reset;
    this.card = card("controls", "Change the model", "Every change applies at once to all models shown.", [reset]);
    this.node = this.card.node;
    this.switch = element("button", { class: "switch", attributes: { type: "button" }, on: { click: () => view.toggleHead() } });
    this.headTitle = element("h3", {});
    const edit = (name, value) => view.setEdits(setHead(view.state.edits, view.shownHead(), name, value));
    this.scale = slider("Scale", SCALE, 0.05, "×", (value) => edit("scale", value), [0, 1]);
    this.scale.node.title = TIPS.scale;
    this.alpha = slider("Sharpen", ALPHA, 0.5, "α", (value) => edit("alpha", value));
    this.alpha.node.title = TIPS.alpha;
    const gates = [["", "as computed"], ["open", "open"], ["shut", "shut"]];
    this.gate = segments("Gate", gates, (value) => edit("gate", value || null));
    this.gateRow = row("Gate", this.gate.node);
    this.gateRow.node.title = TIPS.gate;
    this.head = element(
      "div",
      { class: "group" },
      element("div", { class: "group-title" }, this.headTitle, this.switch),
      this.scale.node,
      this.alpha.node,
      this.gateRow.node,
    );
    this.whole = element("div", { class: "group" });
    this.card.body.append(this.head, this.whole);
    this.build();
  }

  /** The controls of whole models: those that any model shown has, and the others with the reason. */
  build() {
    const { view } = this;
    const models = view.columns.map((column) => column.model);
    this.selects = [];
    const streams = [...new Set(models.flatMap((model) => (model.controls.streams === true ? streamsOf(model) : [])))];
    const rows = [];
    const lacking = [];
    const lack = (name, label) => {
      const why = reasonOf(name, models);
      if (why?.startsWith("this model has ")) lacking.push(LACKING[name]);
      else if (why && label) rows.push(unavailable(label, why));
    };
    lack("gate");
    for (const stream of streams) {
      const select = choice(STREAM_CHOICES, (value) => view.setEdits(setStream(view.state.edits, stream, value || null)));
      this.selects.push([select, (edits) => edits.streams?.[stream] ?? ""]);
      const { node } = row(`${stream} stream`, select);
      node.title = [TIPS[stream], TIPS.stream].filter(Boolean).join(" ");
      rows.push(node);
    }
    if (!streams.length) lack("streams", "Streams");
    for (const part of Object.keys(PLACES)) {
      const places = [...new Set(models.flatMap((model) => (model.controls[part] === true ? placesOf(model, part) : [])))];
      if (!places.length) {
        lack(part, PLACE_LABELS[part]);
        continue;
      }
      const word = PLACES[part];
      const options = [["", "as trained"], ["all", `${word} everywhere`], ...places.map((place) => [place, `${word} in ${place}`])];
      const select = choice(options, (value) => {
        const off = value === "all" ? places : value ? [value] : [];
        view.setEdits(setPlaces(view.state.edits, part, off));
      });
      select.append(element("option", { text: "several places", attributes: { value: "several", disabled: "", hidden: "" } }));
      this.selects.push([select, (edits) => placeOf(edits[part] ?? [], places)]);
      const { node } = row(PLACE_LABELS[part], select);
      node.title = TIPS[part];
      rows.push(node);
    }
    this.gateRow.node.hidden = lacking.includes(LACKING.gate);
    if (lacking.length) {
      const whose = models.length > 1 ? "Not in these models" : "Not in this model";
      rows.push(element("p", { class: "reason lacking", text: `${whose}: ${lacking.join(", ")}.` }));
    }
    this.whole.replaceChildren(element("div", { class: "group-title" }, element("h3", { text: "The whole model" })), ...rows);
  }

  draw() {
    const { view } = this;
    const { state } = view;
    const head = view.shownHead();
    const at = parseHead(head);
    const settings = state.edits.heads?.[head] ?? {};
    const models = view.columns.map((column) => column.model).filter((model) => hasHead(model, head));
    setText(this.headTitle, `Layer ${at.layer}, head ${at.head}${view.preview === null ? "" : " (preview)"}`);
    const off = settings.scale === 0;
    setText(this.switch, `${off ? "Turn on" : "Turn off"} ${head}`);
    this.switch.setAttribute("aria-pressed", String(off));
    this.switch.title = "Space";
    this.scale.draw(settings.scale ?? 1);
    this.alpha.draw(settings.alpha ?? 1);
    this.gate.draw(settings.gate ?? "");
    const none = "no model shown has this head";
    const why = (name) => (models.length ? reasonOf(name, models) : none);
    this.switch.disabled = Boolean(why("scale"));
    this.scale.forbid(why("scale"));
    this.alpha.forbid(why("alpha"));
    this.gateRow.forbid(why("gate"));
    for (const button of this.gate.buttons) button.disabled = Boolean(why("gate"));
    for (const [select, read] of this.selects) select.value = read(state.edits);
    this.reset.disabled = !Object.keys(state.edits).length;
  }
}

/** Why none of the models has a control; null if one has it. */
function reasonOf(name, models) {
  return models.some((model) => model.controls[name] === true) ? null : String(models[0].controls[name] ?? "not in this model");
}

function placeOf(off, places) {
  if (off.length < 2) return off[0] ?? "";
  return off.length === places.length ? "all" : "several";
}

function row(label, control) {
  const reason = element("small", { class: "reason" });
  const kind = control.matches(".segments") ? "div" : "label"; // a label would press the first of several buttons
  const node = element(kind, { class: "row" }, element("span", { class: "label", text: label }), control, reason);
  const forbid = (why) => {
    node.classList.toggle("forbidden", Boolean(why));
    setText(reason, why ?? "");
  };
  return { node, forbid };
}

function unavailable(label, why) {
  const { node, forbid } = row(label, element("span"));
  forbid(why);
  return node;
}

function choice(options, onChoice) {
  const select = element("select", { on: { change: () => onChoice(select.value) } });
  for (const [value, text] of options) select.append(element("option", { text, attributes: { value } }));
  return select;
}

/** A slider with its value; a double click sets it back to 1. */
function slider(label, [low, high], step, sign, onValue, ticks = []) {
  const input = element("input", {
    attributes: { type: "range", min: String(low), max: String(high), step: String(step), "aria-label": label },
    on: { input: () => onValue(Number(input.value)), dblclick: () => onValue(1) },
  });
  const output = element("output");
  const marks = ticks.map((at) => {
    const mark = element("span", { class: "tick", text: String(at) });
    mark.style.setProperty("--share", String((at - low) / (high - low)));
    return mark;
  });
  const line = element("span", { class: "slider" }, element("span", { class: "track" }, input, ...marks), output);
  const { node, forbid } = row(label, line);
  const draw = (value) => {
    if (Number(input.value) !== value) input.value = String(value);
    input.style.setProperty("--share", String((value - low) / (high - low)));
    setText(output, `${sign} ${String(value).replace("-", "−")}`);
  };
  return {
    node,
    draw,
    forbid(why) {
      input.disabled = Boolean(why);
      forbid(why);
    },
  };
}
