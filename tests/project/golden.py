"""Tables of every command at a small size, recorded before a refactor and compared after it.

    python -m tests.project.golden record runs/golden            at the commit before, in its own checkout
    python -m tests.project.golden compare runs/golden           now: equal to 1e-6 (p to 1e-4), or each difference
    python -m tests.project.golden compare runs/golden --only ablate pds

A column that a refactor renames on purpose is listed in `RENAMED`, one that it drops in `GONE`, with the reason.
"""

import argparse
import contextlib
import io
import re
import shlex
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd

COMMANDS = {
    "ablate": "interventions.ablate lfa --heads L4.* --scale 0 0.5 1 --max-documents 12 --draws 5",
    "ablate-mean": "interventions.ablate lfa --heads L4.* --method mean --max-documents 12 --draws 5",
    "ablate-resample": "interventions.ablate lfa --heads L4.* --method resample --max-documents 12 --draws 5",
    "ablate-pairs": "interventions.ablate pls --heads L1.* L5.* --size 2 --max-documents 8 --draws 3",
    "ablate-prompts": "interventions.ablate lfa --heads L1.H0-2 L5.H0 top2:pds --measures loss sps coherence "
    "--max-documents 8 --draws 4",
    "ablate-together": "interventions.ablate lfa --heads L1.H0-2 L2.H1 --together --measures sps --draws 4",
    "ablate-control": "interventions.ablate pls --control c2 --heads L1.H0-2 --measures loss coherence "
    "--max-documents 8 --draws 3",
    "ablate-control-sets": "interventions.ablate pls --control c2 --heads L1.* --size 2 --sets 6 --max-documents 8",
    "pds": "probes.pds lfa",
    "pds-own": "probes.pds std-t --threshold own --per-pair",
    "pds-reference": "probes.pds kromcanon --reference std-t",
    "pds-stories": "probes.pds pls --suite stories --n 60",
    "coreference": "probes.coreference lfa",
    "sps": "probes.sps lfa",
    "coherence": "probes.coherence lfa",
    "heads": "probes.heads lfa",
    "specialization": "probes.specialization lfa",
    "amplify": "interventions.amplify lfa --max-documents 8 --alpha 1 2 8 --sample-tokens 4",
    "amplify-control": "interventions.amplify pls --control c2 --max-documents 8 --alpha 1 2 8 --sample-tokens 4",
    "streams": "interventions.streams lfa --max-documents 8 --draws 2",
    "suppress": "interventions.suppress lfa --draws 20 --k 1 --gates 1 0 --measures sps coherence",
    "patch": "interventions.patch lfa --pairs 4 --hooks z",
    "directions": "probes.directions lfa --draws 3",
    "directions-one": "probes.directions kromcanon --draws 0",
    "directions-runs": "probes.directions kromcanon kromcanon-b2 --a happy --b sad --draws 2",
    "linear": "probes.linear lfa --stories 60 --hooks blocks.*.hook_resid_post",
    "linear-control": "probes.linear lfa --task gender --stories 60 --hooks hook_embed",
    "picture": "probes.picture lfa --text 'Eva and Max waved. She' --heads L2.H3 top2:induction",
    "picture-query": "probes.picture lfa --prompt 3 --query 27",
    "steer": "interventions.steer lfa --direction {directions/out.safetensors} --max-documents 8 --draws 2 "
    "--sample-tokens 4",
    "abliterate": "interventions.abliterate lfa --direction {directions/out.safetensors} --dense --max-documents 8 "
    "--draws 2",
    "steer-raw": "interventions.steer kromcanon --direction {directions-one/out.safetensors}:2 --layers 2-3 "
    "--streams s0 s2 --raw --scale 0 5 --max-documents 4 --draws 0 --sample-tokens 4",
    "head_groups": "probes.head_groups lfa --n 60",
    "ablation_effects": "interventions.ablation_effects pls --draws 2 --tasks capitalization-8 gender-16",
    "dictionaries": "features.dictionaries lfa --data stories:1:60 --max-tokens 6000 --width 64 --batch 256",
    "dictionary_quality": "features.dictionary_quality lfa --max-documents 12",
    "lenses": "probes.lenses lfa --hooks blocks.[03].* --max-documents 12 --steps 4 --texts 2",
    "interchange": "interventions.interchange lfa --hooks blocks.3.hook_context_post --pairs 60 --n 400",
    "steer_heads": "interventions.steer_heads lfa --groups entity anchor --draws 0 --tasks capitalization-8 "
    "--max-documents 4",
    "hydra": "interventions.hydra lfa --heads L4-5.* --tasks capitalization-8",
    "latents": "interventions.latents hdpl --max-documents 8",
    "mixing": "interventions.mixing kromcanon-b2 --where everywhere L2.* --draws 2 --max-documents 8",
    "mixing_monitor": "probes.mixing_monitor kromcanon",
    "routing": "probes.routing dst-kron",
    "contraction": "probes.contraction kromcanon-b2 --max-documents 8",
    "dual-path": "probes.dual_path hdpl --max-documents 8",
    "features": "features.extract lfa --tier topk --max-tokens 1000",
    "features-raw": "features.extract lfa --max-tokens 1000 --raw",
    "features-core": "features.extract kromcanon --tier core --max-tokens 500 --logits-row next",
    "features-options": "features.extract pls --tier structural+position --max-tokens 500 --kstar strict "
    "--target truth --traj-prob raw --kappa-target final --gate-reduce norm --window 3",
    "cluster": "features.cluster --features {features/out.parquet} --stability 2",
    "cluster-kmeans": "features.cluster --features {features-raw/out.parquet} --raw {features-raw/out-raw.parquet} "
    "--method kmeans --no-umap --stability 1 --resamples 200",
    "profile": "features.profile --features {features/out.parquet} --clusters {cluster/out.parquet}",
    "needed_context": "features.needed_context pls --max-tokens 1000 --depths 0 1-5 6",
    "predict_effects": "features.predict_effects --features {features/out.parquet} "
    "--effects {token_effects/out.parquet} --resamples 200 --shuffles 2",
    "token_effects": "interventions.token_effects lfa --heads L5.* --max-tokens 1000",
    "circuits": "interventions.circuits lfa --pairs 8 --method eap-ig",
    "circuits-exact": "interventions.circuits std-t-rope --task competing --pairs 4 --method exact",
    "circuits-streams": "interventions.circuits dst-kron kromcanon --pairs 4 --method eap",
    "circuits-gated": "interventions.circuits hdpl pls --pairs 4 --method acdc",
    "logit_lens": "probes.logit_lens lfa kromcanon --text 'Eva and Max waved. She'",
    "direct_logit_attribution": "probes.direct_logit_attribution lfa",
    "direct_logit_attribution-hyper": "probes.direct_logit_attribution kromcanon dst-kron --tasks gender",
    "ablate-hf": "interventions.ablate hf:{hf/model} --heads all --max-documents 4 --draws 3",
    "ablate-gates": "interventions.ablate kromcanon dst-kron --heads L0.* --max-documents 4 --draws 3",
    "patch-hf": "interventions.patch hf:{hf/model} --pairs 4 --hooks z resid_pre",
    "logit_lens-hf": "probes.logit_lens hf:{hf/model} --text 'A big dog ran'",
    "circuits-hf": "interventions.circuits hf:{hf/model} --task ioi --pairs 6 --method eap",
    "phenomena": "probes.phenomena lfa --only repeats capitalization --sequences 4",
}
RENAMED: dict[str, dict[str, str]] = {
    "coherence": {"relation": "category"},
    "coreference": {"ci_low": "difference_low", "ci_high": "difference_high", "p": "difference_p"},
    "routing": {"ci_low": "slope_low", "ci_high": "slope_high", "p": "slope_p"},
}
"""Old column -> new one, by the command's name up to the first hyphen. Empty again once a refactor has landed."""
GONE: dict[str, dict[str, str]] = {}
"""Column that is not there any more -> why, likewise."""


def library_model(folder: Path) -> None:
    """A small random model of the library with the bundle's tokenizer: what `hf:` commands are run on."""
    import torch
    import transformers

    torch.manual_seed(3)
    sizes = dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    config = transformers.LlamaConfig(vocab_size=2051, intermediate_size=80, initializer_range=0.3, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    shutil.copy(Path(__file__).parents[2] / "models/zoo/lfa/tokenizer.json", folder)


def record(folder: Path, only: set[str]) -> None:
    """Write <command>/*.parquet of every command below the folder."""
    for name, line in COMMANDS.items():
        if only and name not in only:
            continue
        for made in re.findall(r"{(.*?)}", line):  # a file that another command writes
            if made == "hf/model":
                if not (folder / made).is_dir():
                    library_model(folder / made)
            elif not (folder / made).is_file():
                record(folder, {made.split("/")[0]})
            line = line.replace(f"{{{made}}}", str(folder / made))
        module, *argv = shlex.split(line)
        to = folder / name
        to.mkdir(parents=True, exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            import_module(module).main([*argv, "--out", str(to / "out.parquet")])
        print(name, ", ".join(sorted(p.name for p in to.glob("*.parquet"))), flush=True)
        for page in to.glob("*.html"):
            page.unlink()


def unordered(frame: pd.DataFrame, added: set[str]) -> pd.DataFrame:
    """A table whose order says nothing in one order: cells of observations, and the columns of a reason but `added`."""
    if {"block", "cell", "total"} <= set(frame):
        totals = pd.DataFrame([dict(enumerate(np.round(row, 3))) for row in frame["total"]])
        order = pd.concat([frame["block"].rename("block"), totals.fillna(-1.0)], axis=1)
        rows = order.sort_values(list(order), kind="stable").index
        lists = {name: frame[name].loc[rows] for name in ("total", "size")}
        wide = {n: pd.DataFrame([dict(enumerate(x)) for x in some]).add_prefix(f"{n} ") for n, some in lists.items()}
        return pd.concat([frame["block"].loc[rows].reset_index(drop=True), *wide.values()], axis=1)
    if "undefined" in frame:
        texts = [text.split("; ") if text else [] for text in frame["undefined"]]
        parts = [[one.partition(": ") for one in some] for some in texts]
        pairs = [{(n, why) for names, _, why in some for n in names.split(", ") if n not in added} for some in parts]
        return frame.assign(undefined=list(map(sorted, pairs)))
    return frame


def differences(old: pd.DataFrame, new: pd.DataFrame, kind: str) -> list[str]:
    """What is not the same, a line each."""
    old, new = (unordered(frame, set(new) - set(old)) for frame in (old, new))
    lines = [f"column {c} is gone" for c in old if c not in new and c not in GONE.get(kind, {})]
    if len(old) != len(new):
        return [*lines, f"{len(new)} rows for {len(old)}"]
    for column in (c for c in old if c in new and c not in GONE.get(kind, {})):
        a, b = old[column], new[column]
        if pd.api.types.is_numeric_dtype(a) and pd.api.types.is_numeric_dtype(b):
            sums = column.startswith("total ")  # of single precision, a case each
            limit = 1e-4 if {"p"} & set(column.split("_")) else 1e-5 if sums else 1e-6
            close = np.isclose(a.astype(float), b.astype(float), rtol=limit, atol=limit, equal_nan=True)
        else:
            close = np.array([str(x) == str(y) for x, y in zip(a, b, strict=True)])
        if not close.all():
            at = int(np.flatnonzero(~close)[0])
            lines.append(f"{column}: {(~close).sum()} of {len(close)} differ, row {at}: {a[at]!r} is now {b[at]!r}")
    return lines


def compare(folder: Path, only: set[str]) -> int:
    """Run the commands again; the number of tables that differ."""
    wrong = 0
    with tempfile.TemporaryDirectory() as now:
        record(Path(now), only)
        for path in sorted(folder.glob("*/*.parquet")):
            kind = path.parent.name
            if only and kind not in only:
                continue
            family, again = kind.split("-")[0], Path(now) / kind / path.name
            if again.exists():
                old = pd.read_parquet(path).rename(columns=RENAMED.get(family, {}))
                lines = differences(old, pd.read_parquet(again), family)
            else:
                lines = ["the table is gone"]
            wrong += bool(lines)
            for line in lines:
                print(f"{kind}/{path.name}: {line}")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=())
    options = parser.parse_args()
    if options.what == "record":
        record(options.folder, set(options.only))
    else:
        found = compare(options.folder, set(options.only))
        print(f"{found} tables differ")
        sys.exit(found > 0)
