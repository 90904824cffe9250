"""Trainings one after the other in the processes of one torchrun: python -m torch.distributed.run … ranks.py JOBS.

JOBS is a JSON list of [name, arguments of models.train, step at which process 1 alone gets SIGTERM, or null]. Every
process writes what became of its trainings to JOBS.RANK.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)

from streamscope.models.train import main  # noqa: E402
from streamscope.models.training.loop import Trainer  # noqa: E402
from streamscope.models.training.parallel import Ranks  # noqa: E402

Ranks.close = lambda self: None  # type: ignore[method-assign]  # one group for all trainings

jobs, rank = Path(sys.argv[1]), int(os.environ["RANK"])
update, found = Trainer.update, {}
for name, argv, stop in json.loads(jobs.read_text()):

    def stopped(self: Trainer, name: str = name, stop: int | None = stop) -> dict:
        if rank == 1 and self.step == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        values = update(self)
        found[name] = self.step
        return values

    Trainer.update = stopped  # type: ignore[method-assign]
    try:
        main(argv)
    except SystemExit as end:
        found[f"{name}, exit"] = end.code
jobs.with_suffix(f".{rank}").write_text(json.dumps(found))
