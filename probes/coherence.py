"""Coherence: does the model continue with what the text means, or with what its grammar also allows?

    python -m probes.coherence runs/lfa
    python -m probes.coherence runs/lfa --suite stories --n 500 --out coherence.parquet

log-odds = log p(coherent | text) − log p(incoherent | text) in nats, of the first token in which the continuations
differ ("He used it to open the door. He opened the door with the" key / box). The behavioural measure beside
attention: gating the heads of the last layer cannot change any attention weight, but it can change this.

`elsewhere` is the same question after another prompt's nouns (`probes.elsewhere`): a verb alone can tell a tool from a
container, and what it tells is not due to the nouns of the text. `due to nouns` is what they add to the choice, `lift`
what they add to both of its words alike.

Intervals over the generated stories hold for new words: a thousand pairs are made of a hundred nouns, and prompts that
share either noun are not counted as independent (`probes.statistics`). The title says which holds for a suite.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamscope.models.cli import command, parse
from streamscope.models.errors import InputError
from streamscope.probes.elsewhere import UNITS as ELSEWHERE
from streamscope.probes.report import (
    INTERVAL,
    ProbeOptions,
    check_options,
    estimate,
    hits,
    open_session,
    show,
    with_holm,
    write,
)

if TYPE_CHECKING:
    import pandas as pd

    from streamscope.models.capture import Captures, Query
    from streamscope.probes.align import Aligned
    from streamscope.probes.suite import Suite

UNITS = {
    "log_odds": "nats",
    "log_p": "nats",
    "log_p_incoherent": "nats",
    "sd": "nats, between independent cases",
    "ci_low": "nats",
    "ci_high": "nats",
    "share": "of prompts with log-odds above 0",
    "share_low": "of prompts",
    "share_high": "of prompts",
    "n": "prompts",
    "clusters": "independent cases: a pair counts once; fewest words of a kind where they share words",
}


@dataclass(frozen=True, kw_only=True)
class Coherence:
    """Log-odds of the coherent continuation over the prompts that have one.

    Only the first differing token is compared: `align` filters and counts the prompts whose continuations begin with
    the same token, so it is the first. The rest of a longer continuation does not count.
    """

    def plan(self, prompts: "Suite | Aligned", tokenizer: Any) -> "Query":
        """Logits at the last token of every prompt with continuations; `InputError` if none has any."""
        from streamscope.probes.attention import RoleQuery, align_once, choose

        aligned = align_once(prompts, tokenizer)
        keep = [i for i, after in enumerate(aligned.continuations) if after is not None]
        if not keep:
            raise InputError("no prompt has continuations; use a suite that has, as competing or stories")
        chosen = choose(aligned, keep)
        used = set(keep)
        return RoleQuery(
            tokens=chosen.tokens,
            logits=[[len(ids) - 1] for ids in chosen.tokens],
            aligned=chosen,
            left_out=tuple(p.id for i, p in enumerate(aligned.prompts) if i not in used),
        )

    def read(self, captures: "Captures", query: "Query") -> "pd.DataFrame":
        """One row per prompt: ln p of either continuation's first token, and their difference `log_odds`, in nats."""
        import numpy as np
        import pandas as pd

        from streamscope.probes.attention import RoleQuery, prompt_columns

        assert isinstance(query, RoleQuery)
        assert captures.logits is not None
        aligned = query.aligned
        log_p = np.zeros((len(aligned.prompts), 2))
        for i, (row, after) in enumerate(zip(captures.logits, aligned.continuations, strict=True)):
            assert after is not None
            log_p[i] = row[0].double().log_softmax(-1)[[after[0][0], after[1][0]]].cpu().numpy()
        odds = log_p[:, 0] - log_p[:, 1]
        if not np.isfinite(odds).all():
            bad = aligned.prompts[int(np.flatnonzero(~np.isfinite(odds))[0])].id
            raise InputError(f"the logits of prompt {bad!r} are not finite")
        names = {
            "coherent": [p.coherent for p in aligned.prompts],
            "incoherent": [p.incoherent for p in aligned.prompts],
        }
        return pd.DataFrame({**prompt_columns(aligned), **names, "log_p": log_p[:, 0], "log_p_incoherent": log_p[:, 1],
                             "log_odds": odds, "prefers": odds > 0})  # fmt: skip

    def summarize(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """One row for all prompts and one per relation: mean log-odds, and the share of prompts above 0.

        Intervals over independent cases; p is that of mean log-odds 0, with Holm over the relations (the row "all"
        is no further test).
        """
        import pandas as pd

        from streamscope.probes.undefined import note, reasons

        if table.empty:
            raise InputError("no prompts to summarise: the table is empty")
        named = table[table["relation"] != ""]
        rows = []
        for name, one in [("all", table), *named.groupby("relation")]:
            result = estimate(one["log_odds"], one["cluster"])
            above = hits(one["prefers"].to_numpy(), one["cluster"].to_numpy())
            why = reasons(result.pop("undefined"))
            if above["why"]:
                why |= dict.fromkeys(("share_low", "share_high"), above["why"])
            rows.append(
                {
                    "relation": name,
                    "log_odds": result["mean"],
                    **{k: result[k] for k in ("sd", "ci_low", "ci_high", "p")},
                    "share": above["share"],
                    "share_low": above["ci_low"],
                    "share_high": above["ci_high"],
                    "n": result["n"],
                    "clusters": result["clusters"],
                    "undefined": note(why),
                }
            )
        whole, parts = pd.DataFrame(rows[:1]), pd.DataFrame(rows[1:])
        return pd.concat([with_holm(whole), *([with_holm(parts)] if len(parts) else [])], ignore_index=True)

    def plot(self, table: "pd.DataFrame", title: str = "") -> Any:
        """Log-odds of every prompt, by relation; above 0 the coherent continuation is the likelier."""
        import plotly.graph_objects as go

        shown = {"target_first": "#3b6ea5", "target_last": "#c8553d", "": "#666666"}
        figure = go.Figure()
        for order, one in table.groupby("order"):
            figure.add_trace(
                go.Box(
                    x=one["relation"].replace("", "no relation"),
                    y=one["log_odds"],
                    text=one["id"],
                    name=str(order).replace("_", " ") or "no order",
                    boxpoints="all",
                    jitter=0.5,
                    pointpos=0,
                    fillcolor="rgba(255, 255, 255, 0)",
                    marker={"color": shown[str(order)], "size": 5},
                )
            )
        figure.add_hline(0, line_dash="dash")
        figure.update_layout(title=title, boxmode="group", width=900, height=520)
        figure.update_xaxes(title="relation of the nouns; a point is a prompt, the box its quartiles")
        figure.update_yaxes(title="log-odds of the coherent continuation, nats")
        return figure


# ---- the command -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options(ProbeOptions):
    """Arguments of `python -m probes.coherence`."""

    control: bool = True
    """Ask the same after other prompts' nouns as well."""


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)

    from streamscope.probes.probe import measure

    session, probe = open_session(options), Coherence()
    table = measure(session.model, probe, session.aligned, tokenizer=session.tokenizer)
    summary = probe.summarize(table)
    without = len(session.aligned.prompts) - len(table)
    title = session.title + (f", {without} without continuations" if without else "")
    columns: tuple[str, ...] = ("relation", "log_odds", INTERVAL, "p_holm", "share", "n")
    if options.control:
        summary, table = _with_control(session, probe, summary, table)
        columns = (*columns, "elsewhere", DUE, "lift", "controls")
        spans = zip(summary["due"], summary["due_low"], summary["due_high"], strict=True)
        shown = ["undefined" if a != a else f"{a:+.4f} ({low:+.4f} … {high:+.4f})" for a, low, high in spans]
        show(summary.assign(**{DUE: shown}), f"{title}; log-odds of the coherent continuation, nats", columns)
    else:
        show(summary, f"{title}; log-odds of the coherent continuation, nats", columns)
    units = {**UNITS, **ELSEWHERE}
    tables = {
        name: (one, {k: u for k, u in units.items() if k in one}) for name, one in (("", summary), ("rows", table))
    }
    write(options, session, tables, probe.plot(table, title))


DUE = "due to nouns"


def _with_control(
    session: Any, probe: Coherence, summary: "pd.DataFrame", table: "pd.DataFrame"
) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """Both tables with what the control says beside them."""
    from streamscope.probes.elsewhere import NO_CONTROL, due_to_nouns, elsewhere
    from streamscope.probes.probe import measure
    from streamscope.probes.undefined import note, reasons

    suite = elsewhere(session.aligned)
    control = None if suite is None else measure(session.model, probe, suite, tokenizer=session.tokenizer)
    found = due_to_nouns(table, control)
    both = summary.merge(found, on="relation", suffixes=("", "_control"))
    texts = zip(both["undefined"], both.pop("undefined_control"), strict=True)
    both["undefined"] = [note({**reasons(a), **reasons(b)}) for a, b in texts]
    if control is not None:
        after = dict(zip(control["id"], control["log_odds"], strict=True))
        table = table.assign(elsewhere=table["id"].map(after).astype(float))
        lost = dict.fromkeys(["elsewhere"], NO_CONTROL)
        table["undefined"] = [note(lost) if x != x else "" for x in table["elsewhere"]]
    return both, table


if __name__ == "__main__":
    command(main)
