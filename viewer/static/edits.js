/**
 * The state of all controls as JSON, the same that every instrument takes by `--edit FILE.json`:
 * {"heads": {"L2.H3": {"scale": 0, "alpha": 4, "gate": "open"|"shut"}}, "streams": {"token": {"unembed": 0, "everywhere": 0}},
 *  "mixing": "identity" | {"L3.attn": "identity"}, "h_res": the same, "canon": "off" | {"L0": "off"}}.
 * Only what differs from the model as trained is in it. Needs no browser.
 */

export const SCALE = [-1, 2];
export const ALPHA = [1, 16];
const GATES = ["open", "shut"];
const READERS = ["unembed", "everywhere"];
/** The controls of whole layers: what switches them, and what an edit says of them. */
export const PLACES = { mixing: "identity", h_res: "identity", canon: "off" };

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const within = (value, [low, high]) => typeof value === "number" && value >= low && value <= high;

/** The layer and index of "L2.H3", or null. */
export function parseHead(name) {
  const found = /^L(\d{1,4})\.H(\d{1,4})$/.exec(name);
  return found ? { layer: Number(found[1]), head: Number(found[2]) } : null;
}

export const headName = (layer, head) => `L${layer}.H${head}`;

/** Whether the model has this head. */
export function hasHead(model, name) {
  const at = parseHead(name);
  return at !== null && at.layer < model.layers && at.head < model.heads;
}

/**
 * The part of the edits that a model has: unknown keys, foreign heads and controls it lacks are left out, and named.
 * @returns {{edits: Object, problems: string[]}}
 */
export function fitEdits(edits, model) {
  const fitting = {};
  const problems = [];
  const keep = (path, value, allowed, problem) => {
    if (allowed !== true) {
      problems.push(`${path.join(" ")}: ${problem ?? allowed}`);
      return;
    }
    let place = fitting;
    for (const key of path.slice(0, -1)) place = place[key] ??= {};
    place[path.at(-1)] = value;
  };
  if (!isObject(edits)) return { edits: fitting, problems: ["the edits are no JSON object"] };
  for (const [part, value] of Object.entries(edits)) {
    if (part === "heads" && isObject(value)) {
      for (const [head, settings] of Object.entries(value)) {
        for (const [name, number] of Object.entries(isObject(settings) ? settings : {})) {
          const valid =
            name === "scale" ? within(number, SCALE) : name === "alpha" ? within(number, ALPHA) : name === "gate" && GATES.includes(number);
          const allowed = hasHead(model, head) ? model.controls[name] : `${model.name} has no such head`;
          keep(["heads", head, name], number, valid ? allowed : false, valid ? undefined : "not a value of this control");
        }
      }
    } else if (part === "streams" && isObject(value)) {
      for (const [stream, settings] of Object.entries(value)) {
        for (const [reader, number] of Object.entries(isObject(settings) ? settings : {})) {
          const valid = READERS.includes(reader) && number === 0;
          const allowed = model.streams.includes(stream) ? model.controls.streams : `${model.name} has no such stream`;
          keep(["streams", stream, reader], 0, valid ? allowed : false, valid ? undefined : "not a value of this control");
        }
      }
    } else if (Object.hasOwn(PLACES, part)) {
      const word = PLACES[part];
      if (value === word) keep([part], word, model.controls[part]);
      else
        for (const [place, given] of Object.entries(isObject(value) ? value : {})) {
          const known = (model[part] ?? []).includes(place) && given === word;
          keep([part, place], word, known ? model.controls[part] : false, known ? undefined : "no such place");
        }
    } else problems.push(`${part}: no such control`);
  }
  return { edits: fitting, problems };
}

/** The edits with one setting of a head changed; the value as trained (scale 1, alpha 1, no gate) removes it. */
export function setHead(edits, head, name, value) {
  const asTrained = name === "gate" ? null : 1;
  return changed(edits, ["heads", head, name], value === asTrained ? undefined : value);
}

/** The edits with a stream's readers changed: null for as trained, "unembed" or "everywhere" for off. */
export function setStream(edits, stream, reader) {
  return changed(edits, ["streams", stream], reader ? { [reader]: 0 } : undefined);
}

/** The edits with a control of whole layers changed: null, "all" or the name of one place. */
export function setPlaces(edits, part, place) {
  const word = PLACES[part];
  return changed(edits, [part], place === null ? undefined : place === "all" ? word : { [place]: word });
}

/** A copy in which the value at the path is set or, if undefined, removed with all that becomes empty. */
function changed(edits, path, value) {
  const copy = structuredClone(edits);
  const chain = [copy];
  for (const key of path.slice(0, -1)) chain.push((chain.at(-1)[key] ??= {}));
  if (value === undefined) delete chain.at(-1)[path.at(-1)];
  else chain.at(-1)[path.at(-1)] = value;
  for (let i = chain.length - 1; i > 0; i--) if (!Object.keys(chain[i]).length) delete chain[i - 1][path[i - 1]];
  return copy;
}

/** One entry per edit: its label for people, and the edits without it. */
export function listEdits(edits) {
  const found = [];
  const add = (label, path) => found.push({ label, without: () => changed(edits, path, undefined) });
  for (const [head, settings] of Object.entries(edits.heads ?? {})) {
    if (settings.scale !== undefined)
      add(settings.scale === 0 ? `${head} off` : `${head} × ${settings.scale}`, ["heads", head, "scale"]);
    if (settings.alpha !== undefined) add(`${head} sharper, α = ${settings.alpha}`, ["heads", head, "alpha"]);
    if (settings.gate !== undefined) add(`${head} gate ${settings.gate}`, ["heads", head, "gate"]);
  }
  for (const [stream, readers] of Object.entries(edits.streams ?? {}))
    for (const reader of Object.keys(readers))
      add(`${stream} stream off ${reader === "unembed" ? "for the unembedding" : "everywhere"}`, ["streams", stream, reader]);
  for (const [part, label] of [["mixing", "mixing = identity"], ["h_res", "H_res = identity"], ["canon", "Canon off"]]) {
    if (typeof edits[part] === "string") add(label, [part]);
    else for (const place of Object.keys(edits[part] ?? {})) add(`${label} in ${place}`, [part, place]);
  }
  return found;
}

/**
 * The graph's inputs for these edits. Rows of mixing, h_res and canon follow the places that the model lists.
 * @returns {Object<string, {data: Float32Array, dims: number[]}>}
 */
export function graphInputs(edits, model) {
  const inputs = {};
  for (const [name, { shape, neutral }] of Object.entries(model.inputs))
    inputs[name] = { data: new Float32Array(shape.reduce((a, b) => a * b, 1)).fill(neutral), dims: shape };
  for (const [name, settings] of Object.entries(edits.heads ?? {})) {
    const { layer, head } = parseHead(name);
    const at = layer * model.heads + head;
    if (settings.scale !== undefined) inputs.head_scale.data[at] = settings.scale;
    if (settings.alpha !== undefined) inputs.alpha.data[at] = settings.alpha;
    if (settings.gate !== undefined) {
      inputs.gate_keep.data[at] = 0;
      inputs.gate_force.data[at] = settings.gate === "open" ? 1 : 0;
    }
  }
  for (const [stream, readers] of Object.entries(edits.streams ?? {}))
    for (const reader of Object.keys(readers))
      inputs[reader === "unembed" ? "stream_unembed" : "stream_all"].data[model.streams.indexOf(stream)] = 0;
  for (const [part, input] of [["mixing", "mix"], ["h_res", "h_res"], ["canon", "canon"]]) {
    const places = model[part] ?? [];
    const off = typeof edits[part] === "string" ? places : Object.keys(edits[part] ?? {});
    const switched = model.inputs[input]?.neutral === 0 ? 1 : 0;
    for (const place of off) inputs[input].data[places.indexOf(place)] = switched;
  }
  return inputs;
}

/** The edits as a literal of Python: JSON of strings and numbers is one. */
export const pythonLiteral = (value) => JSON.stringify(value).replaceAll('":', '": ').replaceAll(',"', ', "');
