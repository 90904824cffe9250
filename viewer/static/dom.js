/** Builds the page's elements. Text enters as text only: nothing in this folder parses markup. */

/**
 * @param {string} tag
 * @param {{class?: string, text?: string, title?: string, on?: Object<string, function(Event): void>,
 *          data?: Object<string, string>, attributes?: Object<string, string>}} [options]
 * @param {...(Node|string)} children
 */
export function element(tag, options = {}, ...children) {
  return dress(document.createElement(tag), options, children);
}

/** An element of SVG, with its attributes. */
export function svgElement(tag, attributes = {}, ...children) {
  return dress(document.createElementNS("http://www.w3.org/2000/svg", tag), { attributes }, children);
}

function dress(node, options, children) {
  if (options.class) node.className = options.class;
  if (options.text !== undefined) node.textContent = options.text;
  if (options.title) node.title = options.title;
  for (const [name, handler] of Object.entries(options.on ?? {})) node.addEventListener(name, handler);
  for (const [name, value] of Object.entries(options.data ?? {})) node.dataset[name] = value;
  for (const [name, value] of Object.entries(options.attributes ?? {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Sets the text only where it differs, so that nothing is laid out again for nothing. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A row of buttons of which one is pressed. `draw(value)` presses it. */
export function segments(label, choices, onChoice) {
  const buttons = choices.map(([value, text]) =>
    element("button", {
      text,
      data: { value },
      attributes: { type: "button" },
      on: { click: () => onChoice(value) },
    }),
  );
  const node = element("div", { class: "segments", attributes: { role: "group", "aria-label": label } }, ...buttons);
  const draw = (value) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === value));
  };
  return { node, draw, buttons };
}

/** A card of the page: title, one sentence below it, buttons that save it, and a body. */
export function card(name, title, hint, tools = []) {
  const heading = element("h2", { text: title });
  const sentence = element("p", { class: "hint", text: hint });
  const head = element("header", {}, element("div", {}, heading, sentence), element("div", { class: "tools" }, ...tools));
  const body = element("div", { class: "body" });
  const node = element("section", { class: `card ${name}`, attributes: { "aria-label": title } }, head, body);
  return { node, heading, hint: sentence, head, body };
}

/** A text with signs for line breaks and tabs, and with the codes of characters that no font draws, such as \x1b. */
export function printable(text) {
  const code = (c) => (c < "\x80" ? `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}` : `\\u{${c.codePointAt(0).toString(16)}}`);
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(/[\p{C}\p{Zl}\p{Zp}]/gu, code);
}

/** A token in a sentence. */
export function quoted(token) {
  return `“${printable(token).trim() || "a space"}”`;
}

/** A token as people read it in a list: `printable`, its leading space as a dot. */
export function visible(token) {
  return printable(token).replace(/^ /, "·") || "∅";
}

/** Fades the sides on which what scrolls goes on. */
export function cueEdges(node) {
  const draw = () => {
    const { scrollLeft, scrollTop, scrollWidth, scrollHeight, clientWidth, clientHeight } = node;
    node.classList.toggle("more-left", scrollLeft > 4);
    node.classList.toggle("more-right", scrollLeft < scrollWidth - clientWidth - 4);
    node.classList.toggle("more-below", scrollTop < scrollHeight - clientHeight - 4);
  };
  node.addEventListener("scroll", draw);
  new ResizeObserver(draw).observe(node);
  return draw;
}

/** A table of cells by token that scrolls sideways: hover and click are handled, and `view` told when the pointer leaves. */
export function scrollTable(view, onPoint, onClick) {
  const table = element("table", { on: { pointerover: onPoint, pointerleave: () => view.leave(), click: onClick } });
  const scroll = element("div", { class: "scroll" }, table);
  return { table, scroll, cue: cueEdges(scroll) };
}
