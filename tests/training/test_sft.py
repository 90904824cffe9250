"""Fine-tuning on pairs and chats: what is a target and what is not, by hand; adapters against a plain loop; resumed."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from streamscope.models import build, load
from streamscope.models.interop.export.write import export
from streamscope.models.runs import main as runs
from streamscope.models.sft import main
from streamscope.models.train import main as train
from streamscope.models.training import tuning
from streamscope.models.training.config import Training
from streamscope.models.training.data import evaluation_shards
from streamscope.models.training.lora import Lora, add_lora, merged
from streamscope.models.training.tuning import with_micro_batches
from streamscope.text.pairs import PairWindows, encode_pairs, hold_out, read_pairs
from streamscope.text.tokenizer import SpecialTokens, Tokenizer
from tests.tiny import PARTS, WORDS, assert_refused, corpus_text, randomise, some
from tests.training.runs import cut, same_weights, weights
from tests.training.runs import rows as logged

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
    size = windows(tiny_run, [("the", "cat")])[1].n_ctx
    fitting = [windows(tiny_run, [("the", "cat")] * 4, n, packing="stream")[1] for n in (2 * size - 1, 2 * size)]
    assert [len(w) for w in fitting] == [4, 2]


def test_truncated_and_dropped_pairs_are_counted(tiny_run: Path) -> None:
    tokenizer = load(tiny_run).tokenizer
    some = [("the", "cat"), ("the", "cat " * 50), ("the " * 50, "cat")]
    found = encode_pairs(some, tokenizer, 24)
    assert (len(found.rows), found.truncated, found.dropped) == (2, 1, 1)
    assert all(len(ids) <= 25 for ids, _ in found.rows)
    assert found.rows[1][0][-1] != tokenizer.bos_id, "a response that goes on does not end"
    assert_refused("no pair has a response", encode_pairs, some[2:], tokenizer, 24)


def test_hold_out_keeps_a_prompt_on_one_side() -> None:
    some = [(f"p{i % 30}", f"r{i}") for i in range(90)]
    train, valid = hold_out(some, 0.1)
    assert len(valid) == 9 and sorted(train + valid) == sorted(some)
    assert not {p for p, _ in train} & {p for p, _ in valid}
    assert {p for p, _ in hold_out(some[::-1], 0.1)[1]} == {p for p, _ in valid}
    assert_refused("--valid", hold_out, [("one", "a"), ("one", "b")], 0.5)


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
        assert_refused(f"bad.jsonl:2: ?{message}", read_pairs, path)
    path.write_text("{")
    assert_refused("bad.jsonl:1", read_pairs, path)
    path.write_text("\n")
    assert_refused("bad.jsonl: the file is empty", read_pairs, path)


def test_bad_arguments(tiny_run: Path, pairs: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "new")
    base = [str(tiny_run), "--data", str(pairs)]
    for argv, message in (
        (base, "--out"), ([*base[1:], "--out", out], "give a run"), ([*base, "--out", str(tiny_run)], "not empty"),
        ([*base, "--out", out, "--template", "{response}{prompt}"], "template"),
        ([*base, "--out", out, "--batch-size", "100"], "lower --batch-size"),
        ([*base, "--out", out, "--hc-lr", "9"], "--hc-lr has no effect"),
        ([*base, "--out", out, "--context", "9999"], "--context 9999 is more than the context"),
        ([*base, "--out", out, "--context", "3"], "no pair has a response within the context of 3"),
        ([*base, "--out", out, "--lora-on", "all"], "no effect without --lora RANK"),
        ([*base, "--out", out, "--lora", "4", "--lora-on", "q,w"],
         "--lora-on w: the model has no dense projection .*down, k, q, up"),
        ([*base, "--out", out, "--lora", "4000", "--lora-on", "q"], "--lora 4000 is more than the rank"),
        (["--resume", "--out", str(tiny_run)], "not a fine-tuning: resume it with python -m models.train --resume"),
        (["--resume", "--out", out, "--unmasked"], "leave out"),
    ):  # fmt: skip
        assert_refused(message, main, argv)
    assert not (tmp_path / "new").exists()


def test_command_and_resume(tiny_run: Path, pairs: Path, tmp_path: Path, capsys) -> None:
    copy = Path(shutil.copy(pairs, tmp_path / "pairs.jsonl"))
    common = ["--data", str(copy), "--steps", "8", "--batch-size", "4", "--checkpoint-every", "3", "--lr", "1e-3"]
    whole, out = tmp_path / "whole", tmp_path / "cut"
    main([str(tiny_run), *common, "--out", str(whole)])
    assert r"each pair is written as 'User: {prompt}\nAssistant: {response}'; --template" in capsys.readouterr().err
    cut(5, main, [str(tiny_run), *common, "--out", str(out)], killed=True)
    assert_refused("models.sft --resume", train, ["--resume", "--out", str(out)])
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
    assert_refused("pairs changed", main, ["--resume", "--out", str(out)])


def test_a_tuning_begins_at_step_0_of_its_own(tiny_run: Path, pairs: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "run_to_end", lambda trainer: None)
    main([str(tiny_run), "--data", str(pairs), "--steps", "8", "--batch-size", "4", "--out", str(tmp_path / "run")])
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["step"], manifest["steps"], manifest["parent"]["step"]) == (0, 8, 12)


def test_training_lowers_the_loss_of_the_responses(tiny_run: Path, pairs: Path, tmp_path: Path, capsys) -> None:
    argv = ["--data", str(pairs), "--valid", str(pairs), "--steps", "40", "--lr", "5e-3", "--packing", "stream"]
    main([str(tiny_run), *argv, "--batch-size", "4", "--out", str(tmp_path / "fit"), "--unmasked"])
    first, *_, last = logged(tmp_path / "fit", "train")
    assert last["loss"] < 0.7 * first["loss"]
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


CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def chat_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a chat template, an end of turn that is not BOS, and its makers' sampling."""
    folder = tmp_path_factory.mktemp("runs") / "chat"
    backend = Tokenizer.train([corpus_text(40, 0)], 300)._backend
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = Tokenizer.from_json(backend.to_str(), SpecialTokens(roles={"bos_token": "<|im_start|>"}))
    tokenizer.chat_template = CHAT
    model = randomise(build("llama", "tiny", tokenizer=tokenizer, d_vocab=304, n_ctx=64), std=0.05)
    end = tokenizer.encode("<|im_end|>", bos=False, special=True)
    model.eos_ids = tuple(end)
    model.save(folder)
    fields = {"eos_token_id": end, "do_sample": True, "temperature": 0.6, "top_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(fields))
    bos = "'<|im_start|>', which its own files do not add"
    (folder / "manifest.json").write_text(json.dumps({"bos": bos}))
    return folder


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "chats.jsonl"
    rows = [{"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": f"{b} ran."}]}
            for a, b in itertools.pairwise(WORDS[:17])]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_only_the_turns_of_the_assistant_and_their_ends_are_targets(chat_run: Path, tmp_path: Path) -> None:
    model = load(chat_run)
    tokenizer = model._text()
    chat = [("system", "red"), ("user", "the cat"), ("assistant", "sat."), ("user", "dog"), ("assistant", "a bird ran")]
    path = tmp_path / "rows.jsonl"
    messages = [{"role": role, "content": content} for role, content in chat]
    rows = ({"messages": messages, "prompt": 3}, {"prompt": "on", "response": "to"})
    path.write_text("\n".join(map(json.dumps, rows)))
    rows = encode_pairs(read_pairs(path), tokenizer, 128, None, model.eos_ids)
    inputs, targets = PairWindows(rows, 128, tokenizer.pad_id).batch([0, 1])
    ids = model.to_chat(messages, reply=False)[0].tolist()
    assert inputs.shape[1] == len(ids) - 1 and inputs[0].tolist() == ids[:-1]
    learned = targets[targets != -100].tolist()
    assert tokenizer.pieces(learned).count("<|im_end|>") == 3
    assert "".join(tokenizer.pieces(learned)) == "sat.<|im_end|>a bird ran<|im_end|>to<|im_end|>"
    reply = model.to_chat(messages[:2])[0]
    assert targets[0, : len(reply) - 1].eq(-100).all() and targets[0, len(reply) - 1] == ids[len(reply)]
    own = encode_pairs([("on", "to")], tokenizer, 128, "Q {prompt} A {response}", model.eos_ids).rows[0][0]
    assert own[-1] == model.eos_ids[0] != tokenizer.bos_id, "a pair ends at a token where generation stops"


def test_a_template_that_rewrites_earlier_turns_is_refused(chat_run: Path) -> None:
    tokenizer = load(chat_run)._text()
    tokenizer.chat_template = CHAT.replace("m['content']", "(m['content'] if loop.last else '…')")
    messages = [{"role": role, "content": "red"} for role in ("user", "assistant", "user", "assistant")]
    assert_refused("turn 2 differently", encode_pairs, [messages], tokenizer, 64, None)
    tokenizer.chat_template = None
    assert_refused("no chat template", encode_pairs, [messages], tokenizer, 64)


def test_batches_are_as_long_as_their_longest_row(tiny_run: Path) -> None:
    tokenizer = load(tiny_run)._text()
    rows = encode_pairs([("the", "cat"), ("the", "cat and dog and bird"), ("he", "ran")], tokenizer, 48)
    windows = PairWindows(rows, 48, tokenizer.pad_id)
    sizes = [len(ids) - 1 for ids, _ in rows.rows]
    assert [windows.batch([i])[0].shape[1] for i in range(3)] == sizes and windows.n_ctx == max(sizes)
    assert windows.batch([0, 2])[0].shape[1] == max(sizes[0], sizes[2])
    assert PairWindows(rows, 48, tokenizer.pad_id, fixed=True).batch([0])[0].shape[1] == 48


def test_lora_is_a_plain_loop(chat_run: Path, chats: Path, tmp_path: Path) -> None:
    """Five steps of torch's AdamW on W + (α / r) B A, written out, give the logged losses and the merged weights."""
    out = tmp_path / "lora"
    argv = ["--data", str(chats), "--valid", str(chats), "--lora", "3", "--lora-on", "q,v,down", "--lora-alpha", "12"]
    argv += ["--steps", "5", "--batch-size", "16", "--lr", "0.01", "--log-every", "1"]
    main([str(chat_run), *argv, "--out", str(out)])
    model = load(chat_run).train()
    rows = encode_pairs(read_pairs(chats), model._text(), 128, None, model.eos_ids)
    inputs, targets = PairWindows(rows, 128, model._text().pad_id).batch(range(16))
    base = {name: w.detach().clone() for name, w in model.named_parameters()}
    generator, adapters = torch.Generator().manual_seed(0), {}
    for name, w in base.items():
        if name.split(".")[-2] in ("q", "v", "down"):
            a = torch.randn(3, w.shape[1], generator=generator) / 3**0.5
            adapters[name] = a.requires_grad_(), torch.zeros(w.shape[0], 3, requires_grad=True)
    assert len(adapters) == 3 * model.config.n_layers
    both = [p for pair in adapters.values() for p in pair]
    optimizer = torch.optim.AdamW(both, lr=0.01, betas=(0.9, 0.999), weight_decay=0.01)
    losses = []
    for _ in range(5):
        weights = base | {name: base[name] + 12 / 3 * b @ a for name, (a, b) in adapters.items()}
        logits = torch.func.functional_call(model, weights, (inputs,))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(both, 1.0)
        optimizer.step()
    assert [row["loss"] for row in logged(out, "train")] == pytest.approx(losses, abs=1e-6)
    assert losses[-1] < losses[0] - 0.05
    for name, w in load(out).named_parameters():
        if name in adapters:
            a, b = adapters[name]
            assert (w - base[name]).abs().max() > 1e-3
            torch.testing.assert_close(w, base[name] + 12 / 3 * b @ a, rtol=0, atol=1e-5)
        else:
            assert torch.equal(w, base[name]), name
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["parameters"] == model.n_params()
    assert manifest["sft"]["lora"]["parameters"] == sum(p.numel() for p in both)


@pytest.mark.parametrize("name", some(PARTS))
def test_a_merged_model_computes_the_same(name: str) -> None:
    """In every architecture with dense projections; only the adapters have gradients."""
    model = randomise(build(name, "tiny", d_vocab=64), std=0.1)
    plain = build(name, "tiny", d_vocab=64)
    keys = set(model.state_dict())
    add_lora(model, 2, 16, ["all"], seed=1)
    for module in model.modules():
        if isinstance(module, Lora):
            torch.nn.init.normal_(module.b, std=0.1)
    tokens = torch.randint(0, 64, (2, 12))
    weights = merged(model.eval())
    assert weights.keys() == keys
    plain.load_state_dict(weights)
    torch.testing.assert_close(plain.eval()(tokens), model(tokens), rtol=1e-5, atol=1e-5)
    model.train().loss(tokens, tokens)[0].backward()
    for path, p in model.named_parameters():
        assert (p.grad is not None) == path.endswith((".0.a", ".0.b")), path


def test_lora_takes_the_dense_ones_of_queries_and_values(tmp_path: Path) -> None:
    """LFA's values are the token stream itself: only its queries get adapters, and nobody has to say so."""
    pairs = str(tmp_path / "pairs.jsonl")
    Path(pairs).write_text('{"prompt": "Tom saw", "response": "a dog."}\n' * 4)
    argv = ["stories/lfa", "--data", pairs, "--valid", pairs, "--steps", "1", "--batch-size", "2", "--lora", "2"]
    main([*argv, "--out", str(tmp_path / "lfa")])
    assert json.loads((tmp_path / "lfa" / "manifest.json").read_text())["sft"]["lora"]["names"] == ["q"]


def test_a_killed_lora_resumes_to_the_same_weights(chat_run: Path, chats: Path, tmp_path: Path) -> None:
    """After a checkpoint, and before the first."""
    common = ["--data", str(chats), "--steps", "8", "--batch-size", "4", "--checkpoint-every", "3", "--lr", "1e-2"]
    common += ["--lora", "2", "--eval-every", "2", "--snapshots", "8"]
    main([str(chat_run), *common, "--out", str(tmp_path / "whole")])
    for step in (2, 5):
        out = tmp_path / str(step)
        cut(step, main, [str(chat_run), *common, "--out", str(out)], killed=True)
        main(["--resume", "--out", str(out)])
        assert same_weights(tmp_path / "whole", out) and not same_weights(chat_run, out)
        assert weights(out).keys() == weights(chat_run).keys()
        load(f"{out}@8")


def test_template_and_context_survive_tuning_and_export(chat_run: Path, chats: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    out, folder = tmp_path / "tuned", tmp_path / "exported"
    argv = ["--data", str(chats), "--valid", str(chats), "--steps", "120", "--batch-size", "16", "--lr", "5e-3"]
    main([str(chat_run), *argv, "--context", "40", "--out", str(out)])
    start, model = load(chat_run), load(out)
    assert (out / "chat_template.jinja").read_text() == CHAT and model._text().chat_template == CHAT
    assert (out / "generation_config.json").read_text() == (chat_run / "generation_config.json").read_text()
    assert model.eos_ids == start.eos_ids
    assert model.sampling == start.sampling == {"temperature": 0.6, "top_k": 50, "top_p": 0.9}
    assert model.config.n_ctx == start.config.n_ctx and model.origin["bos"] == start.origin["bos"]
    model.save(tmp_path / "saved")
    assert load(tmp_path / "saved").sampling == model.sampling and load(tmp_path / "saved").eos_ids == model.eos_ids
    export(str(out), folder, native=True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.generation_config.top_p == 0.9 and theirs.config.max_position_embeddings == model.config.n_ctx
    for word in WORDS[:4]:
        chat = [{"role": "user", "content": word}]
        prompt = model.to_chat(chat)
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        assert torch.equal(text["input_ids"], prompt)
        (ours,) = model.generate(prompt, max_new_tokens=30, temperature=0)
        new = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=30, do_sample=False)
        assert new[0].tolist() == [*ours, *model.eos_ids], "both stop at the end of the turn"
        assert len(prompt[0]) < len(ours) < len(prompt[0]) + 30


def test_a_context_cuts_what_is_longer(chat_run: Path, chats: Path, tmp_path: Path, capsys) -> None:
    argv = [str(chat_run), "--data", str(chats), "--steps", "1", "--batch-size", "2", "--out", str(tmp_path / "new")]
    longest = max(len(ids) for ids, _ in encode_pairs(read_pairs(chats), load(chat_run)._text(), 999, None).rows)
    main([*argv, "--context", str(longest - 3)])
    assert f"cut at {longest - 3} tokens" in (err := capsys.readouterr().err) and "(0 cut" not in err.split("\n")[1]
