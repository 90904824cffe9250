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

/**
 * @param {Object} file  a tokenizer.json of byte-level BPE without a normalizer
 * @returns {{encode: function(string): number[]}}  text to ids; what looks like a special token is text
 */
export function makeTokenizer(file) {
  const characters = byteCharacters();
  const vocab = new Map(Object.entries(file.model.vocab));
  const ranks = new Map(file.model.merges.map((pair, rank) => [typeof pair === "string" ? pair : pair.join(" "), rank]));
  const known = new Map();

  /** The ids of one piece: the pair that was learned first is merged first. */
  function merge(piece) {
    const found = known.get(piece);
    if (found) return found;
    let parts = Array.from(new TextEncoder().encode(piece), (byte) => characters[byte]);
    while (parts.length > 1) {
      let best = Infinity;
      for (let i = 0; i + 1 < parts.length; i++) best = Math.min(best, ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity);
      if (best === Infinity) break;
      const joined = [];
      for (let i = 0; i < parts.length; i++) {
        const pair = i + 1 < parts.length && ranks.get(`${parts[i]} ${parts[i + 1]}`) === best;
        joined.push(pair ? parts[i] + parts[++i] : parts[i]);
      }
      parts = joined;
    }
    const ids = parts.map((part) => vocab.get(part)).filter((id) => id !== undefined);
    if (known.size < 5000) known.set(piece, ids);
    return ids;
  }

  function encode(text) {
    const prefix = file.pre_tokenizer.add_prefix_space && text && !text.startsWith(" ") ? " " : "";
    return Array.from((prefix + text).matchAll(PIECES), ([piece]) => merge(piece)).flat();
  }

  return { encode };
}
