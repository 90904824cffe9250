"""Dictionaries: planted features are found, files are SAELens', killed commands go on, what is refused."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from streamscope import Documents, Tokens, load
from streamscope.features import Dictionaries
from streamscope.features.dictionaries import measure as training
from streamscope.features.dictionaries.measure import harvest, kth_largest, places, scored, train
from streamscope.instruments.open_data import open_data
from streamscope.interventions import Steer
from streamscope.models.dictionaries import Dictionary, read_dictionary, write_dictionary
from streamscope.models.hooks import capture
from streamscope.models.tensors import read_tensors
from streamscope.probes.directions.choice import read_direction
from tests.tiny import model_of, refused, some

DATA = Tokens("stories:1:40", max_tokens=1500)
SMALL: dict[str, Any] = {"width": 48, "k": 4, "batch": 128}
SAE_LENS = Path(__file__).with_name("sae_lens.json")


def planted(n: int, features: int, d: int, active: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Unit directions [F, D], and states of a few of them each; rates fall by a power law."""
    rng = np.random.default_rng(4242)
    V = rng.standard_normal((features, d)).astype(np.float32)
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    rate = 1 / np.sqrt(np.arange(1, features + 1))
    x = np.empty((n, d), np.float32)
    for rows in np.array_split(np.arange(n), 40):
        on = rng.random((len(rows), features)) < rate * active / rate.sum()
        x[rows] = (on * (0.5 + rng.random(on.shape))) @ V + 0.02 * rng.standard_normal((len(rows), d)) + 0.3
    return V, x


def similarity(V: np.ndarray, found: Dictionary) -> np.ndarray:
    """Of each planted direction the largest cosine with a row of the decoder."""
    return np.asarray((V @ torch.nn.functional.normalize(found.W_dec, dim=1).numpy().T).max(1))


def trained(
    x: np.ndarray, seed: int = 0, *, target: np.ndarray | None = None, frozen: bool = False, **options: Any
) -> Dictionary:
    how = Dictionaries(**{"width": 64, "k": 4, "batch": 256, "lr": 3e-3, **options})
    return train(how, x, seed, target=target, frozen=frozen, advance=lambda n: None)


def unexplained(found: Dictionary, x: np.ndarray, y: np.ndarray | None = None) -> float:
    """Σ|y − ŷ|² / Σ|y − mean|², of x itself without y."""
    rows, wanted = torch.from_numpy(x), torch.from_numpy(x if y is None else y)
    error = (wanted - found.decode(found.encode(rows), rows)).square().sum()
    return float(error / (wanted - wanted.mean(0)).square().sum())


def test_rows_of_the_decoder_are_not_pulled_along_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    along = []

    class Adam(torch.optim.Adam):
        def step(self, closure: Any = None) -> None:
            decoder = next(p for p in self.param_groups[0]["params"] if p.shape == (64, 12))
            along.append(float((decoder.grad * decoder.detach()).sum(1).abs().max() / decoder.grad.norm(dim=1).max()))
            super().step(closure)

    monkeypatch.setattr(torch.optim, "Adam", Adam)
    trained(planted(2000, 20, 12)[1])
    assert len(along) == 7 and max(along) < 1e-4


@pytest.mark.parametrize("seed", some((0, 1, 2), fast=(0,)))
def test_planted_features_are_found(seed: int) -> None:
    """And neither by a decoder that stays random nor by one that is not trained."""
    V, x = planted(320_000, 96, 112)
    how: dict[str, Any] = {"width": 160, "k": 3, "batch": 256}
    found, frozen = trained(x, seed, **how), trained(x[:60_000], seed, frozen=True, **how)
    cosines = similarity(V, found)
    assert cosines.mean() >= 0.95 and (cosines > 0.9).mean() >= 0.9
    lengths = found.W_dec.norm(dim=1)
    torch.testing.assert_close(lengths, lengths[:1].expand_as(lengths), atol=1e-5, rtol=0)
    assert 2.5 < (found.encode(torch.from_numpy(x[:4000])) > 0).sum(1).float().mean() < 3.5
    start = trained(x[:600], seed, **how, lr=0.0)
    assert similarity(V, frozen).mean() <= 0.3 and similarity(V, start).mean() <= 0.3
    assert torch.cosine_similarity(start.W_dec, frozen.W_dec).max() < 0.9, "it starts elsewhere"
    assert unexplained(found, x[:4000]) < 0.15 < unexplained(frozen, x[:4000])


def test_a_transcoder_rebuilds_a_function_of_other_states() -> None:
    _, x = planted(60_000, 40, 24)
    y = (2 * np.roll(x, 3, axis=1) - 1).astype(np.float32)
    found = trained(x, target=y)
    assert found.W_skip is not None
    assert unexplained(found, x[:2000], y[:2000]) < 0.1, "a linear map is what the skip connection is for"


def test_positions_come_in_random_order() -> None:
    """Text whose first half is of other features than its second: both are rebuilt as well."""
    _, x = planted(30_000, 40, 24)
    x = np.concatenate([x, 0.6 - np.roll(x[:, ::-1], 5, axis=1)]).astype(np.float32)
    found = trained(x)
    assert unexplained(found, x[:4000]) < 1.15 * unexplained(found, x[-4000:]), "in order it is 1.4"


def test_the_kth_largest_is_exact_from_any_guess() -> None:
    pre = torch.relu(torch.randn(40, 30, generator=torch.Generator().manual_seed(1)))
    wanted = pre.flatten().sort(descending=True).values
    for k in (1, 50, 500):
        assert {float(kth_largest(pre, k, guess)) for guess in (0.0, 0.5, 9.0)} == {float(wanted[k - 1])}


def test_nested_latents_rebuild_too() -> None:
    _, x = planted(60_000, 40, 24)
    rows, rest = torch.from_numpy(x[:2000]), []
    for matryoshka in (False, True):
        found = trained(x, matryoshka=matryoshka)
        z = found.encode(rows)
        z[:, 8:] = 0
        rest.append(float((rows - found.decode(z, rows)).square().sum()))
    assert rest[1] < 0.95 * rest[0]


@pytest.mark.parametrize("name", ["std-t", "lfa", "kromcanon"])
def test_states_are_those_of_every_position_but_bos(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    opened, read = open_data(DATA, model), places(Dictionaries(), model)
    states = harvest(model, opened, read, tmp_path / "s", lambda n: None)
    for place in read:
        at = 0
        for document in opened.documents():
            with torch.no_grad(), capture(model, [place.hook]) as seen:
                model(torch.tensor([document.ids[:-1]]))
            wanted = place.of(seen[place.hook])[0][[p - document.offset for p in document.positions if p > 0]]
            np.testing.assert_allclose(states[place][at : at + len(wanted)], wanted, atol=1e-4)
            at += len(wanted)
        assert at == len(states[place])


def test_a_killed_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States that are there are not harvested again, dictionaries not trained again; the result is the same."""
    model, how = model_of(), Dictionaries(to=tmp_path / "found", seeds=(0, 1), **SMALL)
    whole = Dictionaries(seeds=(0, 1), **SMALL).measure(model, DATA).table().frame
    passes, trained = list[int](), list[int]()

    def killed(name: str, seen: list[int], at: int, what: Any) -> None:
        """The function `name` notes what it is called for and is interrupted in its call number `at`."""
        real = getattr(training, name)

        def call(*given: Any, **named: Any) -> Any:
            seen.append(what(given))
            if len(seen) == at:
                raise KeyboardInterrupt
            return real(*given, **named)

        monkeypatch.setattr(training, name, call)

    killed("batch_states", passes, 2, lambda given: len(given[1]))
    killed("train", trained, 3, lambda given: given[2])
    monkeypatch.setattr(training, "TEXTS", 4)
    monkeypatch.setattr(training, "SAVED", 1)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            how.measure(model, DATA)
    documents = len(list(open_data(DATA, model).documents()))
    assert sum(passes) - passes[1] == documents, "each document once, but for the pass that was killed"
    frame = how.measure(model, DATA).table().frame
    assert trained == [0, 0, 1, 1, 1], "the third is begun again"
    np.testing.assert_allclose(frame["fvu"], whole["fvu"], rtol=1e-5)
    assert sorted(one.name for one in (tmp_path / "found").iterdir()) == [
        f"blocks.1.hook_context_post-s{seed}{frozen}" for seed in (0, 1) for frozen in ("", "-frozen")
    ]
    (tmp_path / "found" / ".states").mkdir()
    (tmp_path / "found" / ".states" / "done.json").write_text(json.dumps({"documents": 1, "n": 3}))
    with refused("states of another command"):
        how.measure(model, DATA)


def test_a_dictionary_of_another_target_is_trained_beside_the_first(tmp_path: Path) -> None:
    model, found, hook = model_of("std-t"), tmp_path / "found", "blocks.1.hook_mlp_in"
    for layer in (0, 1):
        how = Dictionaries(to=found, hooks=(hook,), target=f"blocks.{layer}.hook_mlp_out", controls=False, **SMALL)
        how.measure(model, DATA)
    names = {f"blocks.{layer}.hook_mlp_out": f"{hook}-to-blocks.{layer}.hook_mlp_out-s0" for layer in (0, 1)}
    assert {read_dictionary(str(found / name)).target: name for name in names.values()} == names
    assert sorted(path.name for path in found.iterdir()) == sorted(names.values())


def test_a_dictionary_of_other_options_or_text_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """The other text has as many documents and tokens as before: only its fingerprint differs."""
    model, path, opened = model_of(), tmp_path / "text.jsonl", []
    for names in (("Tom", "Mia"), ("Mia", "Tom")):
        text = "Now {} and {}".format(*names)
        path.write_text("\n".join(json.dumps({"text": " ".join([text] * n)}) for n in range(2, 8)))
        opened.append(open_data(Tokens(str(path)), model))
    assert opened[0].title() == opened[1].title()
    small: dict[str, Any] = {"to": tmp_path / "found", "controls": False, "width": 48, "k": 4, "batch": 32}
    how = Dictionaries(**small)
    states = places(how, model), tmp_path / "states", lambda n: None
    harvest(model, opened[0], *states)
    with refused("states of another command"):
        harvest(model, opened[1], *states)
    how.measure(model, Tokens(str(path)))
    how.measure(model, Tokens(str(path)))
    for options in ({"k": 3}, {"width": 64}, {"matryoshka": True}, {"lr": 0.1}):
        with refused("was trained with other options or text"):
            Dictionaries(**{**small, **options}).measure(model, Tokens(str(path)))
    path.write_text(path.read_text().replace("Mia and Tom", "Tom and Mia"))
    with refused("other options or text"):
        how.measure(model, Tokens(str(path)))


def test_windows_of_a_document_are_on_one_side(tmp_path: Path) -> None:
    """Of four long documents two are held out as wholes, and two independent documents are counted."""
    model, path = model_of(), tmp_path / "long.jsonl"
    texts = [" ".join([f"{name} saw a box and ran home."] * 30) for name in ("Tom", "Mia", "Tim", "Sam")]
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    opened, how = open_data(Tokens(str(path)), model), Dictionaries(to=tmp_path / "found", controls=False, **SMALL)
    windows = [document.document for document in opened.documents()]
    assert len(windows) > 8
    frame = how.measure(model, Tokens(str(path))).table().frame
    assert frame["n"].tolist() == frame["clusters"].tolist() == [2]
    about = read_dictionary(str(tmp_path / "found" / "blocks.1.hook_context_post-s0")).about
    positions = sum(n for n, i in zip(training.sizes_of(opened), windows, strict=True) if i < 2)
    assert (about["positions"], about["documents"]) == (positions, 2)
    path.write_text("\n".join(json.dumps({"text": text}) for text in (*texts[:2], texts[2], texts[2])))
    frame = Dictionaries(controls=False, **SMALL).measure(model, Tokens(str(path))).table().frame
    assert (frame["n"].tolist(), frame["clusters"].tolist()) == ([2], [1]), "copies are one independent document"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts[:2]))
    with refused("give 3, not 2"):
        Dictionaries(**SMALL).measure(model, Tokens(str(path)))


def test_a_folder_is_read_as_it_was_written(tmp_path: Path) -> None:
    model = model_of()
    Dictionaries(to=tmp_path / "found", controls=False, **SMALL).measure(model, DATA)
    folder = tmp_path / "found" / "blocks.1.hook_context_post-s0"
    found = read_dictionary(str(folder), model)
    direction = read_direction(f"{folder}:17")
    torch.testing.assert_close(direction.vector, found.W_dec[17] / found.W_dec[17].norm(), atol=1e-6, rtol=0)
    assert direction.layer == 1
    how = Steer(direction=f"{folder}:17", streams=("context",), scale=(0.0, 1.0), draws=0, prompt="")
    assert how.measure(model, Documents("stories:1:4")).table().frame["kl"].max() > 1e-4
    for latent, message in (("", "name latents of the dictionary"), (":48", "one of the latents 0 to 47"),
                            (":3,4", "a direction is one latent")):  # fmt: skip
        with refused(message):
            Steer(direction=f"{folder}{latent}").measure(model, Documents("stories:1:4"))
    write_dictionary(tmp_path / "again", found)
    again = read_dictionary(str(tmp_path / "again"), model)
    x = torch.randn(9, model.config.d_model)
    assert torch.equal(found.encode(x), again.encode(x)) and found.hook == again.hook == "blocks.1.hook_context_post"
    other = model_of()
    with torch.no_grad():
        other.embed.weight[3, 3] += 1
    for use in (lambda: read_dictionary(str(folder), other), lambda: how.measure(other, Documents("stories:1:4"))):
        with refused("trained on other weights"):
            use()
    write_dictionary(tmp_path / "pre", replace(found, hook="blocks.1.hook_resid_pre", target="blocks.1.hook_resid_pre"))
    assert read_direction(f"{tmp_path / 'pre'}:17").layer == 0, "the state before layer 1 is that after layer 0"
    for hook in ("blocks.0.hook_resid_pre", "hook_embed"):
        write_dictionary(tmp_path / "pre", replace(found, hook=hook, target=hook))
        with refused("a state before layer 0"):
            read_direction(f"{tmp_path / 'pre'}:17")
    with refused("reads 32 dimensions|dimensions, the model has"):
        read_dictionary(str(folder), load("stories/lfa"))


def test_equals_the_code_of_sae_lens(tmp_path: Path) -> None:
    """Latents and states of sae_lens' own classes, recorded: of folders that it wrote, and of ours as it read them."""
    record = json.loads(SAE_LENS.read_text())
    x = torch.tensor(record["x"])
    for i, one in enumerate([*record["theirs"], *record["ours"]]):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "cfg.json").write_text(json.dumps(one["config"]))
        save_file({name: torch.tensor(w) for name, w in one["weights"].items()}, folder / "sae_weights.safetensors")
        found = read_dictionary(str(folder))
        z = found.encode(x)
        torch.testing.assert_close(z, torch.tensor(one["latents"]), atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(found.decode(z, x), torch.tensor(one["rebuilt"]), atol=1e-6, rtol=1e-6)
        if one in record["ours"]:  # and today's folder is the one that it read
            write_dictionary(tmp_path / "again", found)
            assert json.loads((tmp_path / "again" / "cfg.json").read_text()).keys() == one["config"].keys()
            weights, _ = read_tensors(tmp_path / "again" / "sae_weights.safetensors")
            assert all(torch.equal(w, torch.tensor(one["weights"][name])) for name, w in weights.items())
            assert (found.hook, found.target) == (one["hook"], one["target"])


def test_older_folders_of_sae_lens_are_read(tmp_path: Path) -> None:
    """k among the keywords of the activation, and the threshold of a training that is not converted yet."""
    record = json.loads(SAE_LENS.read_text())
    theirs, x = {one["name"]: one for one in record["theirs"]}, torch.tensor(record["x"])
    topk = theirs["topk-False"]
    config = {name: value for name, value in topk["config"].items() if name != "k"}
    config |= {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": topk["config"]["k"]}}
    weights = {name: torch.tensor(w) for name, w in topk["weights"].items()}
    batchtopk = {**config, "architecture": "batchtopk", "activation_fn_str": "relu"}
    threshold = {"topk_threshold": torch.tensor(0.5, dtype=torch.float64)}
    pre = x @ weights["W_enc"] + weights["b_enc"]
    for i, (fields, more, latents) in enumerate((
        (config, {}, torch.tensor(topk["latents"])), ({**config, "architecture": "standard"}, {}, topk["latents"]),
        (batchtopk, threshold, torch.where(pre > 0.5, pre, 0.0)),
    )):  # fmt: skip
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "cfg.json").write_text(json.dumps(fields))
        save_file({**weights, **more}, tmp_path / str(i) / "sae_weights.safetensors")
        found = read_dictionary(str(tmp_path / str(i)))
        torch.testing.assert_close(found.encode(x), torch.as_tensor(latents), atol=1e-6, rtol=1e-6)
        if found.k:
            with refused(f"of the {found.k} largest latents is not written"):
                write_dictionary(tmp_path / "again", found)


ZEROS = {"W_enc": (8, 16), "W_dec": (16, 8), "b_dec": (8,), "b_enc": (16,)}
STANDARD = {"architecture": "standard"}


@pytest.mark.parametrize(
    ("config", "arrays", "message"),
    [
        ({"architecture": "gated"}, {}, "unknown architecture"),
        ({**STANDARD, "normalize_activations": "layer_norm"}, {}, "normalize_activations layer_norm is not read"),
        ({**STANDARD, "reshape_activations": "hook_z"}, {}, "reshape_activations hook_z is not read"),
        ({**STANDARD, "rescale_acts_by_decoder_norm": True}, {}, "rescale_acts_by_decoder_norm True is not read"),
        ({**STANDARD, "activation_fn_str": "tanh-relu"}, {}, "unknown activation_fn_str"),
        ({"architecture": "topk"}, {}, "names no k"),
        ({"architecture": "jumprelu_transcoder"}, {}, "has no threshold, which jumprelu_transcoder needs"),
        ({"architecture": "batchtopk", "k": 4}, {}, "has no threshold"),
        (None, {}, r"cfg\.json is missing: give a folder"),
        # SAELens' fine-tuned dictionaries multiply latents by a factor, which is all ones in the others
        (STANDARD, {"scaling_factor": torch.full((16,), 2.0)}, "scaling_factor is not read: give a dictionary without"),
        (STANDARD, {"scaling_factor": torch.ones(16)}, ""),
        *((STANDARD, {name: torch.ones(size)}, "has the shape")
          for name, size in (("W_enc", (8,)), ("W_dec", (15, 8)), ("b_dec", (7,)), ("b_enc", (9,)))),
    ],
)  # fmt: skip
def test_folders_that_are_refused(config: dict[str, Any] | None, arrays: Any, message: str, tmp_path: Path) -> None:
    weights = {name: torch.zeros(size) for name, size in ZEROS.items()}
    save_file({**weights, **arrays}, tmp_path / "sae_weights.safetensors")
    if config is not None:
        (tmp_path / "cfg.json").write_text(json.dumps(config))
    with refused(message) if message else nullcontext():
        read_dictionary(str(tmp_path))


def test_bad_input(tmp_path: Path) -> None:
    model = model_of()
    for how, message in (({"batch": 4096}, "give more text"),
                         ({"target": "blocks.0.hook_mlp_out"}, "give it as --hooks")):  # fmt: skip
        with refused(message):
            Dictionaries(**how).measure(model, DATA)
    with refused(r"hook_z holds no states \[B, T, D\]"):
        places(Dictionaries(hooks=("blocks.0.attn.hook_z",), target="blocks.0.hook_mlp_out"), model)
    read = places(Dictionaries(hooks=("hook_embed",), target="blocks.0.hook_mlp_out"), model)
    assert [(place.hook, place.layer) for place in read] == [("hook_embed", -1), ("blocks.0.hook_mlp_out", 0)]
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "sae_weights.safetensors").touch()
    Dictionaries(to=tmp_path).check_sources()  # killed before cfg.json, which comes last: goes on
    first = next(open_data(DATA, model).documents())
    assert scored(first, first.ids[0]) == slice(1, len(first.ids) - 1), "BOS has no state of its own"
    assert scored(first, None) == slice(0, len(first.ids) - 1), "without BOS every position has one"
