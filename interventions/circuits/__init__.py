"""Find the circuit of a task: what each edge between heads, FFNs and streams is worth.

    python -m interventions.circuits stories/lfa --task stories
    python -m interventions.circuits runs/lfa --task competing --method exact --out lfa.parquet --figure lfa.html
    python -m interventions.circuits runs/smollm2 --task ioi --method eap-ig --out circuit.json
    python -m interventions.circuits stories/lfa stories/std-t --task mine.jsonl --metric log-odds
    python -m interventions.circuits runs/lfa --latents runs/dictionaries/blocks.2.hook_mlp_out-s0:17,20-29

A model is a graph. Heads, FFNs and the embedding write to the residual stream; queries, keys, values, FFNs and the
unembedding read it. The score of an edge is what the task's metric loses when this one edge carries the output of the
corrupted run. Edges are chosen on half of the pairs. The other half judges the circuit: all other edges are patched,
and f(k) says how much of the effect the best share k of the edges keeps, compared with random circuits.

Tasks are the suites with corrupted prompts (ioi, ioi-abc, greater-than, induction, docstring, name-copying,
letter-case, agreement, capitals, pronouns), competing, stories, and a JSONL file with clean, corrupt, answers and
foils. --out circuit.json and circuit.pt are the formats of the MIB benchmark. `interventions.circuits.graph` says what
the edges are in models with several streams.
"""

from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from streamscope.cli.bounds import Count, NotNegative, Only, Seed, Share
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.figures import Circuit, Curve, Intervals
from streamscope.instruments.prompts import check_suite

Contrast = Literal["auto", "corrupt", "noun", "order"]
Method = Literal["exact", "eap", "eap-ig", "eap-ig-activations", "acdc", "random"]
Metric = Literal["logit-difference", "log-odds", "kl", "loss"]
Points = Literal["left", "right", "midpoint"]


@instrument("circuits")
class Circuits(Instrument):
    """Score every edge of a model for a task, and measure how much of the task the best edges carry.

    score = m(clean) − m(clean with the edge patched); f(k) = (m(C_k) − m(∅)) / (m(M) − m(∅)) of the best share k of the
    edges; CPR = ∫ f dk, CMD = ∫ |1 − f| dk (Mueller et al. 2025).
    """

    task: str = "stories"
    """A suite, or a JSONL file with clean, corrupt, answers and foils."""
    latents: tuple[str, ...] = ()
    """Latents that are parts of the graph: FOLDER:17,20-29 of a dictionary of an FFN's output, or of a transcoder."""
    contrast: Contrast = "auto"
    """How pairs are made of a suite without corrupted prompts: noun (another noun), order (the nouns
    change places). auto: corrupt, or the first of these that gives pairs of several texts."""
    pairs: Annotated[int, Ge(2)] = 64
    """Approximate number of pairs. Half of them choose the circuit, the other half judge it."""
    method: Method = "eap-ig"
    """exact runs every edge. eap and eap-ig (along inputs, or -activations) approximate it by gradients. acdc prunes
    edge after edge. random is the baseline."""
    metric: Metric = "logit-difference"
    """logit-difference: ln p(answers) − ln p(foils). log-odds: ln p(answers) − ln p(all others). kl: minus the
    divergence from the clean run. loss: minus the loss of the answer's tokens."""
    steps: Annotated[Count, Only("method", ("eap-ig", "eap-ig-activations"))] = 10
    """Steps m of the integrated gradient."""
    ig_points: Annotated[Points, Only("method", ("eap-ig", "eap-ig-activations"))] = "right"
    """Where on the way from the corrupted to the clean run. right: 1/m … 1, as in the paper. left: 0 … (m − 1)/m, as in
    its authors' code for eap-ig. midpoint: halfway between both."""
    threshold: Annotated[NotNegative, Only("method", ("acdc",))] = 0.01
    """Change of the mean metric in nats below which acdc prunes an edge."""
    keep: Share = 0.02
    """Share of the edges that the circuit in the table, the figure and the file holds."""
    draws: Count = 5
    """Random circuits per share of edges."""
    seed: Seed = 0
    """Seed of random circuits and bootstraps."""

    figures: ClassVar = (
        Circuit("score", title="The best edges between heads, FFNs and streams"),
        Curve("f", "faithfulness", x="share", by="ranking", log=True, title="Share of the effect that a circuit keeps"),
        Intervals("score", label="edge", title="Scores of the best edges, largest first"),
    )
    exports: ClassVar = (".json", ".pt")
    quick: ClassVar = {"pairs": 24, "draws": 2, "steps": 2}
    planted: ClassVar = "tests/interventions/test_circuits.py::test_planted_circuits_are_found"

    def check_sources(self) -> None:
        check_suite(self.task)

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.circuits import measure

        return measure


main = main_of(Circuits, __doc__)
