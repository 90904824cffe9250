"""LoRA and chats: adapters against a plain loop, what is learned of a chat, what survives tuning and export."""

import itertools
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from streamscope.cli.errors import InputError
from streamscope.models import build, load
from streamscope.models.interop.export.write import export
from streamscope.models.sft import main
from streamscope.models.training.lora import Lora, add_lora, merged
from streamscope.text.pairs import PairWindows, encode_pairs, read_pairs
from streamscope.text.tokenizer import SpecialTokens, Tokenizer
from tests.tiny import PARTS, WORDS, corpus_text, randomise, some
from tests.training.runs import cut, same_weights, weights

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
    with pytest.raises(InputError, match="turn 2 differently"):
        encode_pairs([messages], tokenizer, 64, None)
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="no chat template"):
        encode_pairs([messages], tokenizer, 64)


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
    logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in logged if row["kind"] == "train"] == pytest.approx(losses, abs=1e-6)
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


def test_context_and_lora_options(chat_run: Path, chats: Path, tmp_path: Path, capsys) -> None:
    argv = [str(chat_run), "--data", str(chats), "--steps", "1", "--batch-size", "2", "--out", str(tmp_path / "new")]
    for more, message in (
        (["--context", "9999"], "--context 9999 is more than the context"),
        (["--context", "3"], "no pair has a response within the context of 3"),
        (["--lora-on", "all"], "no effect without --lora RANK"),
        (["--lora", "4", "--lora-on", "q,w"], "--lora-on w: the model has no dense projection .*down, gate, k, o, q"),
        (["--lora", "4000"], "--lora 4000 is more than the rank"),
    ):
        with pytest.raises(InputError, match=message):
            main([*argv, *more])
    assert not (tmp_path / "new").exists()
    longest = max(len(ids) for ids, _ in encode_pairs(read_pairs(chats), load(chat_run)._text(), 999, None).rows)
    capsys.readouterr()
    main([*argv, "--context", str(longest - 3)])
    assert f"cut at {longest - 3} tokens" in (err := capsys.readouterr().err) and "(0 cut" not in err.split("\n")[1]
