"""Tokens in their texts, reconstructed from a feature table: rows of one document at consecutive positions are
consecutive tokens, and the text breaks off at missing rows."""

from typing import NamedTuple

import numpy as np

from streamscope.features.store import Features
from streamscope.text import is_bos

BREAK = "…"


class Context(NamedTuple):
    """A token and the text around it."""

    left: str
    token: str
    right: str

    def marked(self) -> str:
        """One line: the token in brackets ⟦ ⟧ with its leading space outside, line breaks as ⏎."""
        word = self.token.lstrip(" ") or self.token
        return visible(f"{self.left}{self.token.removesuffix(word)}⟦{word}⟧{self.right}")


def visible(text: str) -> str:
    """`text` on one line, line breaks as ⏎."""
    return text.replace("\r", "").replace("\n", "⏎").replace("\t", "⇥")


class Contexts:
    """The texts around the rows of a feature table.

    With `logits_row` next (`features.extract`) the target is the token after the next, so the next is known only from
    the next row.
    """

    def __init__(self, features: Features) -> None:
        table, logits_row = features.table, features.about["options"]["logits_row"]
        document, position = table["document"].to_numpy(), table["position"].to_numpy()
        self.order = np.lexsort((position, document))  # rows by document and position
        self.place = np.argsort(self.order)  # the place of each row in `order`
        d, p = document[self.order], position[self.order]
        joined = np.append(False, (np.diff(d) == 0) & (np.diff(p) == 1))
        self.run = np.cumsum(~joined)  # per place, its stretch of consecutive tokens
        self.tokens = table["token"].to_numpy()[self.order]
        self.following = table["target"].to_numpy()[self.order]  # per place, the next token; "" if unknown
        if logits_row == "next":
            self.following = np.where(np.append(joined[1:], False), np.append(self.tokens[1:], ""), "")
        self.begins = p == 0  # per place, whether it starts its document, and whether it is BOS
        self.bos = np.array([is_bos(str(token), int(i)) for token, i in zip(self.tokens, p, strict=True)], bool)

    def neighbours(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens before and after each row; "" for unknown or special ones."""
        same_run = np.append(False, self.run[1:] == self.run[:-1])
        left_tokens = np.where(same_run, np.append("", self.tokens[:-1]), "")
        left_tokens[np.append(False, self.bos[:-1]) & same_run] = ""
        return left_tokens[self.place], self.following[self.place]

    def at(self, row: int, before: int = 12, after: int = 6) -> Context:
        """Up to `before` tokens before a row and `after` after it, with … if the text continues."""
        i = int(self.place[row])
        run = self.run[i]
        start, stop = np.searchsorted(self.run, run), np.searchsorted(self.run, run, side="right")
        low, high = max(int(start), i - before), min(int(stop), i + after + 1)
        left_tokens = [token for j, token in enumerate(self.tokens[low:i], low) if not self.bos[j]]
        right_tokens = [*self.tokens[i + 1 : high]]
        if high == stop and len(right_tokens) < after:
            right_tokens.append(self.following[high - 1])
        start_text = "" if self.begins[start] and low <= start + self.bos[start] else BREAK
        return Context(start_text + "".join(left_tokens), str(self.tokens[i]), "".join(right_tokens) + BREAK)
