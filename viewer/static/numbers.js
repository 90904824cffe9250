/** What the page computes from an engine's answer: probabilities, losses, and how far patterns moved. Needs no browser. */

/** ln Σ exp of the row of logits at a position. */
export function logSumExp(logits, position, size) {
  const start = position * size;
  let top = -Infinity;
  for (let i = start; i < start + size; i++) if (logits[i] > top) top = logits[i];
  let sum = 0;
  for (let i = start; i < start + size; i++) sum += Math.exp(logits[i] - top);
  return top + Math.log(sum);
}

/** ln p of a token as the next one after a position. */
export function logProbability(logits, position, size, id) {
  return logits[position * size + id] - logSumExp(logits, position, size);
}

/** Loss in nats of every token, predicted from those before it; the first has none (NaN). */
export function tokenLosses(logits, tokens, size) {
  const losses = new Float64Array(tokens.length).fill(NaN);
  for (let t = 1; t < tokens.length; t++) losses[t] = -logProbability(logits, t - 1, size, tokens[t]);
  return losses;
}

/** The mean of the losses that exist. */
export function meanLoss(losses) {
  let sum = 0;
  for (let t = 1; t < losses.length; t++) sum += losses[t];
  return losses.length > 1 ? sum / (losses.length - 1) : NaN;
}

/** The k likeliest next tokens after a position: [{id, p}], the likeliest first. */
export function topTokens(logits, position, size, k) {
  const start = position * size;
  const best = [];
  for (let id = 0; id < size; id++) {
    const value = logits[start + id];
    if (best.length === k && value <= best[k - 1].value) continue;
    let at = best.length;
    while (at > 0 && best[at - 1].value < value) at--;
    best.splice(at, 0, { id, value });
    if (best.length > k) best.pop();
  }
  const total = logSumExp(logits, position, size);
  return best.map(({ id, value }) => ({ id, p: Math.exp(value - total) }));
}

/** How far each head's pattern moved: ½ Σ_key |after − before|, the mean over queries, 0 to 1. [L · H] */
export function patternShift(before, after, heads, length) {
  const area = length * length;
  const shift = new Float64Array(heads);
  for (let head = 0; head < heads; head++) {
    let sum = 0;
    for (let i = head * area; i < (head + 1) * area; i++) sum += Math.abs(after[i] - before[i]);
    shift[head] = sum / (2 * length);
  }
  return shift;
}

/** Numbers as the page prints them: .43, 1.20, −0.75; signs of changes are always written. */
export function plain(value, digits = 2) {
  if (!Number.isFinite(value)) return "–";
  return (Object.is(value, -0) ? 0 : value).toFixed(digits).replace(/^(-?)0\./, "$1.").replace("-", "−");
}

/** A probability; one that would be printed as 0 is "<.001". */
export function probability(p, digits = 3) {
  const least = 10 ** -digits;
  return p > 0 && p < least / 2 ? `<${plain(least, digits)}` : plain(p, digits);
}

export function signed(value, digits = 2) {
  const rounded = Number(value.toFixed(digits));
  return rounded > 0 ? `+${plain(rounded, digits)}` : plain(rounded, digits);
}
