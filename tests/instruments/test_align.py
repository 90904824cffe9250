"""Where roles lie in tokens: the rules of `align` on two tokenizers, the filters, and whose tokenizer fits a model."""

import random
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tokenizers

from streamscope.cli.errors import InputError
from streamscope.instruments.prompts import FILES, Prompt, Suite, align, check_tokenizer, load_suite, require_pairs
from streamscope.text.stories import documents
from streamscope.text.tokenizer import Tokenizer
from tests.instruments.prompts_by_hand import TEXT, prompt_of, stories_tokenizer, suite_of, words_of


@pytest.fixture(scope="module")
def stories_bpe() -> Tokenizer:
    return stories_tokenizer()


@pytest.fixture(params=["stories", "gpt2"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "stories":
        return stories_tokenizer()
    return Tokenizer.load(request.getfixturevalue("shared_data") / "tokenizers" / "encoder.json")


@pytest.mark.parametrize("name", [*FILES, "stories"])
def test_role_tokens_contain_the_role_and_no_other_word(name: str, tokenizer: Tokenizer) -> None:
    suite = suite_of(name)
    aligned = align(suite, tokenizer, 128)
    assert aligned.prompts == suite.prompts and not aligned.filtered and not aligned.dropped_pairs
    assert len(aligned.pairs()) == len(suite.pairs)
    for prompt, ids, positions in zip(aligned.prompts, aligned.tokens, aligned.positions, strict=True):
        assert ids == tokenizer.encode(prompt.text) and ids[0] == tokenizer.bos_id
        pieces = tokenizer.pieces(ids)
        assert positions.keys() == prompt.roles.keys()
        for role, text in words_of(prompt).items():
            assert "".join(pieces[p] for p in positions[role]).strip() == text
        assert not any(0 in where for where in positions.values()), "BOS holds no word"
    for i, j in require_pairs(aligned) if name in FILES else ():
        assert aligned.queries[i] == aligned.queries[j]
        assert (aligned.prompts[i].order, aligned.prompts[j].order) == ("target_first", "target_last")


def test_continuations_are_what_follows_the_text(tokenizer: Tokenizer) -> None:
    aligned = align(load_suite("competing"), tokenizer)
    for prompt, ids, after in zip(aligned.prompts, aligned.tokens, aligned.continuations, strict=True):
        assert after is not None and after[0][0] != after[1][0]
        for continuation, more in zip((prompt.coherent, prompt.incoherent), after, strict=True):
            assert tokenizer.decode(ids + more) == prompt.text + str(continuation)
    assert set(map(type, align(load_suite("coreference"), tokenizer).continuations)) == {type(None)}


def test_positions_agree_with_a_character_by_character_reference(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    alphabet = ["dog", " ", " key", "é", "🐸", "'s", ".", "\n", "日本", " wheelbarrow", "zq"]
    checked = 0
    for i in range(300):
        text = "".join(rng.choices(alphabet, k=12))
        start = rng.randrange(len(text))
        end = rng.randrange(start + 1, len(text) + 1)
        if text[start:end] != text[start:end].strip():
            continue
        prompt = Prompt(id=str(i), text=text, roles={"query": (start, end)}, category="random")
        _, spans = tokenizer.spans(text)
        reference = [p for p, span in enumerate(spans) if any(c in range(start, end) for c in range(*span))]
        aligned = align(Suite("random", (prompt,), "here"), tokenizer)
        assert list(aligned.positions[0]["query"]) == reference
        assert aligned.queries == [reference[-1]]
        checked += 1
    assert checked > 100


GOOD = prompt_of("good")
BAD = {
    "longer than the context": prompt_of(text=TEXT + " gate" * 60),
    "two roles share a token": prompt_of(roles={"target": (4, 5), "distractor": (5, 7)}),
    "a role comes after the query, out of a causal model's sight": prompt_of(roles={"target": (39, 43)}),
}
UNSCORED = {
    "a continuation does not start a new token": prompt_of(text=TEXT + " ", coherent="key", incoherent="box"),
    "the continuations start with the same token": prompt_of(coherent=" big key", incoherent=" big box"),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_prompt_that_cannot_serve_is_filtered_with_its_reason(reason: str, stories_bpe: Tokenizer) -> None:
    assert len(stories_bpe.encode(" key", bos=False)) == 1 == len(stories_bpe.encode(" saw", bos=False))
    aligned = align(Suite("s", (GOOD, BAD[reason]), "here"), stories_bpe, 60)
    assert aligned.filtered == [("p", reason)]
    assert aligned.prompts == (GOOD,) and len(aligned.tokens) == len(aligned.positions) == 1
    with pytest.raises(InputError, match=re.escape(reason) + r".* \(1 of 1 prompts\)"):
        align(Suite("s", (BAD[reason],), "here"), stories_bpe, 60)


@pytest.mark.parametrize("reason", UNSCORED)
def test_continuations_that_cannot_be_compared_leave_the_prompt(reason: str, stories_bpe: Tokenizer) -> None:
    """Attention to roles does not read them: PDS and coreference lost 50 of 120 prompts."""
    fine = prompt_of("fine", coherent=" key", incoherent=" box")
    both = align(Suite("s", (fine, UNSCORED[reason]), "here"), stories_bpe)
    assert not both.filtered and [after is None for after in both.continuations] == [False, True]
    assert both.unscored == [("p", reason)] and both.scoring() == f", 1 left out: {reason}"
    assert both.only([0]).unscored == [] and both.only([1]).unscored == both.unscored


def test_a_small_vocabulary_cannot_score_nouns_that_share_their_first_piece() -> None:
    suite = suite_of("stories")
    aligned = align(suite, Tokenizer.train(documents(0, 50), 300))
    assert {why for _, why in aligned.unscored} == {"the continuations start with the same token"}
    assert len(aligned.prompts) == 400 and len(aligned.unscored) >= 10 and len(aligned.pairs()) == 200
    longer = sum(len(a) + len(b) > 2 for a, b in filter(None, aligned.continuations))
    assert f", {longer} of {400 - len(aligned.unscored)} by the first token of a longer" in aligned.scoring()


def test_a_role_that_the_tokenizer_swallows_is_filtered() -> None:
    words_only = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "<unk>": 1, "it": 2}, "<unk>"))
    words_only.normalizer = tokenizers.normalizers.Replace("★", " ")
    words_only.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    star = Prompt(id="star", text="a ★ and it", roles={"query": (8, 10), "target": (2, 3)}, category="c")
    plain = Prompt(id="plain", text="a b and it", roles={"query": (8, 10), "target": (2, 3)}, category="c")
    aligned = align(Suite("s", (star, plain), "here"), Tokenizer(words_only))
    assert aligned.filtered == [("star", "a role holds no token")]
    assert aligned.positions == [{"query": (4,), "target": (2,)}]


def test_the_context_counts_bos_and_is_met_exactly(stories_bpe: Tokenizer) -> None:
    suite, length = Suite("s", (GOOD,), "here"), len(stories_bpe.encode(TEXT))
    assert align(suite, stories_bpe, length).prompts == (GOOD,)
    with pytest.raises(InputError, match="longer than the context"):
        align(suite, stories_bpe, length - 1)
    with pytest.raises(InputError, match="it is empty"):
        align(Suite("none", (), "here"), stories_bpe)


def test_a_pair_that_loses_one_prompt_is_dropped_and_counted(stories_bpe: Tokenizer) -> None:
    suite = load_suite("competing")
    longer = max(suite.prompts, key=lambda p: len(p.text))
    prompts = (replace(p, text=p.text + " the" * 60) if p.id == longer.id else p for p in suite.prompts)
    aligned = align(Suite("half", tuple(prompts), "here"), stories_bpe, 70)
    assert aligned.dropped_pairs == (longer.pair,) and aligned.filtered == [(longer.id, "longer than the context")]
    pairs = require_pairs(aligned)
    assert len(pairs) == 29 and len(aligned.prompts) == 59
    assert all(aligned.prompts[i].pair == aligned.prompts[j].pair for i, j in pairs)
    other = prompt_of("last", text=TEXT + " gate" * 60, order="target_last", pair="k",
                      roles={"target": (20, 23), "distractor": (10, 13)})  # fmt: skip
    for prompts, line in (
        ((GOOD,), "the suite has none; use a suite with pairs"),
        ((prompt_of("first", order="target_first", pair="k"), other), "all 1 were filtered"),
    ):
        with pytest.raises(InputError, match=line):
            require_pairs(align(Suite("s", prompts, "here"), stories_bpe, 60))


def model(tokenizer: object, d_vocab: int) -> SimpleNamespace:
    return SimpleNamespace(tokenizer=tokenizer, cfg=SimpleNamespace(d_vocab=d_vocab))


def test_check_tokenizer_takes_the_models_own(stories_bpe: Tokenizer) -> None:
    assert check_tokenizer(model(stories_bpe, 1024)) is stories_bpe
    assert check_tokenizer(model(stories_bpe, 1088), stories_bpe) is stories_bpe, "a padded vocabulary is the model's"
    assert check_tokenizer(model(None, 1024), stories_bpe) is stories_bpe
    other = Tokenizer.train(documents(5, 500), 1024)  # as many words, other words
    for own, d_vocab, given, line in (
        (stories_bpe, 1024, (other,), "is not the model's tokenizer"),
        (None, 1024, (), "has no tokenizer; give the one"),
        (object(), 1024, (), "without offsets: use a fast tokenizer"),
        (None, 1023, (stories_bpe,), "has 1024 words, the model 1023"),
        (None, 4096, (stories_bpe,), "has 1024 words, the model 4096"),
        (stories_bpe, 1000, (), "has 1024 words, the model 1000"),
    ):
        with pytest.raises(InputError, match=line):
            check_tokenizer(model(own, d_vocab), *given)


def test_check_tokenizer_wraps_a_hugging_face_tokenizer(stories_bpe: Tokenizer) -> None:
    backend = tokenizers.Tokenizer.from_str(stories_bpe.to_json())
    theirs = SimpleNamespace(backend_tokenizer=backend, bos_token="<|endoftext|>", eos_token=None)
    assert check_tokenizer(model(theirs, 1024)).encode(TEXT) == stories_bpe.encode(TEXT)
    assert check_tokenizer(model(theirs, 1088)).pieces([1087]) == ["<unused 1087>"]
    backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    backend.add_special_tokens(["</s>"])
    theirs.bos_token = "</s>"
    assert check_tokenizer(model(theirs, 1088)).encode(TEXT) == [1024, *stories_bpe.encode(TEXT)[1:]]
