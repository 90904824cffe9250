"""Tables of every command at a small size, recorded before a refactor and compared after it.

    python -m tests.project.golden record runs/golden            at the commit before, in its own checkout
    python -m tests.project.golden compare runs/golden           now: equal to 1e-6 (p to 1e-4), or each difference
    python -m tests.project.golden compare runs/golden --only ablate pds

A column that was renamed on purpose is listed in `RENAMED`, one that was dropped in `GONE`, with the reason.
"""

import argparse
import contextlib
import io
import re
import shlex
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
    "picture": "probes.picture lfa --text 'Leo found a bag and a chisel. He used it' --heads L2.H3 top2:induction",
    "picture-query": "probes.picture lfa --prompt 3 --query 27",
    "steer": "interventions.steer lfa --direction {directions/out.safetensors} --max-documents 8 --draws 2 "
    "--sample-tokens 4",
    "abliterate": "interventions.abliterate lfa --direction {directions/out.safetensors} --dense --max-documents 8 "
    "--draws 2",
    "steer-raw": "interventions.steer kromcanon --direction {directions-one/out.safetensors}:2 --layers 2-3 "
    "--streams s0 s2 --raw --scale 0 5 --max-documents 4 --draws 0 --sample-tokens 4",
    "head_groups": "probes.head_groups lfa --n 60",
    "ablation_effects": "interventions.ablation_effects pls --draws 2 --tasks capitalization-8 gender-16",
    "steer_heads": "interventions.steer_heads lfa --groups entity anchor --draws 0 --tasks capitalization-8 "
    "--max-documents 4",
    "hydra": "interventions.hydra lfa --heads L4-5.* --tasks capitalization-8",
    "latents": "interventions.latents hdpl --max-documents 8",
    "mixing_monitor": "probes.mixing_monitor kromcanon",
    "routing": "probes.routing dst-kron",
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
    "predict_effects": "features.predict_effects --features {features/out.parquet} "
    "--effects {token_effects/out.parquet} --resamples 200 --shuffles 2",
    "token_effects": "interventions.token_effects lfa --heads L5.* --max-tokens 1000",
    "phenomena": "probes.phenomena lfa --only repeats capitalization --sequences 4",
}
ESTIMATE = {"sd": "sd", "ci_low": "low", "ci_high": "high", "p": "p", "p_holm": "p_holm"}


def long_names(quantity: str) -> dict[str, str]:
    """The columns of an estimate are called after it: ci_low of the difference is difference_low."""
    return {old: f"{quantity}_{new}" for old, new in ESTIMATE.items()}


ABLATE = {
    **long_names("delta"), "loss": "edited", "condition": "edited", "difference": "delta",
    "p_above": "above_p", "p_above_holm": "above_p_holm",
    "p_interaction": "interaction_p", "p_interaction_holm": "interaction_p_holm",
}  # fmt: skip
RENAMED = {"amplify": long_names("delta"), "amplify/areas": long_names("area"),
           "steer_heads": {
               "mean": "level", "sd": "level_sd", "ci_low": "level_low", "ci_high": "level_high", "p": "change_p",
               "p_holm": "change_p_holm",
           },
           "steer_heads/curves": {},
           "linear": {**long_names("accuracy"), "groups": "clusters"},
           "streams": long_names("delta"), "steer": {"documents": "n"},
           "suppress": {**long_names("delta"), "difference": "delta", "condition": "edited"},
           "ablation_effects": {
               **long_names("delta"), "sd": "spread", "difference": "delta", "condition": "edited",
               "p_above": "above_p", "p_above_holm": "above_p_holm",
           },
           "ablation_effects/diagonality": {},
           "latents": {**long_names("delta"), "value": "amount"},
           "hydra": {}, "hydra/layers": {**long_names("compensation"), "mean": "compensation"},
           "suppress/asymmetry": {**long_names("asymmetry"), "difference": "asymmetry", "pairs": "n"},
           "suppress/ranking": long_names("difference"), "suppress/controls": {},
           "phenomena": long_names("value"), "pds": long_names("difference"), "ablate": ABLATE,
           "sps": long_names("sps"),
           "coherence": long_names("log_odds"), "coreference": {}, "heads": long_names("mean"),
           "specialization": long_names("value"),
           "head_groups": long_names("held_out"), "routing/heads": long_names("over_even"),
           "cluster/depth": {**long_names("share"), "tokens": "group", "n": "tokens"},
           "cluster/agreement": long_names("value"), "cluster": {}, "profile": {},
           "predict_effects": {"ci_low": "r2_low", "ci_high": "r2_high"},
           "patch": {"sd": "recovery_sd", "ci_low": "recovery_low", "ci_high": "recovery_high", "p": "effect_p",
                     "p_holm": "effect_p_holm"}}  # fmt: skip
"""By the command's name up to the first hyphen, or that and a table's name."""
GONE = {
    "cluster": {"undefined": "reasons name the new columns"},
    "directions": {
        "run": "a column where several runs are measured", "undefined": "reasons name the new columns",
        "run_a": "runs are called by their titles, as in every table", "run_b": "as run_a",
    },
    "linear": {
        "undefined": "reasons name the new columns", "accuracy_sd": "between independent groups now, as everywhere"
    },
    "steer_heads": {
        "undefined": "reasons name the new columns", "model": "a table per run; the control is in the differences"
    },
    "steer": {"undefined": "reasons name the new columns", "sample": "samples are a table of their own"},
    "streams": {"undefined": "reasons name the new columns"},
    "ablation_effects": {
        "undefined": "reasons name the new columns", "t": "with p and its interval it says nothing new", "df": "as t",
        "d_pooled": "it was d", "d_pooled_n": "equal to d for paired cases", "d_kind": "d is pooled",
        "model": "a table per run; the control is in the tables of differences",
    },
    "latents": {"undefined": "reasons name the new columns"},
    "hydra": {
        "undefined": "reasons name the new columns", "part": "of layers it is in `place`",
    },
    "suppress": {
        "undefined": "reasons name the new columns", "t": "with p and its interval it says nothing new", "df": "as t",
        "d_pooled": "it was d", "d_pooled_n": "equal to d for paired cases", "d_kind": "d is pooled",
        "delta_sd": "between independent cases now, as everywhere", "kind": "a table of whole, one of parts",
        "dropped": "clusters and n say what is in",
    },
    "amplify": {
        "undefined": "reasons name the new columns", "sample": "samples are a table of their own",
        "model": "a table per run; the control is in the tables of differences", "measure": "a table for each",
    },
    "patch": {"undefined": "reasons name the new columns"},
    "coreference": {"undefined": "reasons name the new columns"},
    "specialization": {"se": "with the interval it says nothing new", "undefined": "reasons name the new columns"},
    "mixing_monitor": {
        "run": "a column where several runs are measured", "undefined": "reasons name the new columns"
    },
    "routing": {"undefined": "reasons name the new columns"},
    "head_groups": {"undefined": "reasons name the new columns"},
    "heads": {"undefined": "reasons name the new columns"},
    "coherence": {"undefined": "reasons name the new columns"},
    "sps": {"undefined": "reasons name the new columns"},
    "pds": {"undefined": "reasons name the new columns"},
    "phenomena": {
        "undefined": "reasons name the new columns", "run": "a column where several runs are measured",
        "preset": "it is in `model`",
    },
    "ablate": {
        "undefined": "reasons name the new columns",
        "measure": "one table per measure",
        "t": "with p and its interval it says nothing new", "df": "as t",
        "d_pooled": "it was d", "d_pooled_n": "equal to d for paired cases", "d_kind": "d is pooled",
        "delta_sd": "of prompts it is between independent cases now, as everywhere",
        "model": "a table per run; the control is in the table of differences",
        "n": "documents, and prompts; in both also independent cases as `clusters`",
    },
}  # fmt: skip
CONTRACT = {
    "ablate", "ablation_effects", "abliterate", "amplify", "cluster", "coherence", "coreference", "directions",
    "features", "head_groups", "heads", "hydra", "latents", "linear", "mixing_monitor", "patch", "pds", "phenomena",
    "picture", "predict_effects", "profile", "routing", "specialization", "sps", "steer", "steer_heads", "streams",
    "suppress", "token_effects",
}  # fmt: skip
"""Commands that are on the contract: their tables of controls are wide, a run's table is its own."""
CLUSTER_SUMMARY = {
    "tokens": "tokens", "documents": "documents", "distinct vectors": "distinct", "columns used": "columns",
    "columns zero by construction, left out": "zero", "clusters": "clusters", "coverage": "coverage",
    "coverage, 95 % low": "coverage_low", "coverage, 95 % high": "coverage_high", "principal components": "components",
    "variance they explain": "variance", "largest cluster": "largest", "median cluster": "median",
    "clusters of one distinct vector": "single", "σ(k*) within clusters, mean over tokens": "sd",
    "σ(k*), tokens dealt at random": "dealt", "share of clusters with σ(k*) = 0": "flat",
}  # fmt: skip
"""Rows of what was a table of quantities -> columns of its one row."""
OBSERVED = {"rows": "the observations, cells × units, are kept instead (Observations.frame)"}
TABLES_GONE = {
    "cluster": {"undefined": "reasons name the new columns"},
    "ablation_effects": {"cases": OBSERVED["rows"]},
    "pds": OBSERVED,
    "sps": OBSERVED,
    "coherence": OBSERVED,
    "coreference": {**OBSERVED, "stability": "pairs are kept as observations; the table is their means"},
}


def record(folder: Path, only: set[str]) -> None:
    """Write <command>/*.parquet of every command below the folder."""
    for name, line in COMMANDS.items():
        if only and name not in only:
            continue
        for made in re.findall(r"{(.*?)}", line):  # a file that another command writes
            if not (folder / made).is_file():
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


def differences(old: pd.DataFrame, new: pd.DataFrame, kind: str) -> list[str]:
    """What is not the same, a line each."""
    lines = [f"column {c} is gone" for c in old if c not in new and c not in GONE.get(kind, {})]
    if len(old) != len(new):
        return [*lines, f"{len(new)} rows for {len(old)}"]
    for column in (c for c in old if c in new and c not in GONE.get(kind, {})):
        a, b = old[column], new[column]
        if pd.api.types.is_numeric_dtype(a) and pd.api.types.is_numeric_dtype(b):
            limit = 1e-4 if column.startswith("p_") or column == "p" else 1e-6
            close = np.isclose(a.astype(float), b.astype(float), rtol=limit, atol=limit, equal_nan=True)
        else:
            close = np.array([str(x) == str(y) for x, y in zip(a, b, strict=True)])
        if not close.all():
            at = int(np.flatnonzero(~close)[0])
            lines.append(f"{column}: {(~close).sum()} of {len(close)} differ, row {at}: {a[at]!r} is now {b[at]!r}")
    return lines


def controls(old: pd.DataFrame, folder: Path, name: str, family: str) -> list[str]:
    """An old table of run, control and difference by measure, against the new ones with a group of columns each."""
    lines = []
    for measure, rows in old.groupby("measure", sort=False):
        table = "percent" if measure == "percent" else name
        quantity = "delta" if measure == name else str(measure)
        if family == "amplify":  # a block for each measure
            table, quantity = "areas" if measure == "area" else str(measure), str(measure)
        new = pd.read_parquet(folder / f"out-{table}-control.parquet")
        rows = rows.reset_index(drop=True)
        names = {"run": f"{quantity}_run", "control": f"{quantity}_control", "difference": f"{quantity}_difference"}
        names |= {old: f"{quantity}_difference_{new}" for old, new in ESTIMATE.items()}
        lines += differences(rows.rename(columns=names), new, family)
    return lines


def now_of(again: Path, old: Path, family: str) -> pd.DataFrame:
    """The new table for an old one; a table that is the only one is the main one, and one may have become several."""
    if family == "profile":
        return pd.read_parquet(again / ("out.parquet" if old.stem == "profiles" else f"out-{old.stem}.parquet"))
    if family == "cluster":
        made = {"clusters": "out", **{name: f"out-{name}" for name in ("depth", "labels", "agreement", "stability")}}
        if old.stem != "summary":
            table = pd.read_parquet(again / f"{made[old.stem]}.parquet")
            ends = dict.fromkeys(
                ("share_low", "share_high"), table.get("share")
            )  # were no interval, but the value twice
            return table.fillna(ends) if old.stem == "depth" else table
        row = pd.read_parquet(again / "out-summary.parquet").iloc[0]
        names = pd.read_parquet(old)["quantity"]
        row = row.fillna({f"coverage_{end}": row["coverage"] for end in ("low", "high")})  # as of depth
        return pd.DataFrame({"quantity": names, "value": [float(row[CLUSTER_SUMMARY[name]]) for name in names]})
    if family == "specialization":
        parts = {"HSS": "out.parquet", "entropy": "out-entropy.parquet"}
        tables = []
        for name, file in parts.items():
            table = pd.read_parquet(again / file)
            table.columns = [column.replace(name.lower(), "value") for column in table]
            tables.append(table.assign(measure=name))
        return pd.concat(tables, ignore_index=True)
    if family == "ablation_effects" and old.name == "out.parquet":  # a table for each measure
        names = {"probability": "out.parquet", "log_odds": "out-log_odds.parquet"}
        table = pd.concat([pd.read_parquet(again / file).assign(measure=name) for name, file in names.items()])
        rows = pd.read_parquet(old)[["task", "group", "measure"]]
        return rows.merge(table, how="left", validate="1:1") if len(rows) == len(table) else table
    if family == "hydra" and old.name == "out.parquet":  # a row for each part
        wide, parts = pd.read_parquet(again / "out.parquet"), []
        shared = ["task", "group", "heads", "n", "clusters", "unexplained"]
        for part in dict.fromkeys(pd.read_parquet(old)["part"]):
            names = {part: "mean"} | {f"{part}_{new}": name for name, new in ESTIMATE.items()}
            made = [c for c in wide if c.startswith("made_up")] if part == "compensation" else []
            parts.append(wide[[*shared, *names, *made]].rename(columns=names).assign(part=part))
        return pd.read_parquet(old)[["task", "group", "part"]].merge(pd.concat(parts), how="left", validate="1:1")
    if family == "suppress" and old.name == "out.parquet":  # by relation and layer is a table of its own
        keys = ["selection", "group", "gate", "measure", "part"]
        table = pd.concat([pd.read_parquet(again / name) for name in ("out.parquet", "out-parts.parquet")])
        rows = pd.read_parquet(old)[keys]
        return rows.merge(table, on=keys, how="left", validate="1:1") if len(rows) == len(table) else table
    if family == "steer_heads" and old.name == "out.parquet":  # a table for each measure
        names = {"probability": "out.parquet", "log_odds": "out-log_odds.parquet", "loss": "out-loss.parquet"}
        table = pd.concat([pd.read_parquet(again / file).assign(measure=name) for name, file in names.items()])
        rows = pd.read_parquet(old)[["measure", "task", "group", "scale"]]
        return rows.merge(table, how="left", validate="1:1") if len(rows) == len(table) else table
    return pd.read_parquet(again / old.name if (again / old.name).exists() else again / "out.parquet")


def compare(folder: Path, only: set[str]) -> int:
    """Run the commands again; the number of tables that differ."""
    wrong = 0
    with tempfile.TemporaryDirectory() as now:
        record(Path(now), only)
        for path in sorted(folder.glob("*/*.parquet")):
            kind = path.parent.name
            if only and kind not in only:
                continue
            family, name = path.parent.name.split("-")[0], path.stem.removeprefix("out").removeprefix("-")
            if name in TABLES_GONE.get(family, {}):
                continue
            again = Path(now) / kind
            old = pd.read_parquet(path)
            if family in CONTRACT and name.endswith("control"):
                lines = controls(old, again, name.removesuffix("control").removesuffix("-") or "loss", family)
            elif not (again / path.name).exists() and len(CONTRACT & {family}) == 0:
                lines = ["the table is gone"]
            else:
                new_table = now_of(again, path, family)
                renamed = RENAMED.get(f"{family}/{name}", RENAMED.get(family, {}))
                if family in CONTRACT and "model" in old:
                    old = old[old["model"] == old["model"].iloc[0]].reset_index(drop=True)
                lines = differences(old.rename(columns=renamed), new_table, family)
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
