"""Measurements of `python -m benchmarks.probes`."""

from collections.abc import Callable
from statistics import median

from streamscope.benchmarks.probes import Options
from streamscope.benchmarks.timing import interleaved
from streamscope.instruments.open_data import given_prompts
from streamscope.instruments.prompts import align, check_tokenizer, load_suite
from streamscope.models.checkpoint import load
from streamscope.models.hooks import Query, run
from streamscope.probes.coherence import Coherence
from streamscope.probes.coreference import Coreference
from streamscope.probes.pds.measure import summary
from streamscope.probes.sps import Sps


def measure(options: Options) -> None:
    """Measure and print."""
    model = load(options.run)
    tokenizer = check_tokenizer(model)
    pairs, cases = (align(load_suite(s), tokenizer, model.config.n_ctx) for s in ("competing", "coreference"))
    prompts = given_prompts(pairs, model, tokenizer)

    def coreference(domain: str) -> None:
        for aligned in (cases, pairs):
            how = Coreference(domain=domain)  # type: ignore[arg-type]
            how.measure(model, given_prompts(aligned, model, tokenizer))

    tokens = (*pairs.tokens, *cases.tokens)
    steps: dict[str, Callable[[], object]] = {
        "forward pass alone": lambda: run(model, Query(tokens=tokens, logits=[[len(ids) - 1] for ids in tokens])),
        "pds": lambda: summary(model, pairs, tokenizer),
        "coreference, candidates": lambda: coreference("candidates"),
        "coreference, keys": lambda: coreference("keys"),
        "sps": lambda: Sps().measure(model, prompts),
        "coherence": lambda: Coherence().measure(model, prompts),
    }
    for step in steps.values():
        step()  # imports and first calls
    seconds = interleaved(steps, rounds=options.rounds)
    texts = len({p.text for p in cases.prompts})
    print(f"{model.config.name}, width {model.config.d_model}, {len(pairs.prompts)} prompts and {len(cases.prompts)} "
          f"instances in {texts} prompts, {model.cfg.dtype}, {model.cfg.device}")  # fmt: skip
    for name, times in seconds.items():
        print(f"{name:26s} {median(times):7.3f} s")
    total = sum(median(times) for name, times in seconds.items() if name != "forward pass alone")
    print(f"{'all probes':26s} {total:7.3f} s, {total / median(seconds['forward pass alone']):.1f} forward passes")
