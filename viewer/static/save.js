/** Saves a card as it is shown, as SVG or PNG: what the browser laid out, drawn again as rectangles, words and images. */

import { svgElement } from "./dom.js";

const INHERITED = [
  ...["fill", "stroke", "stroke-width", "stroke-opacity", "stroke-linecap", "stroke-dasharray", "opacity"],
  ...["font-family", "font-size", "font-weight", "font-style", "text-anchor"],
];
const CAPTION = 13; // px
const LETTER = 0.58; // width of a letter, as a share of its size
const isColour = (value) => value && value !== "none" && !/^rgba\(.*,\s*0\)$|^transparent$/.test(value);

/**
 * An SVG document of the element, with what it would scroll to, and below it a caption. Buttons, menus and what asks for a pointer are left out.
 * `place` is called after every change of the element's size.
 */
export function drawSvg(node, title, caption, place) {
  node.classList.add("whole");
  try {
    place();
    return drawWhole(node, title, caption);
  } finally {
    node.classList.remove("whole");
    place();
  }
}

function drawWhole(node, title, caption) {
  const frame = node.getBoundingClientRect();
  const style = getComputedStyle(node);
  const lines = caption.flatMap((text) => wrapped(text, Math.floor((frame.width - 32) / (LETTER * CAPTION))));
  const [width, height] = [frame.width, frame.height + (lines.length + 1) * CAPTION * 1.4].map((x) => x.toFixed(0));
  const svg = svgElement("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` });
  svg.append(svgElement("title", {}, title), svgElement("rect", { width: "100%", height: "100%", fill: style.backgroundColor }));
  walk(node, svg, frame);
  lines.forEach((line, i) => {
    const place = { x: 16, y: (frame.height + (i + 0.8) * CAPTION * 1.4).toFixed(1) };
    svg.append(svgElement("text", { ...place, fill: style.color, "font-family": style.fontFamily, "font-size": CAPTION }, line));
  });
  return new XMLSerializer().serializeToString(svg);
}

function walk(node, svg, frame) {
  for (const child of node.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) drawText(child, svg, frame);
    else if (child.nodeType === Node.ELEMENT_NODE) drawElement(child, svg, frame);
  }
}

function drawElement(child, svg, frame) {
  const style = getComputedStyle(child);
  if (style.display === "none" || style.visibility === "hidden" || child.closest(".tools, .invites, select, input, button")) return;
  const box = child.getBoundingClientRect();
  const at = { x: box.left - frame.left, y: box.top - frame.top, width: box.width, height: box.height };
  if (child instanceof SVGSVGElement) {
    svg.append(copyOf(child, at));
    return;
  }
  if (child instanceof HTMLCanvasElement) {
    if (child.width && box.width)
      svg.append(svgElement("image", { ...printed(at), href: child.toDataURL(), preserveAspectRatio: "none", "image-rendering": "pixelated", opacity: style.opacity }));
    return;
  }
  if (box.width && box.height) drawBox(style, at, svg);
  walk(child, svg, frame);
}

function drawBox(style, at, svg) {
  const border = parseFloat(style.borderTopWidth);
  const filled = isColour(style.backgroundColor);
  const edged = border > 0 && style.borderTopStyle !== "none" && isColour(style.borderTopColor);
  if (!filled && !edged) return;
  const whole = parseFloat(style.borderLeftWidth) > 0;
  const look = { fill: filled ? style.backgroundColor : "none", rx: parseFloat(style.borderTopLeftRadius) || 0, opacity: style.opacity };
  svg.append(svgElement("rect", { ...printed(at), ...look, ...(edged && whole ? { stroke: style.borderTopColor, "stroke-width": border } : {}) }));
  if (edged && !whole) svg.append(svgElement("rect", { ...printed({ ...at, height: border }), fill: style.borderTopColor }));
}

/** A text in lines of at most `most` letters. */
function wrapped(text, most) {
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    if (lines.at(-1) && lines.at(-1).length + word.length + 1 > most) lines.push("");
    lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines;
}

const printed = (at) => Object.fromEntries(Object.entries(at).map(([name, value]) => [name, value.toFixed(2)]));

/** An inner SVG with the style sheet's looks written into it. */
function copyOf(source, at) {
  const copy = source.cloneNode(true);
  for (const [name, value] of Object.entries(printed(at))) copy.setAttribute(name, value);
  copy.setAttribute("overflow", "visible");
  const from = [source, ...source.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, i) => {
    const style = getComputedStyle(from[i]);
    for (const name of INHERITED) node.setAttribute(name, style.getPropertyValue(name));
    node.removeAttribute("class");
  });
  for (const text of copy.querySelectorAll("text")) {
    const halo = text.cloneNode(true); // below the letters, as not every program knows paint-order
    halo.setAttribute("fill", "none");
    text.setAttribute("stroke", "none");
    text.before(halo);
  }
  return copy;
}

/** The words of a text where they stand, a line at a time. */
function drawText(text, svg, frame) {
  if (!text.textContent.trim()) return;
  const style = getComputedStyle(text.parentElement);
  const range = document.createRange();
  const lines = [];
  for (const { index, 0: word } of text.textContent.matchAll(/\S+\s*/g)) {
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    const box = range.getBoundingClientRect();
    const line = lines.at(-1);
    if (line && Math.abs(line.box.top - box.top) < 2) line.words += word;
    else lines.push({ box, words: word });
  }
  const size = parseFloat(style.fontSize);
  for (const { box, words } of lines) {
    const [x, y] = [box.left - frame.left, box.top - frame.top];
    const look = { fill: style.color, "font-family": style.fontFamily, "font-size": size, "font-weight": style.fontWeight, "font-style": style.fontStyle, "xml:space": "preserve" };
    const upright = style.writingMode !== "vertical-rl";
    const place = upright
      ? { x: x.toFixed(2), y: (y + box.height / 2 + size * 0.35).toFixed(2) }
      : { transform: `translate(${(x + box.width / 2 + size * 0.35).toFixed(2)} ${(y + box.height).toFixed(2)}) rotate(-90)` };
    svg.append(svgElement("text", { ...look, ...place }, words.trimEnd()));
  }
}

/** The SVG as a PNG of twice its size. */
export async function drawPng(svg) {
  const address = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.naturalWidth * 2;
    canvas.height = image.naturalHeight * 2;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** Lets the browser save a blob under a name. */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
