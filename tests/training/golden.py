"""Golden trajectories: the first twenty losses of every preset at scale tiny, in `golden/<preset>.json`.

    python -m tests.training.golden --write     after a change that is meant to change numbers

A change of the loop, the optimiser, a recipe, the order of the data, an initialisation or a model shows in them. On the
machine that wrote them they are equal to the last bit; elsewhere to 1e-4, for kernels differ.
"""

import argparse
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent / "golden"
STEPS = 20


def fingerprint() -> dict[str, Any]:
    """What decides about the last bits of a loss on a CPU."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        fields = {k.strip(): v.strip() for k, v in lines.items()}
        cpu = " ".join(fields.get(k, "") for k in ("vendor_id", "cpu family", "model", "model name")).strip() or cpu
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "capability": capability, "cpu": cpu, "threads": 1}


def losses(preset: str) -> list[float]:
    """Twenty steps of eight sequences in two micro-batches, over more than one epoch, on one thread."""
    from streamscope.models import build
    from streamscope.models.training.config import Training, with_recipe
    from streamscope.models.training.data import prepare
    from streamscope.models.training.loop import Trainer
    from streamscope.models.training.run import Run
    from streamscope.text.shards import Windows
    from tests.tiny import corpus_text

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            train, valid = Path(folder) / "train.txt", Path(folder) / "valid.txt"
            train.write_text(corpus_text(40, 0))
            valid.write_text(corpus_text(8, 1))
            data = prepare(str(train), str(valid), None, 300)
            common: dict[str, Any] = {"steps": STEPS, "batch_size": 8, "accumulate": 2, "warmup": 2, "seed": 3}
            given = Training(**common, device="cpu", dtype="fp32", muon_dtype="fp32")
            training = with_recipe(given, preset, "tiny")
            torch.manual_seed(training.seed)
            model = build(preset, "tiny", tokenizer=data.tokenizer, d_vocab=300, seed=training.seed)
            windows = Windows(data.train, 32), Windows(data.valid, 32)
            trainer = Trainer(model, training, *windows, Run(Path(folder) / "run"), "cpu")
            assert trainer.per_epoch < STEPS, "an epoch must end within the trajectory"
            return [float(trainer.update()["loss"]) for _ in range(STEPS)]
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    from streamscope.models.config.presets import PRESETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the files anew")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as cache:
        os.environ["STREAMSCOPE_CACHE"] = cache
        for preset in PRESETS:
            path, found = FOLDER / f"{preset}.json", losses(preset)
            kept = json.loads(path.read_text())["losses"] if path.is_file() else found
            worst = max(abs(a / b - 1) for a, b in zip(found, kept, strict=True))
            print(f"{preset:14s} first {found[0]:.4f} last {found[-1]:.4f} largest relative change {worst:.1e}")
            if write:
                path.write_text(json.dumps({"fingerprint": fingerprint(), "losses": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
