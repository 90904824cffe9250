/**
 * The state of all controls as JSON, the same that instruments take by `--edit FILE.json`:
 * {"heads": {"L2.H3": {"scale": 0, "alpha": 4, "gate": "open"|"shut"}}, "streams": {"token": "unembedding"|"everywhere"},
 *  "mixing": ["L3.v"], "h_res": ["L2.attn"], "canon": ["L0.a"], "latents": {FOLDER: [17]}}.
 * Only what differs from the model as trained is in it. Needs no browser.
 */

/** Ranges of the sliders; other numbers come from Python or from an address. */
export const SCALE = [-1, 2];
export const ALPHA = [1, 16];
const GATES = { open: 1, shut: 0 };
const REACH = { unembedding: "stream_unembed", everywhere: "stream_all" };
/** The controls of whole layers, and what switching one off does. */
export const PLACES = { mixing: "identity", h_res: "identity", canon: "off" };

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isPlain = (value) => typeof value !== "object";

/** Whether a value has the form of edits; what is in it need not fit any model. */
export function isEdits(value) {
  if (!isObject(value)) return false;
  const { heads = {}, streams = {}, latents = {} } = value;
  const wholes = Object.keys(PLACES).map((part) => value[part] ?? []);
  if (![heads, streams, latents].every(isObject) || !Object.values(latents).every(Array.isArray) || !Object.values(heads).every(isObject) || !wholes.every(Array.isArray)) return false;
  return [...Object.values(heads), ...Object.values(latents), streams, ...wholes].every((one) => Object.values(one).every(isPlain));
}
const single = (value) => (typeof value === "number" ? Math.fround(value) : NaN); // as the model's arrays hold it
const VALID = {
  scale: (value) => Number.isFinite(single(value)),
  alpha: (value) => Number.isFinite(single(value)) && single(value) > 0,
  gate: (value) => typeof value === "string" && Object.hasOwn(GATES, value),
};

/** The layer and index of "L2.H3", or null. */
export function parseHead(name) {
  const found = /^L(0|[1-9]\d{0,3})\.H(0|[1-9]\d{0,3})$/.exec(name ?? "");
  return found ? { layer: Number(found[1]), head: Number(found[2]) } : null;
}

export const headName = (layer, head) => `L${layer}.H${head}`;

/** Whether the model has this head. */
export function hasHead(model, name) {
  const at = parseHead(name);
  return at !== null && at.layer < model.layers && at.head < model.heads;
}

const inputOf = (model, name) => model.inputs.find((input) => input.name === name);

/** The streams that a model can switch off. */
export const streamsOf = (model) => inputOf(model, "stream_all")?.labels[0] ?? [];

/** The places of a control of whole layers, such as "L3.v". */
export function placesOf(model, part) {
  const [layers, names] = inputOf(model, part)?.labels ?? [[], []];
  return layers.flatMap((layer) => names.map((name) => `${layer}.${name}`));
}

/** Whether one half of a specification, such as L0-2, H3 or *, covers one half of a name, such as L1. */
function covers(half, part) {
  const [, letter, first, last] = /^([LH])(\d+)-(\d+)$/.exec(half) ?? [];
  const at = Number(part.slice(1));
  return half === "*" || half === part || (letter === part[0] && at >= Number(first) && at <= Number(last));
}

/** The names that a specification such as L1.*, L0-2.H3-4, *.v or all stands for; itself if they are not all there. */
function namesOf(spec, names) {
  const matches = (wanted) => {
    const halves = wanted.split(".");
    return halves.length === 2 ? names.filter((name) => name.split(".").every((part, i) => covers(halves[i], part))) : [];
  };
  const whole = spec === "all" ? "*.*" : spec;
  const found = matches(whole.replaceAll(/\d+-/g, "")).length ? matches(whole) : []; // ranges end inside the model
  return found.length ? found : [spec];
}

/** The edits with every head and place by its own name, as the instruments read specifications. */
export function spellOut(edits, models) {
  const every = (list) => [...new Set(models.flatMap(list))];
  const found = { ...edits };
  if (edits.heads) {
    const names = every(({ layers, heads }) => Array.from({ length: layers * heads }, (_, at) => headName(Math.floor(at / heads), at % heads)));
    found.heads = {};
    for (const [spec, settings] of Object.entries(edits.heads))
      for (const name of namesOf(spec, names)) found.heads[name] = { ...found.heads[name], ...settings };
  }
  for (const part of Object.keys(PLACES))
    if (edits[part]) found[part] = [...new Set(edits[part].flatMap((spec) => namesOf(String(spec), every((model) => placesOf(model, part)))))];
  return found;
}

/**
 * The part of the edits that a model can take: the rest is left out, and named.
 * @returns {{edits: Object, problems: string[]}}
 */
export function fitEdits(edits, model) {
  const fitting = {};
  const problems = [];
  const refuse = (path, why) => problems.push(`${path}: ${why}`);
  const entries = (part) => (isObject(edits[part]) ? Object.entries(edits[part]) : []);
  for (const [head, settings] of entries("heads"))
    for (const [name, value] of Object.entries(isObject(settings) ? settings : {})) {
      const path = `${head} ${name}`;
      if (!Object.hasOwn(VALID, name) || !VALID[name](value)) refuse(path, "not a value of this control");
      else if (!hasHead(model, head)) refuse(path, `${model.name} has no such head`);
      else if (model.controls[name] !== true) refuse(path, model.controls[name]);
      else ((fitting.heads ??= {})[head] ??= {})[name] = value;
    }
  for (const [stream, reach] of entries("streams")) {
    if (!Object.hasOwn(REACH, reach)) refuse(`${stream} stream`, "not a value of this control");
    else if (model.controls.streams !== true) refuse(`${stream} stream`, model.controls.streams);
    else if (!streamsOf(model).includes(stream)) refuse(`${stream} stream`, `${model.name} has no such stream`);
    else (fitting.streams ??= {})[stream] = reach;
  }
  for (const part of Object.keys(PLACES))
    for (const place of Array.isArray(edits[part]) ? edits[part] : []) {
      if (model.controls[part] !== true) refuse(part, model.controls[part]);
      else if (!placesOf(model, part).includes(place)) refuse(`${part} ${place}`, `${model.name} has no such place`);
      else (fitting[part] ??= []).push(place);
    }
  for (const [folder, latents] of entries("latents"))
    for (const latent of Array.isArray(latents) ? latents : []) {
      if (folder !== model.dictionary?.folder) refuse(`latents of ${folder}`, `${model.name} is shown without this dictionary`);
      else if (!Number.isInteger(latent) || !(latent in model.dictionary.raised)) refuse(`latent ${latent}`, "its dictionary has no such latent");
      else if (!hasLatent(fitting, folder, latent)) fitting.latents = setLatent(fitting, folder, latent, true).latents;
    }
  const known = ["heads", "streams", "latents", ...Object.keys(PLACES)];
  for (const part of Object.keys(edits)) if (!known.includes(part)) refuse(part, "no such control");
  return { edits: fitting, problems: [...new Set(problems)] };
}

/** The edits with one setting of a head changed; the value as trained (scale 1, alpha 1, no gate) removes it. */
export function setHead(edits, head, name, value) {
  const asTrained = name === "gate" ? null : 1;
  return changed(edits, ["heads", head, name], value === asTrained ? undefined : value);
}

/** The edits with a stream on (null) or off for the "unembedding" or "everywhere". */
export function setStream(edits, stream, reach) {
  return changed(edits, ["streams", stream], reach ?? undefined);
}

/** The edits with the given places of a control of whole layers switched off. */
export function setPlaces(edits, part, places) {
  return changed(edits, [part], places.length ? places : undefined);
}

/** Whether the edits remove a latent of the dictionary in a folder. */
export function hasLatent(edits, folder, latent) {
  return (edits.latents?.[folder] ?? []).includes(latent);
}

/** The edits with a latent removed (off), or as it was. */
export function setLatent(edits, folder, latent, off) {
  const others = (edits.latents?.[folder] ?? []).filter((other) => other !== latent);
  const latents = off ? [...others, latent].sort((a, b) => a - b) : others;
  return changed(edits, ["latents", folder], latents.length ? latents : undefined);
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

/** One entry per edit: its label for people, the edits with it alone, and a function that gives the edits without it. */
export function listEdits(edits) {
  const found = [];
  const valueAt = (path) => path.reduce((value, key) => value[key], edits);
  const add = (label, path) => found.push({ label, only: changed({}, path, valueAt(path)), without: () => changed(edits, path, undefined) });
  for (const [head, settings] of Object.entries(edits.heads ?? {})) {
    const { scale, alpha, gate } = settings;
    if (scale !== undefined) add(scale === 0 ? `${head} off` : `${head} × ${scale}`, ["heads", head, "scale"]);
    if (alpha !== undefined) add(`${head} sharpened, α = ${alpha}`, ["heads", head, "alpha"]);
    if (gate !== undefined) add(`${head} gate ${gate}`, ["heads", head, "gate"]);
  }
  for (const [stream, reach] of Object.entries(edits.streams ?? {}))
    add(`${stream} stream off ${reach === "everywhere" ? reach : "for the unembedding"}`, ["streams", stream]);
  for (const [folder, latents] of Object.entries(edits.latents ?? {}))
    for (const latent of latents)
      found.push({ label: `latent ${latent} off`, only: { latents: { [folder]: [latent] } }, without: () => setLatent(edits, folder, latent, false) });
  const labels = { mixing: "Mixing = identity", h_res: "H_res = identity", canon: "Canon off" };
  for (const [part, label] of Object.entries(labels)) {
    const places = edits[part] ?? [];
    if (places.length) add(`${label} in ${places.length > 2 ? `${places.length} places` : places.join(", ")}`, [part]);
  }
  return found;
}

/**
 * The graph's inputs for these edits, which fit the model.
 * @returns {Object<string, {data: Float32Array, dims: number[]}>}
 */
export function graphInputs(edits, model) {
  const inputs = {};
  for (const { name, shape, neutral } of model.inputs)
    inputs[name] = { data: new Float32Array(shape.reduce((a, b) => a * b, 1)).fill(neutral), dims: shape };
  const put = (name, labels, value) => {
    const axes = inputOf(model, name).labels;
    const at = labels.reduce((index, label, axis) => index * axes[axis].length + axes[axis].indexOf(label), 0);
    inputs[name].data[at] = value;
  };
  for (const [name, { scale, alpha, gate }] of Object.entries(edits.heads ?? {})) {
    const labels = name.split(".");
    if (scale !== undefined) put("head_scale", labels, scale);
    if (alpha !== undefined) put("alpha", labels, alpha);
    if (gate !== undefined) {
      put("gate_keep", labels, 0);
      put("gate_force", labels, GATES[gate]);
    }
  }
  for (const [stream, reach] of Object.entries(edits.streams ?? {})) put(REACH[reach], [stream], 0);
  for (const part of Object.keys(PLACES)) for (const place of edits[part] ?? []) put(part, place.split("."), 0);
  for (const latents of Object.values(edits.latents ?? {})) for (const latent of latents) inputs.latents.data[latent] = 0;
  return inputs;
}
