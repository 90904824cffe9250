"""Checks that run in a process of their own: the functions `check_*` of a test file, which is also the script."""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def outcomes_of(file: str) -> dict[str, str]:
    """Check -> error, "" for none, of all checks of a file; from one fresh process in which warnings are errors."""
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-W", "error", str(Path(file).resolve())]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run_checks(members: Mapping[str, Any]) -> None:
    outcomes = {}
    for name in sorted(name for name in members if name.startswith("check_")):
        try:
            members[name]()
            outcomes[name] = ""
        except Exception:  # reported by the test
            outcomes[name] = traceback.format_exc(limit=-4)
    print(json.dumps(outcomes))
