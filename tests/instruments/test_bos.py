"""`--bos`: whether texts begin with BOS, in every kind of data, and in what a result says of itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tokenizers
import torch
from tokenizers import processors

from streamscope.cli.errors import InputError
from streamscope.instruments.data import Documents, Labels, Prompts, Sets, Tasks, Text, Tokens
from streamscope.instruments.open_data import open_data
from streamscope.instruments.result import Result
from streamscope.interventions.ablate import main as ablate
from streamscope.interventions.patch import Patch
from streamscope.models import load
from streamscope.probes.heads import Heads
from streamscope.probes.logit_lens import main as logit_lens
from streamscope.probes.picture import Picture
from streamscope.probes.routing import main as routing
from streamscope.text.tokenizer import Tokenizer

TEXT = "Lily had a ball. She ran to the old house and"


@pytest.fixture(scope="module")
def plain() -> Any:
    model = load("stories/lfa")
    model.tokenizer = model.tokenizer.with_bos("no")
    return model


def losses(model: Any, ids: list[int]) -> np.ndarray:
    """−ln p of every next token, by hand."""
    with torch.no_grad():
        log_p = model(torch.tensor([ids[:-1]]))[0].double().log_softmax(-1)
    return -log_p[torch.arange(len(ids) - 1), ids[1:]].numpy()


def test_a_tokenizer_without_bos(plain: Any) -> None:
    usual, bare = load("stories/lfa").tokenizer, plain.tokenizer
    ids, spans = usual.spans(TEXT)
    assert bare.spans(TEXT) == (ids[1:], spans[1:]) and ids[0] == usual.bos_id
    assert bare.encode(TEXT) == usual.encode(TEXT, bos=False) == ids[1:]
    assert bare.encode("<|endoftext|>a", special=True)[0] == usual.bos_id, "BOS that is written stays"
    assert bare.sha256 != usual.sha256 and bare.bos_id == usual.bos_id
    assert usual.adds_bos and not bare.adds_bos
    assert bare.pieces(ids) == usual.pieces(ids) and "".join(bare.pieces(ids[1:])) == TEXT
    assert usual.with_bos("yes") is usual and usual.with_bos("model") is usual, "its own file adds it"
    backend = tokenizers.Tokenizer.from_str(usual.to_json())
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    theirs = Tokenizer(backend)
    assert not theirs.with_bos("model").adds_bos and theirs.with_bos("yes").adds_bos


KINDS = (Documents("stories:3:6", stride=0), Tokens("stories:3:6", stride=0), Prompts("competing"), Sets(),
         Tasks(("gender-16",)), Text((TEXT,)), Labels(stories=20))  # fmt: skip


@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: type(spec).__name__)
def test_no_kind_of_data_has_bos(plain: Any, spec: Any) -> None:
    bos = plain.tokenizer.bos_id

    def rows(model: Any) -> list[list[int]]:
        opened = open_data(spec, model)
        found = {"Documents": lambda: opened.rows(), "Tokens": lambda: (one.ids for one in opened.documents()),
                 "Prompts": lambda: opened.aligned.tokens, "Tasks": lambda: opened.tasks[0].reads.tokens,
                 "Text": lambda: opened.rows, "Sets": lambda: [*opened.a.tokens, *opened.b.tokens],
                 "Labels": lambda: opened.tokenizer.encode_batch([one.text for one in opened.examples])}  # fmt: skip
        return [list(map(int, row)) for row in found[type(spec).__name__]()]

    with_bos, without = rows(load("stories/lfa")), rows(plain)
    assert {row[0] for row in with_bos} == {bos} and not [row for row in without if bos in row]
    assert [row[1:20] for row in with_bos] == [row[:19] for row in without]


def test_commands_measure_without_bos_and_say_so(plain: Any, tmp_path: Path, capsys: Any) -> None:
    model, ids = load("stories/lfa"), plain.tokenizer.encode(TEXT)
    for bos, row in (("no", ids), ("yes", [plain.tokenizer.bos_id, *ids]), ("model", [plain.tokenizer.bos_id, *ids])):
        logit_lens(["--text", TEXT, "--bos", bos, "--out", str(out := tmp_path / f"{bos}.parquet")])
        loss = pd.read_parquet(out)["loss"].iloc[-1]
        assert loss == pytest.approx(losses(model, row).mean(), abs=1e-5)
        about = Result.load(out).about
        assert about["bos"] == ("none" if bos == "no" else plain.tokenizer.with_bos("yes").bos_policy)
        assert ("without BOS" in capsys.readouterr().out) == (bos == "no")
    (lens,) = (Result.load(tmp_path / "no.parquet").tables["lens"].frame,)
    assert "BOS" not in set(lens["read"]) and "Lily" in "".join(lens["read"])
    words = ["--heads", "L0.H1", "--draws", "1", "--data", "stories:3:5", "--stride", "0", "--bos", "no"]
    ablate([*words, "--out", str(tmp_path / "a.parquet")])
    unedited, documents = Result.load(tmp_path / "a.parquet").blocks["loss"], Documents("stories:3:5", stride=0)
    by_hand = np.concatenate([losses(plain, row) for row in open_data(documents, plain).rows()])
    assert unedited.sizes[0].sum() == len(by_hand)
    assert unedited.total[0].sum() / len(by_hand) == pytest.approx(by_hand.mean(), abs=1e-5)
    with pytest.raises(InputError, match="routing reads no text, so --bos has no effect: leave it out"):
        routing(["stories/dst-kron", "--bos", "no"])


def test_scores_by_position_without_bos(plain: Any) -> None:
    how = Heads(sequences=3, length=7, texts=False)
    frame = how.measure(plain, progress=iter).table().frame.set_index(["score", "head"])["mean"]
    rng = np.random.default_rng(how.seed)
    others = np.delete(np.arange(plain.tokenizer.d_vocab), plain.tokenizer.bos_id)
    found: dict[str, list[float]] = {"previous": [], "induction": [], "duplicate": []}
    for _ in range(3):
        r = rng.choice(others, 7, replace=False).tolist()
        _, cache = plain.run_with_cache(torch.tensor([[*r, *r]]))
        a = cache["blocks.3.attn.hook_pattern"][0, 1].double()
        found["previous"].append(float(np.mean([a[i, i - 1] for i in range(1, 14)])))
        found["duplicate"].append(float(np.mean([a[i, i - 7] for i in range(7, 14)])))
        found["induction"].append(float(np.mean([a[i, i - 6] for i in range(7, 14)])))
    for score, values in found.items():
        (name,) = [head for kind, head in frame.index if kind == score and head == "L3.H1"]
        assert frame[score, name] == pytest.approx(np.mean(values), abs=1e-6)


def test_first_tokens_are_not_called_bos(plain: Any) -> None:
    frame = Picture().measure(plain, Text((TEXT,))).table().frame
    assert "BOS" not in set(frame["label"]) and "Lily" in "".join(frame["label"])
    own = Patch(clean=TEXT, corrupt=TEXT.replace("old", "new"), answer=" the", foil=" a", by="token", layers=("1",))
    for how, data in ((Patch(pairs=2, layers=("1",)), [Prompts("ioi", n=20)]), (own, [])):
        names = set(how.measure(plain, *data).table().frame["position"].astype(str))
        assert not [name for name in names if "BOS" in name]
