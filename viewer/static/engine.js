/**
 * Who runs the model. Every host gives the same: `tokenize(text) -> ids` and
 * `run(tokens, edits, step) -> {logits [T, V], patterns [L, H, T, T], gates [L, H, T] or null,
 * latents {ids, values} [T, 5] or null, lens(stream)}`, where `lens(stream)` resolves to {ids, p} [L + 1, T, 5]: the lens
 * of that stream, in the same pass.
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
  const tokenizer = makeTokenizer(JSON.parse(model.tokenizer.json));
  const sessions = new Map();
  const session = (blob) => {
    if (!sessions.has(blob))
      sessions.set(blob, Promise.all([runtime(), unpack(blob)]).then(([ort, bytes]) => ort.InferenceSession.create(bytes)));
    return sessions.get(blob);
  };

  async function outputsOf(tokens, edits, step, rows) {
    const snapshot = model.snapshots.find((s) => s.step === step) ?? model;
    const [ort, graph] = await Promise.all([runtime(), session(snapshot.blob)]);
    const integers = (values, dims) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), dims);
    const feeds = { tokens: integers(tokens, [1, tokens.length]), lens_at: integers(rows, [rows.length]) };
    for (const [name, { data, dims }] of Object.entries(graphInputs(edits, model)))
      feeds[name] = new ort.Tensor("float32", data, dims);
    return graph.run(feeds);
  }

  async function run(tokens, edits, step = null) {
    const { logits, patterns, gates, latent_ids, latent_values } = await outputsOf(tokens, edits, step, [0, 0]);
    const lens = async (stream) => {
      const found = await outputsOf(tokens, edits, step, lensRows(model, tokens.length, stream));
      return { ids: found.lens_ids.data, p: found.lens_p.data };
    };
    const latents = latent_ids ? { ids: latent_ids.data, values: latent_values.data } : null;
    return { logits: logits.data, patterns: patterns.data, gates: gates?.data ?? null, latents, lens };
  }

  return { run, tokenize: async (text) => tokenizer.encode(text) };
}

/** The rows of [L + 1, S, T] that hold one stream. */
function lensRows(model, length, stream) {
  const rows = [];
  for (let layer = 0; layer <= model.layers; layer++)
    for (let t = 0; t < length; t++) rows.push((layer * model.streams.length + stream) * length + t);
  return rows;
}

/** Arrays of an answer, by name, from the format of safetensors: the header's length, a JSON header, numbers. */
export function readArrays(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const found = {};
  for (const [name, { dtype, data_offsets: [start, end] }] of Object.entries(header)) {
    const Kind = dtype === "I32" ? Int32Array : Float32Array;
    found[name] = new Kind(buffer, 8 + length + start, (end - start) / 4);
  }
  return found;
}

/** An engine at the other end of `ask(path, question) -> ArrayBuffer | object`: a server or a notebook's kernel. */
export function remoteEngine(model, ask) {
  const own = model.tokenizer.json ? makeTokenizer(JSON.parse(model.tokenizer.json)) : null;
  return {
    tokenize: async (text) => (own ? own.encode(text) : (await ask("tokenize", { model: model.id, text })).ids),
    run: async (tokens, edits, step = null) => {
      const question = { model: model.id, step, tokens: Array.from(tokens), edits };
      const { logits, patterns, gates = null, latent_ids, latent_values } = readArrays(await ask("run", question));
      const latents = latent_ids ? { ids: latent_ids, values: latent_values } : null;
      const lens = async (stream) => {
        const found = readArrays(await ask("lens", { ...question, stream }));
        return { ids: found.lens_ids, p: found.lens_p };
      };
      return { logits, patterns, gates, latents, lens };
    },
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
  const answer = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}
