/** How much the model needs each head: the change of a score when that head alone is off, on top of the present changes. */

import { quoted } from "./dom.js";
import { headName, setHead } from "./edits.js";
import { logProbability } from "./numbers.js";

const KEPT = 24; // measurements that are kept for another look
const ASK = 15000; // ms: a measurement that takes longer waits for a click
const REDRAW = 150; // ms

/** The effects of a column's heads, measured in the background, a run of the model at a time. */
export class Effects {
  constructor(view, column, onChange) {
    this.view = view;
    this.column = column;
    this.onChange = onChange;
    this.found = new Map();
    this.allowed = new Set();
  }

  /** What is scored: the log-odds of a case's answers, else ln p of the token after the locked one, else of the likeliest. */
  score() {
    const { column, view } = this;
    const at = view.predictAt(column);
    const lnp = (logits, id) => logProbability(logits, at, column.model.vocab, id);
    if (column.answers.length) {
      const [right, wrong] = column.answers;
      const name = `log-odds of ${right.label} over ${wrong.label}`;
      return { key: `${right.id} over ${wrong.id}`, name, of: (logits) => lnp(logits, right.id) - lnp(logits, wrong.id) };
    }
    const next = at + 1 < column.tokens.length ? column.tokens[at + 1] : view.likeliest(column, at);
    const name = `ln p of ${quoted(column.model.tokenizer.pieces[next])} after ${column.texts[at].quoted}`;
    return { key: `${at} ${next}`, name, of: (logits) => lnp(logits, next) };
  }

  /** The measurement of the newest answer: begun before, or new. */
  current() {
    const { column } = this;
    const score = this.score();
    const key = JSON.stringify([column.basis, column.edits, score.key]);
    if (!this.found.has(key)) {
      const count = column.model.layers * column.model.heads;
      const now = score.of(column.result.logits);
      this.found.set(key, { key, score, now, count, done: 0, values: new Float64Array(count).fill(NaN) });
      if (this.found.size > KEPT) this.found.delete(this.found.keys().next().value);
    }
    return this.found.get(key);
  }

  /** How long the heads that are left take, by the last one: the first run of a text takes longer. */
  milliseconds(job) {
    return (job.count - job.done) * job.milliseconds;
  }

  /** Whether the rest takes so long that a person is asked first; one head is always measured. */
  waits(job) {
    return job.done > 0 && job.done < job.count && !this.allowed.has(job.key) && this.milliseconds(job) > ASK;
  }

  allow() {
    this.allowed.add(this.current().key);
    this.measure();
  }

  wanted(job) {
    const { view, column } = this;
    return view.state.grid === "effect" && view.columns.includes(column) && this.current() === job && !this.waits(job);
  }

  /** Measures what is left, until all is done or something else is wanted. */
  async measure() {
    const { view, column } = this;
    const job = this.current();
    if (job.running || job.done === job.count || !this.wanted(job)) return;
    job.running = true;
    const { tokens, edits, model } = column;
    const step = view.nearestStep(model);
    let drawn = performance.now();
    try {
      while (job.done < job.count && this.wanted(job)) {
        const name = headName(Math.floor(job.done / model.heads), job.done % model.heads);
        const off = setHead(edits, name, "scale", 0);
        const isOff = edits.heads?.[name]?.scale === 0;
        const began = performance.now();
        const logits = isOff ? column.result.logits : (await view.alone(() => column.engine.run(tokens, off, step))).logits;
        job.values[job.done] = isOff ? 0 : job.score.of(logits) - job.now;
        if (!isOff) job.milliseconds = performance.now() - began;
        job.done++;
        if (performance.now() - drawn > REDRAW) {
          drawn = performance.now();
          this.onChange();
        }
        await new Promise((resolve) => setTimeout(resolve)); // lets the page answer in between
      }
    } catch (error) {
      job.problem = error instanceof Error ? error.message : String(error);
      job.done = job.count;
    }
    job.running = false;
    this.onChange();
  }
}
