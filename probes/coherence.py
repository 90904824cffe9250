"""Coherence: does the model continue with what the text means, or with what its grammar also allows?

    python -m probes.coherence runs/lfa
    python -m probes.coherence runs/lfa --suite stories --n 500 --out coherence.parquet

log-odds = log p(coherent | text) − log p(incoherent | text) in nats, of the first token in which the continuations
differ ("He used it to open the door. He opened the door with the" key / box). The behavioural measure beside
attention: gating the heads of the last layer cannot change any attention weight, but it can change this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.cli import command, parse
from models.errors import InputError
from probes.report import INTERVAL, ProbeOptions, check_options, estimate, hits, open_session, show, with_holm, write

if TYPE_CHECKING:
    import pandas as pd

    from models.capture import Captures, Query
    from probes.align import Aligned
    from probes.suite import Suite

UNITS = {
    "log_odds": "nats",
    "sd": "nats, between independent cases",
    "ci_low": "nats",
    "ci_high": "nats",
    "share": "of prompts with log-odds above 0",
    "share_low": "of prompts",
    "share_high": "of prompts",
    "n": "prompts",
    "clusters": "independent cases: the two orders of a pair count once",
}


@dataclass(frozen=True, kw_only=True)
class Coherence:
    """Log-odds of the coherent continuation over the prompts that have one.

    Only the first differing token is compared: `align` filters and counts the prompts whose continuations begin with
    the same token, so it is the first. The rest of a longer continuation does not count.
    """

    def plan(self, prompts: "Suite | Aligned", tokenizer: Any) -> "Query":
        """Logits at the last token of every prompt with continuations; `InputError` if none has any."""
        from probes.attention import RoleQuery, align_once, choose

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
        """One row per prompt: `log_odds` in nats, the difference of two logits (the normaliser cancels)."""
        import numpy as np
        import pandas as pd

        from probes.attention import RoleQuery, prompt_columns

        assert isinstance(query, RoleQuery)
        assert captures.logits is not None
        aligned = query.aligned
        odds = np.zeros(len(aligned.prompts))
        for i, (row, after) in enumerate(zip(captures.logits, aligned.continuations, strict=True)):
            assert after is not None
            coherent, incoherent = row[0, [after[0][0], after[1][0]]].double().tolist()
            odds[i] = coherent - incoherent
        if not np.isfinite(odds).all():
            bad = aligned.prompts[int(np.flatnonzero(~np.isfinite(odds))[0])].id
            raise InputError(f"the logits of prompt {bad!r} are not finite")
        names = {
            "coherent": [p.coherent for p in aligned.prompts],
            "incoherent": [p.incoherent for p in aligned.prompts],
        }
        return pd.DataFrame({**prompt_columns(aligned), **names, "log_odds": odds, "prefers": odds > 0})

    def summarize(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """One row for all prompts and one per relation: mean log-odds, and the share of prompts above 0.

        Intervals over independent cases; p is that of mean log-odds 0, with Holm over the relations (the row "all"
        is no further test).
        """
        import pandas as pd

        from probes.undefined import note, reasons

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


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, measure, print, write."""
    options = parse(Options, argv, __doc__)
    check_options(options)

    from probes.probe import measure

    session, probe = open_session(options), Coherence()
    table = measure(session.model, probe, session.aligned, tokenizer=session.tokenizer)
    summary = probe.summarize(table)
    without = len(session.aligned.prompts) - len(table)
    title = session.title + (f", {without} without continuations" if without else "")
    columns = ("relation", "log_odds", INTERVAL, "p_holm", "share", "n")
    show(summary, f"{title}; log-odds of the coherent continuation, nats", columns)
    write(options, session, {"": (summary, UNITS), "rows": (table, UNITS)}, probe.plot(table, title))


if __name__ == "__main__":
    command(main)
