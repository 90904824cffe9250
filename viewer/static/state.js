/** What the page shows, as one flat object, and its form in the address: #model=lfa&text=…&head=L5.H4&edits={…}. */

import { hasHead, isEdits, parseHead } from "./edits.js";

/**
 * @typedef {Object} State
 * @property {string} text
 * @property {string} model  id of the first model
 * @property {string|null} second  id of the model next to it
 * @property {number|null} step  training step of the snapshot; null for the final weights
 * @property {string} head  the large head, such as "L5.H4"
 * @property {number|null} token  the locked token, by position
 * @property {number|null} key  the locked cell's key
 * @property {[string, string]|null} compare  two candidates for the next token, of one's own
 * @property {"lines"|"matrix"} view
 * @property {"pattern"|"change"|"effect"|"circuit"} grid
 * @property {number|null} share  of the edges of the circuit; null for those of its file
 * @property {"part"|"stream"} edges  what colours the edges
 * @property {string} lens  the stream whose read-out is shown
 * @property {Object} edits
 */

const OPTIONAL = ["second", "step", "head", "token", "key", "compare", "share"];
const CHOICES = { view: ["lines", "matrix"], grid: ["pattern", "change", "effect", "circuit"], edges: ["part", "stream"] };

/** The address's hash for a state; what is as in `defaults` is left out, except text and head. null is an empty word. */
export function toHash(state, defaults) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const same = JSON.stringify(value) === JSON.stringify(defaults[name]);
    if (same && (value === null || !["text", "head"].includes(name))) continue;
    words.set(name, value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));
  }
  return `#${words}`;
}

/**
 * The state in a hash, over the defaults. What is no valid value, or not in these models, is left at its default, and named.
 * @returns {{state: State, problems: string[], missing: string[]}}
 */
export function fromHash(hash, defaults, models) {
  const state = { ...defaults };
  const problems = [];
  const ids = models.map((model) => model.id);
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    const value = read(name, text, ids);
    if (value === undefined) problems.push(name);
    else state[name] = value;
  }
  if (state.second === state.model) state.second = null;
  const shown = [state.model, state.second].map((id) => models.find((model) => model.id === id)).filter(Boolean);
  const missing = [];
  const demand = (name, there) => {
    if (there || state[name] === null || JSON.stringify(state[name]) === JSON.stringify(defaults[name])) return;
    missing.push(`${name} ${state[name]}`);
    state[name] = defaults[name];
  };
  demand("head", hasHead(shown[0], state.head));
  demand("lens", shown.some(({ streams }) => streams.includes(state.lens)));
  demand("step", shown.some(({ snapshots }) => snapshots.length > 1));
  demand("key", state.key === null || (state.token !== null && state.key <= state.token));
  const circuit = shown.some((model) => model.circuit);
  demand("grid", state.grid !== "circuit" || circuit);
  demand("share", circuit);
  demand("edges", circuit);
  return { state, problems, missing };
}

function read(name, text, ids) {
  if (name === "text" || name === "lens") return text;
  if (text === "" && OPTIONAL.includes(name)) return null;
  if (name === "model" || name === "second") return ids.includes(text) ? text : undefined;
  if (name === "head") return parseHead(text) ? text : undefined;
  if (["step", "token", "key"].includes(name)) return /^\d{1,9}$/.test(text) ? Number(text) : undefined;
  if (name === "share") return Number(text) > 0 && Number(text) <= 1 ? Number(text) : undefined;
  if (Object.hasOwn(CHOICES, name)) return CHOICES[name].includes(text) ? text : undefined;
  if (name !== "edits" && name !== "compare") return undefined;
  try {
    const value = JSON.parse(text);
    return (name === "compare" ? isPair : isEdits)(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

function isPair(value) {
  return Array.isArray(value) && value.length === 2 && value.every((word) => typeof word === "string" && word.trim());
}
