/** The page as an `anywidget`: the kernel runs the model, and `View.edits` of Python follows the controls. */

import { remoteEngine } from "./engine.js";
import { element } from "./dom.js";
import { View } from "./view.js";

/** Questions to the kernel, answered in any order. */
function kernel(widget) {
  const waiting = new Map();
  let last = 0;
  widget.on("msg:custom", (message, buffers) => {
    const asked = waiting.get(message.id);
    if (!asked) return;
    waiting.delete(message.id);
    if (message.error) asked.reject(new Error(message.error));
    else asked.resolve(buffers?.length ? wholeBuffer(buffers[0]) : message);
  });
  return (kind, question) =>
    new Promise((resolve, reject) => {
      const id = ++last;
      waiting.set(id, { resolve, reject });
      widget.send({ kind, id, ...question });
    });
}

/** The bytes of a DataView as a buffer of their own, so that arrays in it are aligned. */
function wholeBuffer(view) {
  return view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
}

function render({ model: widget, el }) {
  const root = element("div");
  el.append(root);
  const ask = kernel(widget);
  const data = widget.get("data");
  const state = { ...data.state, edits: widget.get("edits") };
  if (widget.get("text")) state.text = widget.get("text");
  let known = JSON.stringify(state.edits);
  const handOn = ({ edits, text }) => {
    known = JSON.stringify(edits);
    widget.set("edits", edits);
    widget.set("text", text);
    widget.save_changes();
  };
  const view = new View(root, { ...data, state }, (model) => remoteEngine(model, ask), { onAnswer: handOn });
  widget.on("change:edits", () => {
    const edits = widget.get("edits");
    if (JSON.stringify(edits) !== known) view.setEdits(edits);
  });
  widget.on("change:text", () => {
    if (widget.get("text") !== view.state.text) view.set({ text: widget.get("text"), token: null, key: null });
  });
}

export default { render };
