/** Byte-level BPE, as the library `tokenizers` does it. Needs no browser. */

// GPT-2's pattern. Unicode's white space, as in Rust: JavaScript's \s differs at U+0085 and U+FEFF.
const PIECES =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

/** The printable character that stands for each byte (GPT-2's table). */
function byteCharacters() {
  const printable = (b) => (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  let other = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCodePoint(printable(b) ? b : other++));
}

// Letters of a word, as Rust's \w.
const WORD_BEFORE = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]$/u;
const WORD_AFTER = /^[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]/u;
const SPACE_BEFORE = /\p{White_Space}*$/u;
const SPACE_AFTER = /^\p{White_Space}*/u;

/** Finds added tokens in a text, of several at one place the longest: [{id} or {text}]. */
function makeSplit(added) {
  if (!added.length) return (text) => [{ text }];
  const byName = new Map(added.map((token) => [token.content, token]));
  const names = [...byName.keys()].sort((a, b) => b.length - a.length);
  const pattern = new RegExp(names.map((name) => name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|"), "gu");
  return (text) => {
    const parts = [];
    let end = 0;
    for (const { 0: name, index } of text.matchAll(pattern)) {
      const { id, special, single_word: alone, lstrip, rstrip } = byName.get(name);
      const [before, after] = [text.slice(0, index), text.slice(index + name.length)];
      if (special || (alone && (WORD_BEFORE.test(before) || WORD_AFTER.test(after)))) continue; // stays text
      const start = lstrip ? Math.max(end, before.search(SPACE_BEFORE)) : index;
      if (end < start) parts.push({ text: text.slice(end, start) });
      parts.push({ id });
      end = index + name.length + (rstrip ? SPACE_AFTER.exec(after)[0].length : 0);
    }
    if (end < text.length) parts.push({ text: text.slice(end) });
    return parts;
  };
}

/**
 * @param {Object} file  a tokenizer.json of byte-level BPE without a normalizer
 * @returns {{encode: function(string): number[]}}  text to ids; what looks like a special token is text
 */
export function makeTokenizer(file) {
  const characters = byteCharacters();
  const vocab = new Map(Object.entries(file.model.vocab));
  const ranks = new Map(file.model.merges.map((pair, rank) => [typeof pair === "string" ? pair : pair.join(" "), rank]));
  const known = new Map();
  const added = file.added_tokens.filter(({ content }) => content);
  const splits = [false, true].map((normalized) => makeSplit(added.filter((token) => token.normalized === normalized)));

  /** When a pair was learned; Infinity if it is not merged. */
  const rank = (left = "", right = "") => ranks.get(`${left} ${right}`) ?? Infinity;

  /** The ids of one piece: the pair that was learned first is merged first. Bytes without a token are left out. */
  function merge(piece) {
    const found = known.get(piece);
    if (found) return found;
    let parts = Array.from(new TextEncoder().encode(piece), (byte) => characters[byte]).filter((part) => vocab.has(part));
    while (parts.length > 1) {
      let best = Infinity;
      for (let i = 0; i + 1 < parts.length; i++) best = Math.min(best, rank(parts[i], parts[i + 1]));
      if (best === Infinity) break;
      let earlier = false; // whether a merge made a pair that was learned earlier, which is next
      const joined = [];
      for (let i = 0; i < parts.length; i++) {
        const pair = !earlier && rank(parts[i], parts[i + 1]) === best;
        const part = pair ? parts[i] + parts[++i] : parts[i];
        if (pair) earlier = Math.min(rank(joined.at(-1), part), rank(part, parts[i + 1])) < best;
        joined.push(part);
      }
      parts = joined;
    }
    const ids = parts.map((part) => vocab.get(part));
    if (known.size < 5000) known.set(piece, ids);
    return ids;
  }

  function encodePart({ id, text }) {
    if (id !== undefined) return [id];
    const prefix = file.pre_tokenizer.add_prefix_space && text && !text.startsWith(" ") ? " " : "";
    return Array.from((prefix + text).matchAll(PIECES), ([piece]) => merge(piece)).flat();
  }

  function encode(text) {
    const [first, second] = splits;
    return first(text).flatMap((part) => (part.id === undefined ? second(part.text) : [part])).flatMap(encodePart);
  }

  return { encode };
}
