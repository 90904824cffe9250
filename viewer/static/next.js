/** The next token at one position, before and after the edits; with a suite's case, its two answers first. */

import { card, element, setText, visible } from "./dom.js";
import { logProbability, probability, signed, topTokens } from "./numbers.js";

const ROWS = 8;

export class Next {
  constructor(view, column) {
    this.view = view;
    this.column = column;
    this.card = card("next", "Next token", "");
    this.verdict = element("p", { class: "verdict" });
    this.list = element("ul", { class: "pairs" });
    this.words = ["First candidate", "Second candidate"].map((label) =>
      element("input", { attributes: { type: "text", spellcheck: "false", autocomplete: "off", "aria-label": label }, on: { change: () => this.compare() } }),
    );
    this.own = element("label", { class: "own hint" }, "Compare", this.words[0], "with", this.words[1]);
    this.card.body.append(this.verdict, this.list, this.own);
    this.node = this.card.node;
  }

  /** Compares two candidates of one's own as soon as both are there. */
  compare() {
    const words = this.words.map(({ value }) => value);
    const whole = words.every((word) => word.trim());
    if (whole || this.view.state.compare) this.view.set({ compare: whole ? words : null });
  }

  draw(changes) {
    if (!changes.has("result") && !changes.has("lock")) return;
    const { column, view } = this;
    if (!column.result) return;
    const { base, result, edited, model } = column;
    const at = view.predictAt(column);
    const prefix = view.columns.length > 1 ? `${model.name} · ` : "";
    setText(this.card.heading, `${prefix}Next token after ${column.texts[at].quoted}`);
    setText(this.card.hint, edited ? "Grey: as trained. Blue: with your changes." : "Probability of each candidate.");
    const p = (answer, id) => Math.exp(logProbability(answer.logits, at, model.vocab, id));
    const { answers } = column;
    const pieces = model.tokenizer.pieces;
    const isCut = ({ id, label }) => pieces[id].trim() !== label;
    if (answers.some(isCut)) this.card.hint.append(" Of a word of several tokens, its first.");
    const own = view.state.compare;
    this.words.forEach((input, at) => {
      if (own) input.value = own[at];
      input.placeholder = answers[at]?.label ?? "a word";
    });
    const unclear = own && !answers.length ? `${own.join(" and ")} begin with the same token: choose others.` : "";
    const ids = new Set(answers.map(({ id }) => id));
    const likely = [...topTokens(base.logits, at, model.vocab, ROWS), ...topTokens(result.logits, at, model.vocab, ROWS)];
    likely.sort((a, b) => b.p - a.p);
    for (const { id } of likely) if (ids.size < ROWS) ids.add(id);
    const rows = [...ids].map((id) => ({ id, before: p(base, id), after: p(result, id), answer: answers.find((a) => a.id === id) }));
    rows.sort((a, b) => Boolean(b.answer) - Boolean(a.answer) || Math.max(b.before, b.after) - Math.max(a.before, a.after));
    const most = Math.max(...view.columns.filter((one) => one.result).map((one) => topOf(one, view.predictAt(one))));
    this.list.replaceChildren(
      ...rows.map(({ id, before, after, answer }) => {
        const bars = element("span", { class: "bars" }, bar("before", before / most), bar("after", after / most));
        const name = element("span", { class: "name" }, element("span", { text: visible(pieces[id] ?? `#${id}`) }));
        if (answer && isCut(answer)) name.append(element("span", { class: "hint", text: answer.label }));
        if (answer) name.append(element("span", { class: `role ${answer.role}`, text: answer.role }));
        const value = edited ? `${probability(before)} → ${probability(after)}` : probability(before);
        return element("li", { class: edited ? "changed" : "", data: { id: String(id), before: String(before), after: String(after) } }, name, bars, element("span", { class: "value", text: value }));
      }),
    );
    this.verdict.hidden = answers.length < 2 && !unclear;
    this.verdict.classList.toggle("lost", Boolean(unclear));
    if (unclear) setText(this.verdict, unclear);
    if (answers.length >= 2) {
      const odds = (answer) => logProbability(answer.logits, at, model.vocab, answers[0].id) - logProbability(answer.logits, at, model.vocab, answers[1].id);
      const [before, after] = [odds(base), odds(result)];
      const ahead = after > 0;
      const change = edited ? `${signed(before)} → ${signed(after)}` : signed(before);
      setText(this.verdict, `${answers[0].label} is ${ahead ? "ahead of" : "behind"} ${answers[1].label}, log-odds ${change}`);
      this.verdict.title = "Log-odds: ln of the probability of the first candidate over that of the second. Above 0 the first is likelier.";
      this.verdict.classList.toggle("lost", !ahead);
    }
  }
}

/** The greatest probability before or after the edits: bars of all models have its scale. */
function topOf({ base, result, model }, at) {
  return Math.max(...[base, result].map(({ logits }) => topTokens(logits, at, model.vocab, 1)[0].p));
}

function bar(kind, share) {
  const node = element("span", { class: kind });
  node.style.setProperty("--share", share.toFixed(4));
  return node;
}
