/**
 * Who runs the model. Every host gives the same: `tokenize(text) -> {ids, strings}` and
 * `run(tokens, edits) -> {logits [T, V], patterns [L, H, T, T], gates [L, H, T] or null, lens()}`,
 * where `lens()` resolves to {ids, p} [L + 1, S, T, 5], or to null where the model has none.
 */

import { graphInputs } from "./edits.js";
import { makeTokenizer } from "./tokenizer.js";

/** Base64 of gzip, from a data block of the page, as bytes. */
export async function unpack(id) {
  const text = atob(document.getElementById(id).textContent.trim());
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

let runtimeReady = null;

/** ONNX Runtime, on one thread, from the page's own bytes. */
function runtime() {
  runtimeReady ??= (async () => {
    const ort = globalThis.ort;
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.proxy = false;
    ort.env.logLevel = "error";
    ort.env.wasm.wasmBinary = (await unpack("wasm")).buffer;
    return ort;
  })();
  return runtimeReady;
}

/** An engine in the page itself: the exported graph of a model or of one of its snapshots. */
export function pageEngine(model) {
  const tokenizer = makeTokenizer(model.tokenizer);
  const sessions = new Map();
  const session = (blob) => {
    if (!sessions.has(blob))
      sessions.set(blob, Promise.all([runtime(), unpack(blob)]).then(([ort, bytes]) => ort.InferenceSession.create(bytes)));
    return sessions.get(blob);
  };

  async function run(tokens, edits, step = null) {
    const snapshot = model.snapshots.find((s) => s.step === step) ?? model;
    const [ort, graph] = await Promise.all([runtime(), session(snapshot.blob)]);
    const feeds = { tokens: new ort.Tensor("int64", BigInt64Array.from(tokens, BigInt), [1, tokens.length]) };
    for (const [name, { data, dims }] of Object.entries(graphInputs(edits, model)))
      feeds[name] = new ort.Tensor("float32", data, dims);
    const outputs = await graph.run(feeds);
    const lens = async () => {
      if (outputs.lens_ids) return { ids: Int32Array.from(outputs.lens_ids.data, Number), p: outputs.lens_p.data };
      const blob = snapshot.lens_blob ?? model.lens_blob;
      if (!blob || !outputs.readout) return null;
      const states = outputs.readout;
      const width = states.dims.at(-1);
      const input = new ort.Tensor("float32", states.data, [states.data.length / width, width]);
      const { ids, p } = await (await session(blob)).run({ states: input });
      return { ids: Int32Array.from(ids.data, Number), p: p.data };
    };
    return { logits: outputs.logits.data, patterns: outputs.patterns.data, gates: outputs.gates?.data ?? null, lens };
  }

  const strings = tokenizer.strings;
  return { strings, run, tokenize: async (text) => ({ ids: tokenizer.encode(text), strings }) };
}

/** Arrays of an answer: a JSON header whose length comes first, then raw little-endian numbers. */
export function readArrays(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const { arrays } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return answer(arrays, buffer, 4 + length);
}

function answer(arrays, buffer, start) {
  const found = {};
  for (const { name, dtype, shape, offset } of arrays) {
    const Kind = dtype === "int32" ? Int32Array : Float32Array;
    found[name] = new Kind(buffer, start + offset, shape.reduce((a, b) => a * b, 1));
  }
  const lens = found.lens_ids ? { ids: found.lens_ids, p: found.lens_p } : null;
  return { logits: found.logits, patterns: found.patterns, gates: found.gates ?? null, lens: async () => lens };
}

/** An engine at the other end of `ask(path, question) -> ArrayBuffer | object`: a server or a notebook's kernel. */
export function remoteEngine(model, ask) {
  const strings = model.tokenizer ? makeTokenizer(model.tokenizer).strings : model.tokens;
  return {
    strings,
    tokenize: async (text) => ({ ids: (await ask("tokenize", { model: model.id, text })).ids, strings }),
    run: async (tokens, edits, step = null) =>
      readArrays(await ask("run", { model: model.id, step, tokens: Array.from(tokens), edits })),
  };
}

/** Asks the local server that sent this page; its secret is in the page's address. */
export async function askServer(path, question) {
  const secret = new URLSearchParams(location.search).get("token") ?? "";
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Streamscope-Token": secret },
    body: JSON.stringify(question),
  }).catch(() => {
    throw new Error("The server does not answer: is `streamscope view` still running?");
  });
  const binary = response.headers.get("Content-Type") === "application/octet-stream";
  if (response.ok && binary) return response.arrayBuffer();
  const said = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Error(said.error);
  return said;
}
