"""Prompts: bundled suites, errors of a user's file, the command, where roles lie in tokens, whose tokenizer fits."""

import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import tokenizers

from streamscope.cli.errors import InputError
from streamscope.cli.user_code import edit_file
from streamscope.instruments.data import check_tokenizer
from streamscope.instruments.prompts import FILES, load_suite
from streamscope.instruments.prompts.__main__ import main
from streamscope.instruments.prompts.alignment import align, require_pairs
from streamscope.instruments.prompts.sets import read_set
from streamscope.instruments.prompts.suite import Prompt, Suite, check_space, population, units
from streamscope.instruments.prompts.tasks import Task, load_task
from streamscope.models import build
from streamscope.probes.roles import undecided
from streamscope.text.stories import CATEGORIES, documents
from streamscope.text.tokenizer import Tokenizer
from tests.instruments.prompts_by_hand import ROLES, TEXT, prompt_of, stories_tokenizer, suite_of, words_of
from tests.tiny import refused

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def stories_bpe() -> Tokenizer:
    return stories_tokenizer()


def test_competing_is_ten_pairs_in_each_of_three_relations() -> None:
    suite = load_suite("competing")
    relations = ("tool-container", "agent-patient", "possessor-possessed")
    assert Counter(p.relation for p in suite.prompts) == dict.fromkeys(relations, 20)
    assert len(suite.pairs) == 30 and len({p.text for p in suite.prompts}) == 60
    assert {p.category for p in suite.prompts} == {"competing-nouns"}
    for prompt in suite.prompts:
        found = words_of(prompt)
        assert (prompt.coherent, prompt.incoherent) == (f" {found['target']}", f" {found['distractor']}")


def test_coreference_is_29_instances_in_13_prompts() -> None:
    prompts = load_suite("coreference").prompts
    assert len(prompts) == 29 and len({p.text for p in prompts}) == 13
    assert Counter(p.category for p in prompts) == {"competing-nouns": 12, "gender": 10, "plurality": 7}
    assert Counter(p.category for p in prompts if p.pair) == {"competing-nouns": 12, "gender": 10}
    forms = {"Mia": "she", "Lily": "she", "Tom": "he", "Ben": "he", "boy": "he", "birds": "they", "girls": "they",
             "ducks": "they"}  # fmt: skip
    for prompt in prompts:
        found = words_of(prompt)
        assert found["query"].lower() == forms.get(found["target"], "it"), prompt.id
        assert all(span[1] <= prompt.roles["query"][0] for role, span in prompt.roles.items() if role != "query")


@pytest.mark.parametrize("name", [*FILES])
def test_a_pair_differs_in_the_order_of_two_nouns_and_in_nothing_else(name: str) -> None:
    suite = suite_of(name)
    of = {(p.pair, p.order): p for p in suite.prompts if p.pair}
    assert len(of) == 2 * len(suite.pairs) > 0
    for pair in suite.pairs:
        one, two = of[pair, "target_first"], of[pair, "target_last"]
        assert words_of(one) == words_of(two)
        start, end = one.roles["target"][0], one.roles["distractor"][1]
        between = one.text[one.roles["target"][1] : one.roles["distractor"][0]]
        bag = [sorted(re.findall(r"\w+", p.text.lower())) for p in (one, two)]
        assert bag[0] == bag[1], (one.text, two.text)
        assert one.roles["query"] == two.roles["query"]
        assert (one.coherent, one.incoherent) == (two.coherent, two.incoherent)
        assert one.text[end:] == two.text[two.roles["target"][1] :]
        target, distractor = words_of(one)["target"], words_of(one)["distractor"]
        assert two.text == one.text[:start] + distractor + between + target + one.text[end:]


def test_story_cases_are_labelled_pronouns() -> None:
    cases = load_suite("story-cases", n=200)
    assert len(cases.prompts) == 200 and {p.relation for p in cases.prompts} == set(CATEGORIES)
    assert 60 <= sum(p.order == "target_first" for p in cases.prompts) <= 140
    suite = load_suite("stories")
    assert len(suite.pairs) == 1000 and len(suite.prompts) == 2000
    assert suite.source == "streamscope.text.stories.minimal_pairs(2, 1000, 'pairs')"
    small, other = load_suite("stories", n=30, seed=2), load_suite("stories", n=30, seed=3)
    assert small.prompts == suite.prompts[:60] and not {p.text for p in small.prompts} & {p.text for p in other.prompts}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"roles": {"target": (10, 999)}}, r"role 'target' \[10, 999\) leaves the text"),
        ({"roles": {"target": (13, 13)}}, "leaves the text"),
        ({"roles": {"target": (9, 13)}}, "leave the space out"),
        ({"roles": {"rival": (10, 13)}}, "unknown role 'rival'"),
        ({"roles": {"2": (10, 13)}}, "unknown role '2'"),
        ({"order": "target_last"}, "is marked 'target_last', but its roles say target_first"),
        ({"pair": "k"}, "has no order"),
        ({"coherent": " key"}, "one continuation; give both"),
        ({"coherent": " ", "incoherent": " box"}, "an empty continuation"),
        ({"coherent": "key", "incoherent": " box"}, "'key' would run on from 'the': begin it with a space, ' key'"),
        ({"text": TEXT + " box.", "coherent": " Tim", "incoherent": "He"}, "'He' would run on from 'box.'"),
        ({"coherent": " a", "incoherent": " b", "answers": (" a",), "foils": (" b", "c")}, "'c' would run on"),
    ],
)
def test_a_prompt_checks_itself(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"'p'.*{message}"):
        prompt_of(**changes)


def test_a_continuation_needs_no_space_where_no_word_ends() -> None:
    for text in ("It was 19|84", 'She said "|Yes', "He ran|.", "She |ran", "彼は|走った", "(|a", "It's 3|%"):
        check_space(*text.split("|"))


def test_a_suite_checks_its_ids_and_pairs() -> None:
    one, other = (prompt_of(name, order="target_first", pair="k") for name in "ab")
    for prompts, line in (
        ((prompt_of(), prompt_of()), "here: the id 'p' occurs twice"),
        ((one,), "pair 'k' is target_first; it needs one prompt of each order"),
        ((one, other), "pair 'k' is target_first, target_first"),
    ):
        with pytest.raises(InputError, match=line):
            Suite("s", prompts, "here")
    with pytest.raises(InputError, match="no role 'query'"):
        Prompt(id="p", text="a b", roles={"target": (0, 1)}, category="c")


LINE = {"id": "p", "text": TEXT, "roles": {k: list(v) for k, v in ROLES.items()}, "category": "c"}


def test_a_users_file_reads_like_the_bundled_ones(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n" + json.dumps(LINE) + "\n")
    assert load_suite(path) == Suite("mine", (prompt_of(),), str(path))
    path = tmp_path / "mine.csv"  # a table of texts with two continuations
    path.write_text('text,coherent,incoherent,cluster\nA cat is," an animal"," a car",one\nA bus is, a car, a cat,\n')
    first, second = load_suite(path).prompts
    assert (first.text[slice(*first.roles["query"])], first.coherent, first.cluster) == ("is", " an animal", "one")
    assert (second.id, second.incoherent, second.cluster) == ("prompt-2", " a cat", None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "expected a prompt as JSON"),
        ("[1, 2]", "expected a prompt as JSON"),
        (json.dumps({**LINE, "txt": "a"}), "unknown key of a prompt 'txt': did you mean text"),
        (json.dumps({**LINE, "claen": "a"}), "unknown key of a prompt 'claen': did you mean clean"),
        (json.dumps({k: v for k, v in LINE.items() if k != "category"}), "category: Field required"),
        (json.dumps({**LINE, "roles": {"query": [1]}}), "roles.query.1: Field required"),
        (json.dumps({**LINE, "roles": {"query": [0, 99]}}), "leaves the text"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({**LINE, "id": "fine"}) + "\n" + line + "\n")
    with refused(rf"mine\.jsonl:2: .*{message}"):
        load_suite(path)


@pytest.mark.parametrize(
    ("name", "n", "message"),
    [
        ("competin", None, "unknown prompt suite 'competin': did you mean competing"),
        ("none/such.jsonl", None, "is no file; give one of coreference, competing, stories"),
        ("winobia:x", None, "unknown format of a prompt suite 'winobia': did you mean winobias"),
        ("competing.jsnl", None, "^unknown prompt suite 'competing.jsnl': did you mean competing"),
        ("winobias:no-such-file", None, "no-such-file is missing: "),
        ("competing", 5, "n and seed belong to the generated suite"),
        ("stories", 0, "at least 1 pair, not 0"),
    ],
)
def test_a_wrong_name_says_what_is_right(name: str, n: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_suite(name, n=n)


def test_a_wrong_name_of_an_own_file_gets_the_near_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stories_bpe: Tokenizer
) -> None:
    """The suffix, which all files share, makes no two names alike."""
    monkeypatch.chdir(tmp_path)
    for name in ("my_pairs.jsonl", "others.jsonl", "changes.py"):
        (tmp_path / name).touch()

    def task(name: str) -> Task:
        return load_task(name, stories_bpe)

    near, own = r"did you mean my_pairs.jsonl\?$", tmp_path / "my_pairs.jsonl"
    for read, name, line in (
        *((read, name, f"{name}.*{near}") for read in (load_suite, task, read_set)
          for name in ("my_pair.jsonl", "my_pairs.json", "my_pairs")),
        (load_suite, tmp_path / "my_piars.jsonl", f"did you mean {own}"),
        (task, "blimp:my_pair", rf"my_pair is missing: {near}"),
        (task, "blmp:my_pairs.jsonl", r"unknown format of a task 'blmp': did you mean blimp"),
        *((edit_file, spec, r"does not exist; did you mean changes.py\?$") for spec in ("change.py:f", "change.json")),
        (load_suite, "xyz.jsonl", "xyz.jsonl is no file; give one of"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=line):
            read(name)


def test_the_command_counts_the_bundled_suites(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--n", "50"])
    out = " ".join(capsys.readouterr().out.split())
    for text in ("29 prompts in 13 texts", "60 prompts in 60 texts", "100 prompts in 100 texts", "plurality"):
        assert text in out


def test_the_command_says_what_a_tokenizer_cannot_align(
    tmp_path: Path, stories_bpe: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file and of a run, whose context counts."""
    stories_bpe.save(tmp_path / "tokenizer.json")
    build("lfa", "tiny", tokenizer=stories_bpe, d_vocab=1024, n_ctx=20).save(tmp_path / "run")
    for name, how, options in (
        ("stories", {"n": 30}, ["--n", "30", "--tokenizer", str(tmp_path), "--n-ctx", "20"]),
        ("coreference", {}, ["--run", str(tmp_path / "run")]),
    ):
        main([name, *options])
        suite = load_suite(name, **how)
        aligned, out = align(suite, stories_bpe, 20), capsys.readouterr().out
        counts = len(suite.prompts), len(aligned.prompts), len(suite.pairs), len(aligned.pairs())
        assert 0 < counts[1] < counts[0] and re.search(r"all\s+│\s+│\s+{} │\s+{} │\s+{} │\s+{} ".format(*counts), out)
        assert "longer than the context" in out and aligned.filtered[0][0] in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--run", "r", "--tokenizer", "t"], "give --run or --tokenizer, not both"),
        (["--n-ctx", "9"], "--n-ctx 9: give --tokenizer or --run"),
        (["--run", "nowhere"], "nowhere is not a run folder"),
    ],
)
def test_the_command_refuses(argv: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        main(argv)


@pytest.mark.parametrize(
    ("name", "kinds"), [("stories", [996, 73, 74]), ("stories-words", [1000, 56, 56]), ("story-cases", [81, 72, 72])]
)
def test_stories_say_which_nouns_they_share(name: str, kinds: list[int]) -> None:
    suite = load_suite(name)
    labels = units(suite.prompts)
    found = [len(set(kind)) for kind in zip(*labels, strict=True)]
    assert found == kinds
    assert population(suite.prompts) == f"95 % for new words, {found[1]} target, {found[2]} competitor"
    assert not undecided(suite.prompts)
    for p, label in zip(suite.prompts, labels, strict=True):
        nouns = [p.text[slice(*p.roles[role])].lower() for role in ("target", "distractor")]
        assert list(label[1:]) == nouns
    if name == "story-cases":  # the cases of one story are one unit
        assert [label[0] for label in labels] == [p.id.replace("-cases", "").rsplit("-", 1)[0] for p in suite.prompts]


def test_words_are_read_from_a_file(tmp_path: Path) -> None:
    row = {"text": "A cat saw a dog. It", "roles": {"query": [17, 19], "target": [2, 5]}, "category": "c"}
    rows = [{**row, "id": str(i), "words": {"animal": "cat", "frame": f"f{i}"}} for i in range(2)]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert units(load_suite(path).prompts) == [("0", "cat", "f0"), ("0", "cat", "f1")]
    for words, message in (
        (["cat"], "words: Input should be an object"), ({"animal": ""}, "empty 'words'"),
        ({"frame": "f1"}, "of the same kinds in the same order"),
    ):  # fmt: skip
        path.write_text("\n".join(json.dumps(r) for r in (rows[0], {**rows[1], "words": words})))
        with pytest.raises(InputError, match=message):
            load_suite(path)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "hf"])
def test_prompts_of_tables_are_those_of_json_lines(suffix: str, tmp_path: Path) -> None:
    rows = [
        {"clean": "Tom saw Mia. Mia saw", "corrupt": "Tom saw Mia. Tom saw", "answers": [" Tom", " him"],
         "foils": [" Mia"]},
        {"clean": 'Ben, "big", saw Al. Al saw', "corrupt": "Ben, big, saw Al. Ben saw", "answers": [" Ben"],
         "foils": [" Al"]},
    ]  # fmt: skip
    lines, path = tmp_path / "mine.jsonl", tmp_path / f"mine.{suffix}"
    lines.write_text("\n".join(map(json.dumps, rows)))
    if suffix == "hf":
        pytest.importorskip("datasets").Dataset.from_list(rows).save_to_disk(str(path))
    elif suffix == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        cells = [{**row, "answers": json.dumps(row["answers"]), "foils": row["foils"][0]} for row in rows]
        pd.DataFrame(cells).to_csv(path, index=False)
    assert load_suite(f"hf:{path}" if suffix == "hf" else path).prompts == load_suite(lines).prompts


def test_answers_and_foils_stand_for_the_continuations(tmp_path: Path) -> None:
    """Also next to 'text', with and without roles; a corrupted text that is the text is named as such."""
    row = {"text": "Tom saw the dog. He saw the", "corrupt": "Tom saw the cat. He saw the", "answers": [" dog"],
           "foils": [" cat", " cow"]}  # fmt: skip
    path = tmp_path / "own.jsonl"
    for more in ({}, {"id": "a", "category": "x", "roles": {"query": [17, 19]}}):
        path.write_text(json.dumps(row | more) + "\n")
        (prompt,) = load_suite(str(path)).prompts
        assert (prompt.coherent, prompt.incoherent, prompt.foils) == (" dog", " cat", (" cat", " cow"))
    for wrong, line in (
        (row | {"corrupt": row["text"]}, "its corrupted text is the text"),
        ({name: row[name] for name in ("text", "corrupt")}, "has a corrupted text, but no answers and foils"),
    ):
        path.write_text(json.dumps(wrong) + "\n")
        with pytest.raises(InputError, match=line):
            load_suite(str(path))


def test_a_table_that_is_not_utf8_says_what_to_do(tmp_path: Path) -> None:
    path, text = tmp_path / "own.csv", "text,coherent,incoherent\nLéa saw, a, b\n"
    wrong = r"own.csv: not UTF-8 at byte \d+; convert the file to UTF-8"
    for content, line in (
        (text.encode("latin-1"), wrong), (text.encode("utf-16"), wrong), (b"", "own.csv: the file is empty"),
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(InputError, match=line):
            load_suite(str(path))


# ---- where roles lie in tokens -------------------------------------------------------------------


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
