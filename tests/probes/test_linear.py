"""Linear probes where the label is planted, where nothing is, and where only words can be learnt by heart."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from sklearn.feature_selection import f_classif
from sklearn.model_selection import StratifiedGroupKFold

from streamscope import Labels, build, load
from streamscope.instruments.open_data import open_data
from streamscope.instruments.open_texts import Example, OpenLabels, position_examples, story_examples
from streamscope.instruments.table import Table
from streamscope.models.dictionaries import Dictionary, write_dictionary
from streamscope.models.hooks import Captures, Query, capture
from streamscope.probes import Linear
from streamscope.probes.linear import measure as linear
from streamscope.text.stories import labelled, story
from streamscope.text.tokenizer import Tokenizer
from tests.probes.planted import tables_of
from tests.tiny import randomise, refused

HOOK = "blocks.1.hook_resid_post"


def made(n: int = 240, words: int = 24, groups: int = 60, seed: int = 0) -> list[Example]:
    """Examples without a text: labels, groups and words drawn independently."""
    rng = np.random.default_rng(seed)
    drawn = zip(rng.permutation(n) % 2, rng.integers(groups, size=n), rng.integers(words, size=n), strict=True)
    return [Example(text="", start=0, end=0, label="ab"[y], group=f"g{g}", word=f"w{w}") for y, g, w in drawn]


def with_labels(labels: Iterable[str], examples: list[Example]) -> list[Example]:
    return [e._replace(label=label) for label, e in zip(labels, examples, strict=True)]


def read(how: Linear, examples: list[Example], x: Any, hook: str = HOOK) -> pd.DataFrame:
    """The probe's table of activations x [N, ...], ten positions a prompt."""
    rows = list(torch.as_tensor(np.asarray(x)).float().split(10))
    return linear.read(how, Captures({hook: rows}, None), examples)


def summary(how: Linear, table: pd.DataFrame, examples: list[Example]) -> Table:
    return tables_of(how, linear.observed(table, examples))["linear"]


def row_of(how: Linear, examples: list[Example], x: Any) -> pd.Series:
    return summary(how, read(how, examples, x), examples).frame.iloc[0]


def labels_of(examples: list[Example]) -> np.ndarray:
    return np.array([e.label == "b" for e in examples])


def noise(n: int, width: int = 8, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, width))


def test_planted_label() -> None:
    """One direction of eight is the label: accuracy 1; the control, which it does not tell, near chance."""
    examples = made()
    x = noise(len(examples))
    x[:, 3] = 20 * labels_of(examples)
    row = row_of(Linear(), examples, x)
    assert row["accuracy"] == 1 and row["accuracy_p_holm"] < 0.001
    assert abs(row["control"] - 0.5) < 0.15
    assert row["selectivity"] == pytest.approx(1 - row["control"])
    assert row["selectivity_low"] < row["selectivity"] < row["selectivity_high"]
    assert (row["layer"], row["chance"], row["majority"], row["n"], row["clusters"]) == (1, 0.5, 0.5, 240, 59)


@pytest.mark.parametrize(
    ("preset", "hook", "stream"), [("kromhc", "blocks.0.hook_streams_post", "s2"), ("std-t", "hook_embed", "")]
)
def test_latents_are_those_of_plain_states(preset: str, hook: str, stream: str, tmp_path: Path) -> None:
    model, generator = randomise(build(preset, "tiny")), torch.Generator().manual_seed(2)
    weights = [torch.randn(size, generator=generator) / 4 for size in ((32, 20), (20,), (20, 32), (32,))]
    dictionary = Dictionary(*weights, torch.full((20,), 0.1), hook=hook, target=hook, stream=stream)
    write_dictionary(folder := tmp_path / "d", dictionary)
    tokens = [[0, 5, 9, 7], [0, 8, 3]]
    query = Query(tokens=tokens, positions=[[1, 3], [2]], hooks=())
    probe = Linear(hooks=(str(folder), "hook_embed", f"{folder}:3,17-18"), latents=2)
    captures, layers = linear.activations(probe, model, query, iter)
    hooks = captures.hooks
    layer = -1 if hook == "hook_embed" else int(hook[7])
    assert {*hooks} == {*probe.hooks} and layers == dict.fromkeys((probe.hooks[0], probe.hooks[2]), layer)
    for row, positions, *values in zip(tokens, query.positions, *(hooks[name] for name in probe.hooks), strict=True):
        with torch.no_grad(), capture(model, [hook, "hook_embed"]) as captures:
            model(torch.tensor([row]))
        x = captures[hook][0][positions]
        pre = (x[:, int(stream[1:])] if stream[1:].isdigit() else x) @ weights[0] + weights[1]
        z = pre * (pre > 0.1)
        for value, expected in zip(values, (z, captures["hook_embed"][0][positions], z[:, [3, 17, 18]]), strict=True):
            torch.testing.assert_close(value, expected)
    with refused("has 2 latents; give no more"):
        linear.activations(Linear(hooks=(f"{folder}:3,7",), latents=3), model, query, iter)
    with refused("give latents from 0 to 19"):
        linear.activations(Linear(hooks=(f"{folder}:3,20",)), model, query, iter)
    with refused("give one in --hooks"):
        linear.activations(Linear(latents=2), model, query, iter)


def test_the_place_of_a_dictionary_is_one_in_all_layers() -> None:
    """Whatever digits are in its folder, and also of a transcoder, whose name has the layer twice."""
    examples, how, places = made(60, groups=20), Linear(controls=1, folds=3), set[str]()
    for layer in (2, 3):
        hook = f"runs/gpt2/blocks.{layer}.hook_mlp_in-to-blocks.{layer}.hook_mlp_out-s0"
        rows = list(torch.as_tensor(noise(60)).float().split(10))
        table = linear.read(how, Captures({hook: rows}, None), examples, layers={hook: layer})
        places.update(summary(how, table, examples).frame["place"])
    assert places == {"runs/gpt2/blocks.*.hook_mlp_in-to-blocks.*.hook_mlp_out-s0"}


def test_the_best_latent_is_chosen_in_the_training_folds() -> None:
    """One of eight latents is the label; of noise one is no better than chance, however many there are."""
    few = made(80)
    share = read(Linear(controls=1, latents=1), few, noise(80, 3000), "folder")["correct"].mean()
    assert share < 0.62, "the best of 3,000 on all cases has about .7"
    examples = made()
    x = noise(len(examples), 30)
    x[:, 3] = 20 * labels_of(examples)
    x[:, 4] = 0
    table = read(Linear(controls=1, latents=1), examples, x, "folder")
    assert table.loc[table["task"] == "label", "correct"].all()
    x[:, 3] = noise(len(examples), 1, seed=5)[:, 0] + labels_of(examples)
    of_hook, of_all = (read(Linear(controls=1, latents=latents), examples, x) for latents in (1, None))
    pd.testing.assert_frame_equal(of_hook, of_all)  # a hook has no latents to choose from
    assert (of_hook["predicted"] != read(Linear(controls=1, latents=1), examples, x, "folder")["predicted"]).any()


def test_the_share_between_classes_orders_features_as_f_does() -> None:
    rng = np.random.default_rng(0)
    y = rng.choice(3, 90, p=[0.7, 0.2, 0.1])
    x = rng.normal(size=(90, 40)) + y[:, None] * rng.normal(size=40)
    share, f = linear.class_share(x, y), f_classif(x, y)[0]
    np.testing.assert_allclose(share / (1 - share) * (90 - 3) / (3 - 1), f, rtol=1e-9)


def test_no_information_is_chance() -> None:
    """Over ten draws of noise the intervals hold chance as often as they should, and p rejects as rarely."""
    held, rejected, shares = 0, 0, []
    for seed in range(10):
        row = row_of(Linear(controls=1), made(seed=seed), noise(240, seed=100 + seed))
        held += row["accuracy_low"] <= 0.5 <= row["accuracy_high"]
        rejected += row["accuracy_p"] < 0.05
        shares.append(row["accuracy"])
    assert held >= 8 and rejected <= 2
    assert abs(np.mean(shares) - 0.5) < 0.03


def test_a_probe_that_knows_nothing_is_not_better_than_the_commonest_label() -> None:
    """Three of four cases have one label: noise is right three times in four, half of which were chance of two."""
    examples = with_labels("abbb" * 60, made())
    row = row_of(Linear(controls=1, c=0.001), examples, noise(240))
    assert (row["chance"], row["majority"]) == (0.5, 0.75) and row["accuracy"] > 0.7
    assert row["accuracy_p"] > 0.2


def test_words_can_be_learnt_by_heart_unless_they_are_the_groups() -> None:
    """Activations that name the word, labels that follow from it: accuracy 1, control 1, selectivity 0. Groups that are
    the words: nothing can be memorised, so the probe is at chance and the control undefined."""
    for n in (12, 24):
        examples = made(words=n)
        words = [int(e.word[1:]) for e in examples]
        examples, x = with_labels(["ab"[w % 2] for w in words], examples), np.eye(n)[words]
        if n == 12:
            assert row_of(Linear(c=10.0), examples, x)[["accuracy", "control", "selectivity"]].tolist() == [1, 1, 0]
    examples = [e._replace(group=e.word) for e in examples]
    table = read(Linear(), examples, x)
    assert set(table["task"]) == {"label"}
    found = summary(Linear(), table, examples)
    assert found.frame["accuracy"][0] < 0.7 and found.frame[["control", "selectivity"]].isna().all(axis=None)
    assert "no word recurs" in found.missing[0, "selectivity"]


def test_a_group_is_never_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example is predicted once per task, by a probe that saw no example of its group."""
    examples, seen, original = made(), list[tuple[Any, Any]](), linear.held_out
    monkeypatch.setattr(
        linear, "held_out", lambda x, y, splits, *rest: seen.extend(splits) or original(x, y, splits, *rest)
    )
    table = read(Linear(controls=1), examples, noise(240))
    groups = np.array([e.group for e in examples])
    for train, test in seen:
        assert not set(groups[train]) & set(groups[test])
    for _, one in table.groupby(["task", "draw"]):
        assert one["example"].tolist() == list(range(240))


def test_standardisation_is_inside_the_fold() -> None:
    """A naive loop: mean, sd and weights from the training folds, by a general minimiser, gives the same."""
    examples, probe = made(n=100, groups=30), Linear(c=0.5, controls=1)
    y = labels_of(examples)
    x = noise(100, 3) * [1, 50, 0.02] + [0, 300, 5]
    x[:, 1] += 40 * y
    table = read(probe, examples, x)
    groups = pd.factorize(np.array([e.group for e in examples]))[0]
    x = np.float32(x).astype(float)
    for train, test in StratifiedGroupKFold(5, shuffle=True, random_state=0).split(x, y, groups):
        mu, sd = x[train].mean(0), x[train].std(0)
        z, sign = (x - mu) / sd, np.where(y, 1, -1)

        def loss(w: np.ndarray, z: np.ndarray = z[train], sign: np.ndarray = sign[train]) -> float:
            return np.logaddexp(0, -sign * (z @ w[:3] + w[3])).sum() + (w[:3] ** 2).sum() / (2 * 0.5)

        w = minimize(loss, np.zeros(4)).x
        said = table[(table["task"] == "label") & table["example"].isin(test)].sort_values("example")["predicted"]
        assert (said == "b").tolist() == (z[test] @ w[:3] + w[3] > 0).tolist()


def test_planted_in_a_model() -> None:
    """What a letter is can be read from hook_embed of a model whose embedding holds it, not from noise."""
    tokenizer, rng, examples = Tokenizer.train(["ab ac ad " * 50], 259), np.random.default_rng(0), []
    model = build("std-t", "tiny", d_vocab=300, tokenizer=tokenizer)
    for i in range(40):
        text = "".join(rng.choice(list("uvwxyz"), 12))
        for at in (4, 9):
            label = "late" if text[at] in "xyz" else "early"
            examples.append(Example(text=text, start=at, end=at + 1, label=label, group=str(i), word=text[at]))
    with torch.no_grad():
        model.embed.weight.zero_()
        for letter in "xyz":
            model.embed.weight[tokenizer.encode(letter)[-1], 5] = 1
    probe = Linear(hooks=("hook_embed", "hook_pos_embed", "blocks.*.attn.hook_z"))
    found = probe.measure(model, OpenLabels(examples, "letters", tokenizer)).table().frame.set_index("hook")
    assert found.loc["hook_embed", ["accuracy", "layer"]].tolist() == [1, -1]
    assert found.loc["hook_pos_embed", "accuracy"] < 0.75
    assert found.loc["blocks.1.attn.hook_z", ["layer", "place"]].tolist() == [1, "blocks.*.attn.hook_z"]


def test_plan_places_examples() -> None:
    """Positions are those of the labelled words; texts are run once, no further than needed; the context cuts."""
    tokenizer = Tokenizer.train(["the cat sat on the mat " * 60], 265)
    text = "the cat sat on the mat"
    at = [(8, 11), (4, 7), (19, 22)]
    examples = [Example(text=text, start=a, end=b, label=text[a:b], group="g", word="w") for a, b in at]
    query, kept = linear.plan(Linear(hooks=(HOOK,)), examples, tokenizer, 64)
    assert len(query.tokens) == 1 and query.positions is not None
    for e, p in zip(kept, query.positions[0], strict=True):
        assert tokenizer.align(text, e.start, e.end)[-1] == p
    assert len(query.tokens[0]) == max(query.positions[0]) + 1
    _, short = linear.plan(Linear(hooks=(HOOK,)), examples, tokenizer, query.positions[0][0] + 1)
    assert [e.label for e in short] == ["sat", "cat"]
    with refused("none of 3"):
        linear.plan(Linear(), examples, tokenizer, 1)


def test_story_examples_are_the_ground_truth() -> None:
    examples = story_examples("antecedent", 120)
    assert {e.label for e in examples} == {"first", "second"}
    assert abs(np.mean([e.label == "first" for e in examples]) - 0.5) < 0.12
    assert {e.text[e.start : e.end].lower() for e in examples} <= {"it", "he", "she", "they"}
    first = story(2, 0, "pairs")
    case = first.cases[0]
    assert examples[0].word == first.text[case.antecedent.start : case.antecedent.end].lower()
    assert first.text.endswith(examples[0].text)
    assert len(first.text) - len(examples[0].text) + examples[0].start == case.pronoun.start
    by_word = story_examples("gender", 120, groups="antecedent")
    assert {e.label for e in by_word} == {"he", "she"}
    assert all(e.group == e.word == e.text[e.start : e.end].lower() for e in by_word)
    assert {e.label for e in story_examples("number", 60)} == {"single", "group"}


def test_words_stand_anywhere_and_their_part_of_the_context_is_that_of_their_last_token() -> None:
    """By `align`, word by word; a text begins amid a story and shares none with another; parts are as frequent."""
    tokenizer = Tokenizer.train(["the cat sat on the mat " * 60], 265)
    examples = position_examples(tokenizer, 60, 64)
    for e in examples:
        at = tokenizer.align(e.text, e.start, e.end)[-1]
        assert at < 64 and e.label == str(at // 8) and e.word == e.text[e.start : e.end].lower()
    texts = list(dict.fromkeys(e.text for e in examples))
    assert len(texts) == 60 == len({e.group for e in examples}) and len(examples) == 240
    parts = [part for text in texts for part in text.split("\n\n")[1:-1] if len(part) > 80]
    assert len(set(parts)) > 0.95 * len(parts) > 50, "no story is in two texts"
    assert {e.group for e in position_examples(tokenizer, 9, 64, groups="antecedent")} == {
        e.word for e in position_examples(tokenizer, 9, 64)
    }
    assert pd.Series([e.label for e in position_examples(tokenizer, 400, 64)]).value_counts(normalize=True).max() < 0.17


def test_a_planted_position_is_read_where_it_is_added_and_not_before() -> None:
    """Position vectors that name the part: chance in the token's own vector, every part from the sum of the two."""
    model = build("std-t", "tiny", d_vocab=300, tokenizer=Tokenizer.train(["the cat sat on the mat " * 60], 265))
    with torch.no_grad():
        model.pos_embed.weight.zero_()
        for at in range(model.config.n_ctx):
            model.pos_embed.weight[at, at * 8 // model.config.n_ctx] = 20
    probe = Linear(hooks=("hook_embed", "blocks.0.hook_resid_pre"))
    data = open_data(Labels(task="position", stories=100), model)
    found = probe.measure(model, data).table().frame.set_index("hook")
    assert found.loc["blocks.0.hook_resid_pre", "accuracy"] > 0.99 and found.loc["hook_embed", "accuracy"] < 0.2
    assert found.loc["blocks.0.hook_resid_pre", "selectivity"] > 0.5
    assert "position in 100 stories" in data.title and found["n"].iloc[0] == 400


def test_what_is_not_finite_and_too_few_groups_are_refused() -> None:
    bad = noise(240)
    bad[5, 2] = np.inf
    with refused("1 of 240 activations are not finite"):
        read(Linear(), made(), bad)
    with refused("3 groups, .* for 5 folds"):
        read(Linear(), made(groups=3), noise(240))


def test_cases_beyond_the_context_are_counted(tiny_run: Path) -> None:
    model, data = load(tiny_run), Labels(stories=150)
    title = Linear(folds=3, controls=1, hooks=("hook_embed",)).measure(model, data).table().title
    total = sum(len(story.cases) for story in labelled(2, 150, "pairs"))
    n_ctx = model.config.n_ctx
    kept = sum(model.tokenizer.align(e.text, e.start, e.end)[-1] < n_ctx for e in open_data(data, model).examples)
    assert 2 <= kept < total == len(open_data(data, model).examples)
    assert f"antecedent in 150 stories, groups: story, {kept} cases ({total - kept} beyond" in title


def own_rows() -> pd.DataFrame:
    """Texts of unequal lengths and counts; the label is the verb, which only the last of two spans covers."""
    rng, verbs = np.random.default_rng(0), ["ran", "sat", "flew"]
    rows = []
    for i in range(90):
        verb = verbs[min(rng.integers(4), 2)]
        text = f"the {rng.choice(['big', 'small red'])} {rng.choice(['cat', 'dog', 'bird'])} {verb} to the tree {i}"
        rows.append({"text": text, "label": verb, "start": text.index(verb), "end": text.index(verb) + len(verb)})
    return pd.DataFrame(rows)


def test_labels_of_ones_own_on_any_hook(tiny_run: Path, tmp_path: Path) -> None:
    rows, model, source = own_rows(), load(tiny_run), str(tmp_path / "mine.csv")
    rows.to_csv(source, index=False)
    rows.to_parquet(other := str(tmp_path / "mine.parquet"))
    first, same = (open_data(Labels(labels=path), model).examples for path in (source, other))
    assert first == same, "numbers of a CSV are text, those of a table are not"
    how = Linear(hooks=("hook_embed", "blocks.0.attn.hook_z"), folds=3, controls=1)
    found = how.measure(model, Labels(labels=source)).table()
    assert found.frame.set_index("hook").loc["hook_embed", "accuracy"] == 1.0
    assert f"3 labels of {source}" in found.title and found.frame["n"].tolist() == [90, 90]
    assert found.frame["majority"][0] == pytest.approx(rows["label"].value_counts(normalize=True).max())


def test_labels_of_ones_own_default_to_the_last_token(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('text,label,group\n"A cat, red ",1,\nA dog,0,g\n')
    first, second = open_data(Labels(labels=str(path)), load("stories/lfa")).examples
    assert (first.label, first.group, first.word, second.group) == ("1", "A cat, red ", "red", "g")
    assert first.text[first.start : first.end] == "A cat, red"
