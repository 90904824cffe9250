"""Somebody's code beside ours: a stand-in for theirs that is right, one that is not, and folders that hold neither."""

import os
import sys
from pathlib import Path

import datasets
import pandas as pd
import pytest

from streamscope.cli.errors import InputError
from streamscope.papers.peers import main
from streamscope.papers.peers.measure import TPU, their_code

THEIRS = """
import torch
from torch import nn

class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(d))

class HyperConnections(nn.Module):
    def __init__(self, n, *, dim, layer_index, tanh=True):
        super().__init__()
        self.n, self.act, self.norm = n, torch.tanh if tanh else nn.Identity(), Norm(dim)
        self.static_alpha = nn.Parameter(torch.cat([torch.eye(n)[:, [layer_index]], torch.eye(n)], 1))
        self.static_beta = nn.Parameter(torch.ones(n))
        self.dynamic_alpha_fn = nn.Parameter(torch.zeros(dim, n + 1))
        self.dynamic_beta_fn = nn.Parameter(torch.zeros(dim))
        self.dynamic_alpha_scale = nn.Parameter(torch.tensor(0.01))
        self.dynamic_beta_scale = nn.Parameter(torch.tensor(0.01))

    def decorate_branch(self, branch):
        def forward(x):
            X = x.unflatten(0, (-1, self.n)).transpose(1, 2)
            h = X / X.norm(dim=-1, keepdim=True) * X.shape[-1] ** 0.5 * (self.norm.gamma + 1)
            alpha = self.act(h @ self.dynamic_alpha_fn) * self.dynamic_alpha_scale + self.static_alpha
            beta = self.act(h @ self.dynamic_beta_fn) * self.dynamic_beta_scale + self.static_beta
            mixed = alpha.mT @ X
            out = mixed[..., 1:, :] + beta[..., None] * branch(mixed[..., 0, :])[..., None, :]
            return out.transpose(1, 2).flatten(0, 1)
        return forward
"""


def code(folder: Path, text: str = THEIRS) -> Path:
    package = folder / "hyper_connections"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "hyper_connections.py").write_text(text)
    return folder


def test_equal_code_is_equal_to_rounding(tmp_path: Path) -> None:
    out = tmp_path / "peers.parquet"
    main(["--hyper-connections", str(code(tmp_path / "site")), "--out", str(out)])
    found = pd.read_parquet(out)
    assert list(found["computed"]) == ["float64", "float32"] * 2 and (found["stored"] == found["computed"]).all()
    assert (found["roundings"] < 20).all() and (found["difference"] > 0).any()
    assert "hyper_connections" not in sys.modules


@pytest.mark.parametrize(
    "change", ["gamma + 1>gamma + 1.01", "alpha.mT>alpha.roll(1, -1).mT", "beta_scale +>beta_scale *"]
)
def test_other_code_is_not(change: str, tmp_path: Path) -> None:
    before, after = change.split(">")
    assert before in THEIRS
    folder, out = code(tmp_path / "site", THEIRS.replace(before, after)), tmp_path / "peers.parquet"
    main(["--hyper-connections", str(folder), "--out", str(out)])
    found = pd.read_parquet(out)
    assert (found["difference"] > 1e-3).all()


def test_what_cannot_be_compared_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "kromcanon"
    package.mkdir(parents=True)
    (package / "config.py").write_text("")
    (package / "model.py").write_text("import mlx.core")
    monkeypatch.setitem(sys.modules, "mlx", None)
    for argv, line in (
        ([], "name the folder of somebody's code"), (["--hdpl", str(tmp_path / "gone")], "is no folder: name a clone"),
        (["--kromhc", str(tmp_path)], "cannot be imported: No module named 'hyper_conn'"),
        (["--kromcanon", str(tmp_path)], r"src cannot be imported: .*mlx"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=line):
            main(argv)


def test_their_script_finds_stand_ins_and_leaves_nothing(tmp_path: Path) -> None:
    lines = ["import os", "import torch_xla.core.xla_model as xm", "from datasets import load_dataset"]
    (tmp_path / "training_script.py").write_text("\n".join([*lines, "os.environ['X_OF_PEERS'] = '1'"]))
    path = list(sys.path)
    with their_code(tmp_path, "training_script", absent=TPU) as (script,):
        assert script.load_dataset is not datasets.load_dataset and "X_OF_PEERS" in os.environ
        script.xm.master_print("nothing happens")
    assert not {"training_script", "torch_xla", "torch_xla.core"} & set(sys.modules)
    assert sys.modules["datasets"] is datasets and "X_OF_PEERS" not in os.environ and sys.path == path
