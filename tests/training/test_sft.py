"""Fine-tuning: what is a target and what is not, counted and by hand; a killed run resumes to the same weights."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from streamscope.cli.errors import InputError
from streamscope.models.checkpoint import load
from streamscope.models.runs import main as runs
from streamscope.models.sft import main
from streamscope.models.train import main as train
from streamscope.models.training import tuning
from streamscope.models.training.config import Training
from streamscope.models.training.data import evaluation_shards
from streamscope.models.training.tuning import with_micro_batches
from streamscope.text.pairs import PairWindows, encode_pairs, hold_out, read_pairs
from tests.tiny import WORDS
from tests.training.runs import cut, same_weights

TEMPLATE = "User: {prompt}\nAssistant: {response}"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [{"prompt": f"{WORDS[i % 24]} {WORDS[i % 7]}", "response": f"{WORDS[(i + 1) % 24]} {WORDS[i % 5]}."}
            for i in range(60)]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def windows(run: Path, some: list, n_ctx: int = 32, **options) -> tuple:
    model = load(run)
    rows = encode_pairs(some, model.tokenizer, n_ctx)
    return model, PairWindows(rows, n_ctx, model.tokenizer.pad_id, **options)


def test_targets_are_the_response_and_the_bos_that_ends_it(tiny_run: Path) -> None:
    model, w = windows(tiny_run, [("the cat", "a red dog"), ("he", "ran")])
    tokenizer = model.tokenizer
    inputs, targets = w.batch([0, 1])
    for row, (prompt, response) in enumerate((("the cat", "a red dog"), ("he", "ran"))):
        ids = tokenizer.encode(TEMPLATE.format(prompt=prompt, response=response))
        assert inputs[row, : len(ids)].tolist() == ids
        assert (inputs[row, len(ids) :] == tokenizer.pad_id).all()
        real = targets[row] != -100
        assert real.nonzero()[-1] == len(ids) - 1 and targets[row, len(ids) - 1] == tokenizer.bos_id
        assert tokenizer.decode(targets[row][real].tolist()).strip() == response
        assert real.nonzero()[:, 0].diff().eq(1).all()
    unmasked = windows(tiny_run, [("the cat", "a red dog")], masked=False)[1]
    inputs, targets = unmasked.batch([0])
    n = int((targets != -100).sum())
    assert torch.equal(targets[0, : n - 1], inputs[0, 1:n]) and targets[0, n - 1] == tokenizer.bos_id
    assert unmasked.n_targets == n


def test_packing_keeps_pairs_whole_and_their_targets(tiny_run: Path) -> None:
    some = [(f"the {word}", f"{word} ran") for word in WORDS]
    model, alone = windows(tiny_run, some, 48)
    packed = windows(tiny_run, some, 48, packing="stream")[1]
    assert len(packed) < len(alone) == len(some)
    assert packed.n_targets == alone.n_targets

    def seen(w: PairWindows) -> list[tuple[int, int]]:
        inputs, targets = w.batch(range(len(w)))
        real = targets != -100
        return list(zip(inputs[real].tolist(), targets[real].tolist(), strict=True))

    assert seen(packed) == seen(alone)
    inputs, targets = packed.batch([0])
    ends = (targets[0] == model.tokenizer.bos_id).nonzero()[:, 0]
    assert len(ends) > 1 and (inputs[0, ends[:-1] + 1] == model.tokenizer.bos_id).all()


def test_pairs_that_fit_exactly_are_packed(tiny_run: Path) -> None:
    tokenizer = load(tiny_run).tokenizer
    found = encode_pairs([("the", "cat")] * 4, tokenizer, 24)
    inputs = len(found.rows[0][0]) - 1
    packed = [PairWindows(found, n, tokenizer.pad_id, packing="stream") for n in (2 * inputs - 1, 2 * inputs)]
    assert [len(one) for one in packed] == [4, 2]


def test_truncated_and_dropped_pairs_are_counted(tiny_run: Path) -> None:
    tokenizer = load(tiny_run).tokenizer
    some = [("the", "cat"), ("the", "cat " * 50), ("the " * 50, "cat")]
    found = encode_pairs(some, tokenizer, 24)
    assert (len(found.rows), found.truncated, found.dropped) == (2, 1, 1)
    assert [len(ids) <= 25 for ids, _ in found.rows] == [True, True]
    assert found.rows[1][0][-1] != tokenizer.bos_id, "a response that goes on does not end"
    with pytest.raises(InputError, match="no pair has a response"):
        encode_pairs(some[2:], tokenizer, 24)


def test_hold_out_keeps_a_prompt_on_one_side() -> None:
    some = [(f"p{i % 30}", f"r{i}") for i in range(90)]
    train, valid = hold_out(some, 0.1)
    assert len(valid) == 9 and sorted(train + valid) == sorted(some)
    assert not {p for p, _ in train} & {p for p, _ in valid}
    assert {p for p, _ in hold_out(some[::-1], 0.1)[1]} == {p for p, _ in valid}
    with pytest.raises(InputError, match="--valid"):
        hold_out([("one", "a"), ("one", "b")], 0.5)


def test_bad_rows_are_named(tmp_path: Path) -> None:
    user, silent = {"role": "user", "content": "a"}, {"role": "assistant", "content": " "}
    path = tmp_path / "bad.jsonl"
    for row, message in (
        ([1], "expected"), ({"prompt": "a"}, "'response' is missing"),
        ({"prompt": "a", "response": " "}, "'response' is empty or not a text"),
        ({"prompt": 3, "response": "b"}, "'prompt' is empty or not a text"),
        ({"prompt": "a", "response": "\ud800"}, ".*lone surrogate"),
        ({"messages": "hello"}, "messages must be a list"), ({"messages": [{"role": "user"}]}, "messages must be"),
        ({"messages": [user]}, ".*need a turn of the assistant"), ({"messages": [user, silent]}, ".*neither"),
    ):  # fmt: skip
        path.write_text(f'{{"prompt": "a", "response": "b"}}\n{json.dumps(row)}\n')
        with pytest.raises(InputError, match=f"bad.jsonl:2: ?{message}"):
            read_pairs(path)
    path.write_text("{")
    with pytest.raises(InputError, match="bad.jsonl:1"):
        read_pairs(path)
    path.write_text("\n")
    with pytest.raises(InputError, match="bad.jsonl: the file is empty"):
        read_pairs(path)


def test_bad_arguments(tiny_run: Path, pairs: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "new")
    base = [str(tiny_run), "--data", str(pairs)]
    for argv, message in (
        (base, "--out"), ([*base[1:], "--out", out], "give a run"), ([*base, "--out", str(tiny_run)], "not empty"),
        ([*base, "--out", out, "--template", "{response}{prompt}"], "template"),
        ([*base, "--out", out, "--batch-size", "100"], "lower --batch-size"),
        ([*base, "--out", out, "--hc-lr", "9"], "--hc-lr has no effect"),
        (["--resume", "--out", str(tiny_run)], "not a fine-tuning: resume it with python -m models.train --resume"),
        (["--resume", "--out", out, "--unmasked"], "leave out"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            main(argv)
    assert not (tmp_path / "new").exists()


def test_command_and_resume(tiny_run: Path, pairs: Path, tmp_path: Path, capsys) -> None:
    copy = Path(shutil.copy(pairs, tmp_path / "pairs.jsonl"))
    common = ["--data", str(copy), "--steps", "8", "--batch-size", "4", "--checkpoint-every", "3", "--lr", "1e-3"]
    whole, out = tmp_path / "whole", tmp_path / "cut"
    main([str(tiny_run), *common, "--out", str(whole)])
    assert r"each pair is written as 'User: {prompt}\nAssistant: {response}'; --template" in capsys.readouterr().err
    cut(5, main, [str(tiny_run), *common, "--out", str(out)], killed=True)
    with pytest.raises(InputError, match="models.sft --resume"):
        train(["--resume", "--out", str(out)])
    main(["--resume", "--out", str(out)])
    assert same_weights(whole, out) and not same_weights(whole, tiny_run)
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["parent"]["run"] == str(tiny_run) and len(manifest["parent"]["sha256"]) == 64
    assert manifest["sft"]["data"]["pairs"] + manifest["sft"]["valid"]["pairs"] == 60 and manifest["step"] == 8
    evaluation_shards(whole, load(whole).tokenizer, None)  # the corpus of the parent is known
    capsys.readouterr()
    runs(["show", str(whole)])
    assert f"made from     {tiny_run}" in capsys.readouterr().out
    copy.write_text(pairs.read_text().replace("cat", "cow"))
    with pytest.raises(InputError, match="pairs changed"):
        main(["--resume", "--out", str(out)])


def test_a_tuning_that_has_begun_is_not_at_the_step_of_its_parent(
    tiny_run: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "run_to_end", lambda trainer: None)
    main([str(tiny_run), "--data", str(pairs), "--steps", "8", "--batch-size", "4", "--out", str(tmp_path / "run")])
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["step"], manifest["steps"], manifest["parent"]["step"]) == (0, 8, 12)


def test_training_lowers_the_loss_of_the_responses(tiny_run: Path, pairs: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "fit"
    argv = ["--data", str(pairs), "--valid", str(pairs), "--steps", "40", "--lr", "5e-3", "--packing", "stream"]
    main([str(tiny_run), *argv, "--batch-size", "4", "--out", str(out), "--unmasked"])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    assert losses[-1] < 0.7 * losses[0]
    assert "60 of 60 validation pairs have a prompt of the training pairs" in capsys.readouterr().err


def test_batches_of_a_large_model_are_split(tiny_run: Path, pairs: Path, tmp_path: Path, monkeypatch) -> None:
    """SmolLM2: 16 rows of 162 tokens are two micro-batches. The weights after training agree to rounding."""
    training = Training(batch_size=16, epochs=1.0)
    for row, parts in ((162 * 30 * 576, 2), (128 * 6 * 192, 1), (10**12, 16)):
        assert with_micro_batches(training, row).accumulate == parts
    assert with_micro_batches(replace(training, accumulate=4), 1).accumulate == 4
    for name in ("whole", "split"):
        main([str(tiny_run), "--data", str(pairs), "--batch-size", "4", "--steps", "6", "--lr", "1e-3", "--out",
              str(tmp_path / name)])  # fmt: skip
        monkeypatch.setattr(tuning, "AT_ONCE", 1)
    whole, split = (load(tmp_path / name).state_dict() for name in ("whole", "split"))
    before = load(tiny_run).state_dict()
    assert all(torch.allclose(x, split[key], rtol=1e-3, atol=1e-5) for key, x in whole.items())
    assert not torch.allclose(before["embed.weight"], whole["embed.weight"], atol=1e-4)
    told = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("whole", "split")]
    assert [config["training"]["accumulate"] for config in told] == [1, 4]
