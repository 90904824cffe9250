"""Texts, and sets of texts to contrast, opened for a model."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from streamscope.instruments.data import Data, Sets, Splittable, Text, check_tokenizer
from streamscope.instruments.prompts.sets import PromptSet, contrast, encode
from streamscope.text.stories import story


@dataclass(frozen=True)
class OpenText(Splittable):
    """Texts in one model's tokens, BOS first, with a name for each."""

    kind: ClassVar[type[Data]] = Text
    rows: list[list[int]]
    names: list[str]
    tokenizer: Any
    cut: tuple[str, ...] = ()
    """Of each text that lost its end, how many of its tokens are left."""

    def title(self) -> str:
        """Which texts were cut, to stand behind another title; "" where none was."""
        return "".join(f"; {note}" for note in self.cut)

    def cases(self) -> pd.DataFrame:
        return pd.DataFrame({"cluster": [name.partition(":")[2] for name in self.names]})

    def only(self, rows: Sequence[int]) -> "OpenText":
        return replace(self, rows=[self.rows[i] for i in rows], names=[self.names[i] for i in rows])

    def about(self) -> dict[str, Any]:
        return {"texts": len(self.rows), "tokens": sum(map(len, self.rows)), **({"cut": self.cut} if self.cut else {})}


def open_text(spec: Text, model: Any) -> OpenText:
    """The texts, cut at the model's context as well. `cut` says which of those that were given."""
    tokenizer, texts = check_tokenizer(model), spec.text or (story(1, 0).text,)
    token_rows, most = [tokenizer.encode(text) for text in texts], min(spec.max_tokens, model.cfg.n_ctx)
    names = [f"{i}:{hashlib.sha1(text.encode()).hexdigest()[:10]}" for i, text in enumerate(texts)]
    by = "--max-tokens" if spec.max_tokens <= model.cfg.n_ctx else "the context"
    lengths = [len(row) for row in token_rows] if spec.text else []
    cut = [f"text {i} cut at {most} of {n} tokens ({by})" for i, n in enumerate(lengths, 1) if n > most]
    return OpenText([row[:most] for row in token_rows], names, tokenizer, tuple(cut))


@dataclass(frozen=True)
class OpenSets(Splittable):
    """Two sets of texts in one model's tokens, BOS first."""

    kind: ClassVar[type[Data]] = Sets
    a: PromptSet
    b: PromptSet
    tokenizer: Any

    def cases(self) -> pd.DataFrame:
        """The texts of a, then those of b; a line (`prompts.sets`) is a cluster."""
        relation = ["a"] * len(self.a.texts) + ["b"] * len(self.b.texts)
        return pd.DataFrame({"cluster": [str(i) for i in np.concatenate(self.lines)], "relation": relation})

    @property
    def lines(self) -> tuple[np.ndarray, np.ndarray]:
        """The lines of both sets, as numbers in the order in which they come."""
        codes = pd.factorize(pd.Series([*self.a.lines, *self.b.lines], dtype=object))[0]
        return codes[: len(self.a.lines)], codes[len(self.a.lines) :]

    def only(self, rows: Sequence[int]) -> "OpenSets":
        n = len(self.a.texts)
        a, b = self.a.only([i for i in rows if i < n]), self.b.only([i - n for i in rows if i >= n])
        return replace(self, a=a, b=b)

    def title(self) -> str:
        a, b = self.a, self.b
        left_out = {"longer than the context": a.too_long + b.too_long, "repeated": a.repeated + b.repeated}
        notes = (f", {n} {reason} left out" for reason, n in left_out.items() if n)
        return f"{len(a.tokens)} {a.name} against {len(b.tokens)} {b.name}{''.join(notes)}"

    def about(self) -> dict[str, Any]:
        return {"sets": self.title()}


def open_sets(spec: Sets, model: Any) -> OpenSets:
    """Both sets in their template."""
    tokenizer, template = check_tokenizer(model), spec.template.replace("\\n", "\n")
    a, b = (encode(prompts, tokenizer, model.cfg.n_ctx, template) for prompts in contrast(spec.a, spec.b))
    return OpenSets(a, b, tokenizer)
