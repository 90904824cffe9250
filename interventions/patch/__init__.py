"""Patch activations of one prompt into another, and measure which of them carry the prediction.

    python -m interventions.patch                     the bundled LFA: streams, attention, FFN by position, every head
    python -m interventions.patch runs/kron --hooks token_pre context_pre z mlp.post --direction denoise noise
    python -m interventions.patch runs/kron --senders top3:recovery L1.mlp --out patch.parquet
    python -m interventions.patch --clean "Leo met a robot and a monkey. Built from metal, it" --answer " beeped"
        --corrupt "Leo met a robot and a monkey. Lonely and sad, it" --foil " lay" --by token
    python -m interventions.patch stories/gpt2 --suite ioi --pairs 40
    python -m interventions.patch runs/lfa --suite mine.csv --by head --hooks q.token q.context k.token v.token
    python -m interventions.patch runs/lfa --control runs/std-t --hooks attn_out mlp_out z

A pair is a clean and a corrupted prompt with the same number of tokens: two texts of yours, or prompts of a suite.
Suites with corrupted prompts are stories (the pronoun means the other noun), ioi, ioi-abc, greater-than, induction,
docstring, name-copying, letter-case, agreement, capitals, pronouns, and JSONL files with clean, corrupt, answers and
foils. Prompts of other suites are paired by --contrast: noun (another noun), order (the two orders of a minimal pair).
Prompts without a partner are left out and counted. The metric is ln p(answers) − ln p(foils)
after the last token, each summed over the continuations that count. Recovery is 0 at the corrupted run's value and 1 at
the clean run's, and undefined for pairs that differ by less than --threshold. denoise puts the clean activation into
the corrupted run, noise the reverse. Intervals are over independent pairs. The first-order guess (attribution patching)
and its error are given as well.

Hooks by short names: z, q, k, v, pattern, attn_out, mlp_out, mlp.post, resid_pre, token_mid, context_post, s1_pre, …
q.token, q.context, k.token, … are what a head's queries, keys or values read of one stream: only this reader gets the
other run's stream. Their row is undefined where values do not read the stream.
--senders adds path patching: the effect of a head, L2.attn or L2.mlp through one reader (`interventions.patch.paths`
defines what is frozen); top3:recovery takes the heads with the largest recovery on the same pairs. --control patches
the same places of the same pairs in a second model with the run's tokenizer, and the run's senders.
Source: Meng et al. 2022; Wang et al. 2022.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from streamscope.cli.bounds import Count, Names, Positive
from streamscope.cli.errors import InputError
from streamscope.instruments.command import main_of
from streamscope.instruments.contract import Instrument, instrument
from streamscope.instruments.data import Data, Prompts
from streamscope.instruments.figures import HeadMap, Intervals
from streamscope.models.head_spec import score_names


@instrument("patch", Prompts(suite="stories"))
class Patch(Instrument):
    contrast: Literal["auto", "corrupt", "noun", "order"] = "auto"
    """Difference between the two prompts of a pair. corrupt: the suite's own corrupted prompt; noun: another noun;
    order: the nouns change places. auto: corrupt, or noun if the suite has no corrupted prompts."""
    clean: str | None = None
    """Your own clean text; with --corrupt, --answer and --foil it replaces the suite."""
    corrupt: str | None = None
    """The corrupted text, with the same number of tokens."""
    answer: str | None = None
    """Continuation of the clean text, with its leading space; its first token counts."""
    foil: str | None = None
    """Continuation of the corrupted text."""
    pairs: Count = 20
    """Approximate number of pairs, spread over the suite."""
    hooks: Names = ()
    """Activations to patch, by short name: z, q, attn_out, mlp_out, resid_pre, embed, ln_final.normalized, … Default:
    the streams that enter each layer, attn_out, mlp_out, and z of single heads."""
    layers: Names = ()
    """Layers to patch, as 3 or 2-4; default: all."""
    by: Literal["auto", "role", "head", "head-role", "token", "all"] = "auto"
    """Unit of a patch: all positions of a role (a named part of the prompt, such as target or last), a head, a head at
    a role, one position, or everything."""
    direction: Annotated[tuple[Literal["denoise", "noise"], ...], MinLen(1)] = ("denoise",)
    """denoise: clean into corrupted; noise: corrupted into clean."""
    method: Annotated[tuple[Literal["exact", "attribution"], ...], MinLen(1)] = ("exact", "attribution")
    """Run every patch, approximate it from one gradient, or both."""
    senders: Names = ()
    """Heads (L2.H3, top3:recovery), L2.attn or L2.mlp to follow by path patching to every later reader. Of several
    --direction the first is used."""
    threshold: Positive = 0.5
    """Difference in nats between clean and corrupted below which recovery is undefined."""

    figures: ClassVar = (
        HeadMap("recovery", each=("hook", "direction"), columns="position",
                title="Recovery of the answer by patched layer and position"),
        HeadMap("recovery", each=("hook", "direction"), title="Recovery of the answer from patching each head"),
        HeadMap("effect", each=("hook", "direction"), columns="position",
                title="Effect on the answer by patched layer and position"),
        HeadMap("effect", each=("hook", "direction"), title="Effect on the answer of patching each head"),
        Intervals("effect", label="name", title="Effects of patching, largest first"),
        Intervals("attribution", label="name", title="Attribution patching: the first-order guess of each effect"),
        HeadMap("effect", table="paths", rows="sender", columns="reader",
                title="Effect on the answer of patching each path"),
    )  # fmt: skip
    quick: ClassVar = {
        "pairs": 4, "hooks": ("token_pre", "z"), "layers": ("0-1",), "senders": ("L1.H2",),
    }  # fmt: skip
    planted: ClassVar = "tests/interventions/test_patching.py::test_only_the_planted_head_moves_the_answer"

    def __post_init__(self) -> None:
        super().__post_init__()
        texts = (self.clean, self.corrupt, self.answer, self.foil)
        if any(x is not None for x in texts) and any(x is None for x in texts):
            raise InputError("your own pair needs all of --clean, --corrupt, --answer and --foil")
        of_pairs = [name for name in ("contrast", "pairs") if getattr(self, name) != getattr(Patch, name)]
        if self.clean is not None and of_pairs:
            raise InputError(f"--{of_pairs[0]} has no effect with your own --clean: leave it out")
        if strange := score_names(self.senders) - {"recovery"}:
            raise InputError(f"--senders rank heads by recovery, not {', '.join(sorted(strange))}")

    def unread(self, data: Mapping[type[Data], Data]) -> dict[type[Data], str]:
        return {} if self.clean is None else {Prompts: "--clean and --corrupt are the pair"}

    @staticmethod
    def body() -> Any:
        from streamscope.interventions.patch import measure

        return measure


main = main_of(Patch, __doc__)
