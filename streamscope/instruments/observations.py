"""What instruments saw, and every estimate made from it.

An instrument observes *cells* (a head scaled to 0, the unedited model, a random head instead) on *units* (documents,
minimal pairs, cases): a total y and a size n for each cell k and unit u. Every estimate is a *contrast* of cells:

    R_k = a Σ_u y_ku / Σ_u n_ku + b        estimate = Σ_k w_k R_k

A change is {edited: 1, unedited: −1}; what a head costs beyond others is {edited: 1, each of the D drawn: −1/D}; an
interaction is {set: 1, each head: −1, unedited: |S| − 1}; a run against its control has every weight once with + and
once with −. One function makes all of them, and their errors follow the design of the experiment:

    e_u = Σ_k w_k a (y_ku − R̂_k n_ku) / Σ_u n_ku        Var = D/(D−1) Σ over units that share a label of e_u e_u'

(linearised ratios, multi-way clusters: `instruments.stats.estimators`), R̂ without a and b. t has Satterthwaite's
degrees of freedom for units of unequal sizes (`estimators.degrees_of_freedom`).

A unit need not be in every cell: a token's prediction settles early or late, not both. A contrast over `own_units`
takes each R_k over the units of its cell, which lies in D_k of the D clusters. Its share of e_u is multiplied by
sqrt(D_k/(D_k−1) · (D−1)/D), and t has at most Satterthwaite's degrees of freedom of a sum of independent means,
(Σ v_k)² / Σ (v_k²/df_k), where v_k = w_k²/df_k stands for equal variances between clusters. `clusters` is the smallest
D_k. So the cell in the fewest clusters decides.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from scipy.special import stdtr, stdtrit

from streamscope.cli.errors import InputError
from streamscope.cli.terminal import counted
from streamscope.instruments.stats.estimators import (
    BOOTSTRAP_CLUSTERS,
    UPPER,
    Clusters,
    bounded_interval,
    cluster_totals,
    clustered_square,
    degrees_of_freedom,
    holm,
    inside,
    read_clusters,
    score_p,
    statistic_interval,
    wilson,
)

Reasons = dict[tuple[int, str], str]  # (row, column) -> why that cell of a table has no value


def reasons_of(reasons: Reasons, rows: Iterable[int]) -> Reasons:
    places = {old: new for new, old in enumerate(rows)}
    return {(places[row], name): reason for (row, name), reason in reasons.items() if row in places}


ONE_UNIT, SAME = "one independent case", "the same in every independent case"
ZERO = "the denominator is 0 in some resamples"
NOWHERE = "no unit is in all cells of this contrast"
NUMBERS = ("value", "sd", "low", "high", "p", "p_holm")
TESTED = ("low", "high", "p", "p_holm")
MOST_NUMBERS = 2_000_000  # contrasts × units that are estimated at once


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What is measured; of totals y and sizes n the value is factor · Σy / Σn + shift.

    A mean over tokens has a document's sum as y and its number of tokens as n; a number per unit has size 1."""

    name: str
    unit: str
    resolution: float
    """What rounding alone can change in one unit's y/n, in the measure's units. If all units agree within
    it, no interval and no test is reported."""
    factor: float = 1.0
    shift: float = 0.0
    """With a factor of 100 and a shift of −100 a ratio to a baseline is a percentage of change."""
    kind: Literal["ratio", "share"] = "ratio"
    """A share counts hits (0 or 1) among units of size 1: the interval of one cell is Wilson's, never outside 0 and 1
    (`estimators.wilson`), and there also where all or none hit; its p is the score test's."""
    inflation: float = 1.0
    """Factor by which the variance exceeds that of independent units. It is above 1 for cross-validated hits, because
    folds share training data (`probes.linear`)."""
    limits: tuple[float, float] | None = None
    """The least and the largest possible value of a cell. The interval of a cell, or of a mean of cells, then holds
    where values are skewed and stays inside (`estimators.bounded_interval`), also over training seeds. All others,
    and p, are t's; the interval of a difference ends where two such values can be no further apart."""

    @property
    def ends(self) -> tuple[float, float]:
        """The limits, those of a share or none."""
        return (0.0, 1.0) if self.kind == "share" else self.limits or (-np.inf, np.inf)


@dataclass(frozen=True, kw_only=True)
class Observations:
    """Totals and sizes [cells, units]; size 0, and then the total NaN, says that the unit was not measured in the cell.

    `cells` is a table of keys (head, scale, draw …), one row per cell; `units` has the columns unit (its name) and
    cluster (one label, or a tuple of labels of several kinds), and what else is known of a unit. Values are raw: the
    unedited model is a cell, and controls are cells.
    """

    measure: Measure
    cells: pd.DataFrame
    units: pd.DataFrame
    total: np.ndarray
    size: np.ndarray | float
    sizes: np.ndarray = field(init=False)
    """[cells, units]"""
    inside: np.ndarray = field(init=False)
    """[cells, units] whether the unit is in the cell."""

    def __post_init__(self) -> None:
        shape = (len(self.cells), len(self.units))
        total, size = np.asarray(self.total, float), np.broadcast_to(np.asarray(self.size, float), shape)
        if total.shape != shape or not shape[1]:
            raise InputError(f"{shape[0]} cells, {counted(shape[1], 'unit')}, but totals of shape {total.shape}")
        if missing := {"unit", "cluster"} - set(self.units):
            raise InputError(f"units need the columns unit and cluster, here is no {' and no '.join(sorted(missing))}")
        if clash := {"total", "size"} & set(self.cells):
            raise InputError(f"a key of cells may not be called {min(clash)!r}")
        if self.units["unit"].duplicated().any():
            raise InputError(f"unit {self.units['unit'][self.units['unit'].duplicated()].iloc[0]!r} is there twice")
        if not (size >= 0).all() or np.isinf(size).any():
            raise InputError(f"{self.measure.name}: sizes must be numbers from 0 up; 0: the unit is not in the cell")
        inside = size > 0
        if (wrong := inside & ~np.isfinite(total)).any():
            value, count = total[wrong][0], f"{wrong.sum()} of {inside.sum()} values"
            raise InputError(f"{self._place(wrong)} is {value}, which is no finite number: {count}")
        if (wrong := ~inside & ~np.isnan(total) & (total != 0)).any():
            raise InputError(f"{self._place(wrong)} has a total, but the size 0, which says that it is not measured")
        self.__dict__.update(total=np.where(inside, total, np.nan), size=size, sizes=size, inside=inside)

    def _place(self, mask: np.ndarray) -> str:
        """What is measured in which cell at which unit, of the first in the mask."""
        cell, unit = np.argwhere(mask)[0]
        keys = ", ".join(f"{key} {value}" for key, value in self.cells.iloc[cell].items())
        return f"{self.measure.name} of {keys or 'the only cell'} at {self.units['unit'].iloc[unit]}"

    def __repr__(self) -> str:
        shape = f"{counted(len(self.cells), 'cell')} × {counted(len(self.units), 'unit')}"
        return f"Observations of {self.measure.name} ({self.measure.unit}): {shape}"

    @property
    def values(self) -> np.ndarray:
        """[cells] the value of each cell over its units; NaN for a cell without units."""
        with np.errstate(invalid="ignore"):
            ratio = np.nansum(self.total, axis=1) / self.sizes.sum(1)
        return np.asarray(self.measure.factor * ratio + self.measure.shift)

    def cell(self, **keys: Any) -> int:
        """The one cell with these keys; `InputError` where there is none or several."""
        mask = np.logical_and.reduce([(self.cells[name] == value).to_numpy() for name, value in keys.items()])
        if mask.sum() != 1:
            raise InputError(f"{mask.sum()} cells have {', '.join(f'{k}={v}' for k, v in keys.items())}")
        return int(np.flatnonzero(mask)[0])

    def at(self, units: Any) -> "Observations":
        """The same cells on some of the units (a mask or indices)."""
        indices = np.arange(len(self.units))[np.asarray(units)]
        chosen = self.units.iloc[indices].reset_index(drop=True)
        return replace(self, units=chosen, total=self.total[:, indices], size=self.sizes[:, indices])

    def frame(self) -> pd.DataFrame:
        """The long form: one row per cell and unit that is in it, with keys, unit, total, size and value in units."""
        cell, unit = np.nonzero(self.inside)
        keys, units = self.cells.iloc[cell].reset_index(drop=True), self.units.iloc[unit].reset_index(drop=True)
        total, size = self.total[cell, unit], self.sizes[cell, unit]
        values = {"total": total, "size": size, "value": self.measure.factor * total / size + self.measure.shift}
        return pd.concat([keys, units, pd.DataFrame(values)], axis=1)


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """One estimate: what it is called, and the weights of the cells.

    `labels` name its row (head, scale), `quantity` what is estimated there (delta, above, interaction). `null` is the
    value it is tested against, None where it is described only. What is not `tested` has an interval and no p (a share
    of attention, which no one expects to be 0); its difference from a control is tested. The p of one `family` are
    corrected together, also across blocks; by default those of a quantity in its block. `missing`: why there is no
    value; `fixed`: why a value that is known without measuring (the change of a scale of 1 is 0) has no test.
    """

    quantity: str
    weights: Mapping[int, float]
    labels: Mapping[str, Any] = field(default_factory=dict)
    null: float | None = 0.0
    family: str | None = None
    missing: str = ""
    fixed: str = ""
    tested: bool = True
    own_units: bool = False


def head_cells(model: Any) -> pd.DataFrame:
    """A cell for each head of a model: head (L0.H0), layer and index, both from 0."""
    heads = [(layer, index) for layer in range(model.cfg.n_layers) for index in range(model.cfg.n_heads)]
    return pd.DataFrame([{"head": f"L{layer}.H{index}", "layer": layer, "index": index} for layer, index in heads])


def each(quantity: str, cells: pd.DataFrame, start: int = 0, **options: Any) -> list[Contrast]:
    """Every cell by itself, labelled by its keys; `start` is the index of the first.

    `options` are other fields of `Contrast`, a list for one value per cell.
    """
    contrasts = []
    for i, labels in enumerate(cells.to_dict("records")):
        cell_options = {name: x[i] if isinstance(x, list) else x for name, x in options.items()}
        contrasts.append(Contrast(quantity=quantity, weights={start + i: 1.0}, labels=labels, **cell_options))
    return contrasts


def effect_contrasts(
    quantity: str, edited: Mapping[int, float], base: int, labels: Mapping[str, Any], **options: Any
) -> list[Contrast]:
    """An edited value, the baseline, and `delta`, their difference, which is tested and has the `options`."""
    described: dict[str, Any] = {"labels": labels, "null": None}
    return [
        Contrast(quantity=quantity, weights=edited, **described),
        Contrast(quantity="baseline", weights={base: 1.0}, **described),
        Contrast(quantity="delta", weights={**edited, base: -1.0}, labels=labels, **options),
    ]


@dataclass(frozen=True)
class Estimates:
    """`frame`: a row per contrast with labels, quantity, `NUMBERS`, n, clusters; `reasons`: why cells have no value."""

    frame: pd.DataFrame
    reasons: Reasons
    contrasts: tuple[Contrast, ...] = ()

    def where(self, **labels: Any) -> "Estimates":
        """The estimates of the contrasts with these labels, or one of a set; `quantity` counts as a label."""
        rows = [{**c.labels, "quantity": c.quantity} for c in self.contrasts]
        choices = {name: value if isinstance(value, set) else {value} for name, value in labels.items()}
        keep = [i for i, row in enumerate(rows) if all(row.get(k) in values for k, values in choices.items())]
        frame = self.frame.iloc[keep].reset_index(drop=True)
        return Estimates(frame, reasons_of(self.reasons, keep), tuple(self.contrasts[i] for i in keep))

    def wide(self, keys: Sequence[str], *, describe: Sequence[str] = ()) -> tuple[pd.DataFrame, Reasons]:
        """One row per combination of `keys`, one group of columns per quantity; and why cells have no value.

        A quantity q has the columns q, q_sd, q_low, q_high, q_p and q_p_holm; with `tested=False` q, q_sd, q_low
        and q_high; with `null=None` only q, and those of `describe` the first four. n and clusters are the largest of
        the row's.
        """
        frame, reasons = self.frame, Reasons()
        if frame.empty:
            return pd.DataFrame(columns=[*keys, "n", "clusters"]), reasons
        row = frame.groupby([*keys] or np.zeros(len(frame)), sort=False, dropna=False).ngroup()
        null, tested = np.array([*map(attrgetter("null", "tested"), self.contrasts)], float).T
        n_shown = np.where(np.isnan(null), 1, np.where(tested, len(NUMBERS), 4))
        is_shown = pd.DataFrame(np.arange(len(NUMBERS)) < n_shown[:, None], columns=NUMBERS)
        is_shown[list(describe)] = True
        columns: dict[str, pd.Series] = {}
        for quantity, part in frame.groupby("quantity", sort=False):
            if row[part.index].duplicated().any():
                raise InputError(f"{' and '.join(keys)} do not tell the contrasts {quantity!r} apart: add a key")
            for name in NUMBERS:
                if len(shown := part.index[is_shown.loc[part.index, name]]):
                    column = f"{quantity}_{name}".removesuffix("_value")
                    columns[column] = pd.Series(frame.loc[shown, name].to_numpy(), index=row[shown])
        for (i, name), reason in self.reasons.items():
            if is_shown.at[i, name]:
                reasons[int(row[i]), f"{self.contrasts[i].quantity}_{name}".removesuffix("_value")] = reason
        labels = frame.loc[~row.duplicated(), [*keys]].reset_index(drop=True).infer_objects()
        return pd.concat([labels, pd.DataFrame(columns), frame.groupby(row)[["n", "clusters"]].max()], axis=1), reasons


def joined(parts: Sequence[Estimates], keys: Sequence[str], columns: Iterable[Any]) -> tuple[pd.DataFrame, Reasons]:
    """The wide tables of estimates with the same rows as one: what the `columns` of a table describe.

    n and clusters are those of the first.
    """
    tables = [part.wide(keys, describe=("sd", "low", "high")) for part in parts]
    rows = [wide[list(keys)].astype(object) for wide, _ in tables]
    if not all(labels.equals(rows[0]) for labels in rows):
        raise InputError(f"estimates of different rows ({', '.join(keys)}) cannot be joined")
    frame = pd.concat([wide for wide, _ in tables], axis=1)
    names = {column.name for column in columns}
    missing = {cell: why for _, reasons in tables for cell, why in reasons.items() if cell[1] in names}
    return frame.loc[:, ~frame.columns.duplicated() & frame.columns.isin(names)], missing


def estimate(observed: Observations, contrasts: Sequence[Contrast]) -> Estimates:
    """Every contrast of the observations, with sd between clusters, interval, p and Holm's p within its family.

    A contrast is over the units that are in all its cells, or over each cell's own (`own_units`). Where these are one
    cluster, or no cluster's own estimate differs from another's by more than the measure's resolution, interval and p
    are undefined, with the reason. sd is that of the clusters' own estimates Σ_k w_k a y_kc / n_kc, over own units of
    the linearised ones, value + e_c Σ n / n_c. Units are those of the measure.
    """
    return estimate_all({"": observed}, {"": contrasts})[""]


def estimate_all(
    blocks: Mapping[str, Observations], contrasts: Mapping[str, Sequence[Contrast]]
) -> dict[str, Estimates]:
    """`estimate` of every block; a family that is named in several blocks is corrected once, over all of them."""
    estimates, families, p = dict[str, Estimates](), list[str](), list[pd.Series]()
    for name, block in blocks.items():
        estimates[name] = _uncorrected(block, contrasts[name])
        p.append(estimates[name].frame["p"])
        for c in contrasts[name]:
            families.append(f"{name}:{c.quantity}" if c.family is None else c.family)
    if families:
        corrected = pd.concat(p, ignore_index=True).groupby(families, sort=False).transform(holm).to_numpy()
        starts = np.cumsum([*map(len, p)])[:-1]
        for part, p_holm in zip(estimates.values(), np.split(corrected, starts), strict=True):
            part.frame["p_holm"] = p_holm
    return estimates


def _uncorrected(observed: Observations, contrasts: Sequence[Contrast]) -> Estimates:
    """`estimate`, with p_holm yet to come."""
    frame, array = pd.DataFrame([*map(attrgetter("labels"), contrasts)]), np.array(contrasts, object)
    if len(clash := frame.columns.intersection(["quantity", *NUMBERS, "n", "clusters"])):
        raise InputError(f"a label of a contrast may not be called {clash[0]!r}")
    values = dict(zip(NUMBERS, np.full((len(NUMBERS), len(contrasts)), np.nan), strict=True))
    values |= dict(zip(("n", "clusters"), np.zeros((2, len(contrasts)), int), strict=True))
    present, cluster_labels = observed.inside, observed.units["cluster"]
    rows_over: dict[tuple[bytes, bool], list[int]] = {}  # contrasts over the same units
    for i, c in enumerate(contrasts):
        cells = present[np.fromiter(c.weights, int)]
        mask = cells.any(0) if c.own_units and cells.any(1).all() else cells.all(0)
        if c.weights and mask.any():
            rows_over.setdefault((mask.tobytes(), c.own_units), []).append(i)
    why = np.full(len(contrasts), NOWHERE, object)
    for (mask_bytes, own_units), rows in rows_over.items():
        units = np.flatnonzero(np.frombuffer(mask_bytes, bool))
        clusters = read_clusters(cluster_labels.iloc[units].to_list(), len(units))
        step = max(1, MOST_NUMBERS // len(units))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            numbers, why[part] = _numbers(observed, array[part].tolist(), units, clusters, own_units)
            for name, x in numbers.items():
                values[name][part] = x
    reasons: Reasons = {}
    for i, c in enumerate(contrasts):
        names: Sequence[str] = NUMBERS[1:]
        if c.missing or why[i] == NOWHERE:
            reason, names = c.missing or NOWHERE, NUMBERS
        elif not (reason := c.fixed):
            reason, names = why[i], TESTED if why[i] == SAME else names
            names = names if c.tested and c.null is not None else names[:-2]
        for name in names if reason else ():
            values[name][i], reasons[i, name] = np.nan, reason
    frame = frame.assign(quantity=[*map(attrgetter("quantity"), contrasts)], **values)
    return Estimates(frame, reasons, tuple(contrasts))


def _weights(
    contrasts: Sequence[Contrast], ends: tuple[float, float]
) -> tuple[np.ndarray, csr_array, np.ndarray, np.ndarray]:
    """The cells of contrasts, ascending; the weights [contrasts, cells] on them; the least and the largest value
    [2, contrasts] that each can have where every cell lies between `ends`; and whether each is a cell or a mean of
    cells, which lies between them too, and no difference."""
    on_cells: list[int] = []
    data: list[float] = []
    starts = [0]
    for c in contrasts:
        on_cells += c.weights
        data += c.weights.values()
        starts.append(len(data))
    cells, columns = np.unique(np.array(on_cells, int), return_inverse=True)
    weights = csr_array((np.array(data, float), columns, starts), shape=(len(contrasts), len(cells)))
    sorted_weights = weights.copy()  # `maximum` sorts what it is called on; sums are in the order of a contrast
    above, below = sorted_weights.maximum(0).sum(1), sorted_weights.minimum(0).sum(1)
    low_high = np.array(ends)[:, None]
    with np.errstate(invalid="ignore"):  # no weights on an end that is infinite
        reach = np.where(above > 0, above * low_high, 0.0) + np.where(below < 0, below * low_high[::-1], 0.0)
    return cells, weights, reach, (below == 0) & (np.abs(above - 1) < 1e-9)


def _numbers(
    observed: Observations, contrasts: Sequence[Contrast], units: np.ndarray, clusters: Clusters, own_units: bool
) -> tuple[dict[str, Any], np.ndarray]:
    """Numbers of contrasts over the same units by the formulas of this module, an array for each; why some lack."""
    m, shared = observed.measure, clusters.shared
    cells, w, reach, is_level = _weights(contrasts, m.ends)
    size = observed.sizes[np.ix_(cells, units)]
    total = np.where(size > 0, observed.total[np.ix_(cells, units)], 0.0)
    y, n = cluster_totals(np.stack([total, size]), clusters.codes)[0]  # [cells, clusters]
    sums = size.sum(1, keepdims=True)
    ratio = total.sum(1, keepdims=True) / sums
    value = w @ (m.factor * ratio[:, 0] + m.shift)
    counts, fewest = np.full(len(cells), clusters.count), np.full(len(contrasts), clusters.count)
    if own_units:
        counts = (n > 0).sum(1) if shared is None else np.array(
            [min(len(np.unique(codes[row])) for codes in shared.kinds) for row in n > 0]
        )  # fmt: skip
        fewest = np.minimum.reduceat(counts[w.indices], w.indptr[:-1])
    numbers = {"value": value, "n": len(units), "clusters": fewest}
    if clusters.count < 2:
        return numbers, np.full(len(contrasts), ONE_UNIT, object)
    with np.errstate(divide="ignore", invalid="ignore"):  # of contrasts without an interval
        parts = m.factor * (y - ratio * n) / sums
        if own_units:
            in_cells = csr_array((np.ones(w.nnz), w.indices, w.indptr), shape=w.shape) @ n
            by_cluster = value[:, None] + (w @ parts) * in_cells.sum(1, keepdims=True) / in_cells
            parts *= np.sqrt(counts / (counts - 1) * (clusters.count - 1) / clusters.count)[:, None]
        else:
            by_cluster = w @ (m.factor * y / n + m.shift)
        residuals, magnitude = w @ parts, abs(w)
        error = np.sqrt(m.inflation * clustered_square(residuals, shared))
        cluster_weights = magnitude @ (n / sums) / magnitude.sum(1)[:, None]
        df = degrees_of_freedom(cluster_weights, shared)
        largest = np.abs(m.factor * y / np.where(n > 0, n, 1.0)).max(1)
        scale = np.maximum(np.maximum.reduceat(magnitude.data * largest[w.indices], w.indptr[:-1]), np.abs(value))
        is_same = np.ptp(by_cluster, axis=1) <= np.maximum(m.resolution, 8 * np.finfo(float).eps * scale)
        is_same |= (error == 0) | ~(df > 0)
        if own_units:
            dfs = degrees_of_freedom(n, shared)
            df = np.fmin(df, (w.power(2) @ (1 / dfs)) ** 2 / (w.power(4) @ dfs**-3.0))
        null, tested = np.array([*map(attrgetter("null", "tested"), contrasts)], float).T
        t, null = stdtrit(df, UPPER), np.where(tested, null, np.nan)
        ends = value + np.array([-t, t]) * error
        if m.limits is not None and is_level.any():
            bounded = bounded_interval(value, error, t, residuals, fewest, cluster_weights, m.limits, shared)
            ends = np.where(is_level, bounded, ends)
        (low, high), p = np.clip(ends, *reach), 2 * stdtr(df, -np.abs(value - null) / error)
        why = np.where(fewest < 2, ONE_UNIT, np.where(is_same, SAME, "")).astype(object)
    is_share = (np.diff(w.indptr) == 1) & (w.data[w.indptr[:-1]] == 1) if m.kind == "share" else np.array(False)
    if is_share.any():
        hits = total[w.indices[w.indptr[:-1][is_share]]]
        low[is_share], high[is_share] = wilson(hits, clusters, m.inflation)
        p[is_share], why[is_share] = score_p(hits, null[is_share], clusters, m.inflation), ""
    return {**numbers, "sd": by_cluster.std(1, ddof=1), "low": low, "high": high, "p": p}, why


def compare(
    run: Observations, control: Observations, contrasts: Sequence[Contrast], of_control: Sequence[Contrast] = ()
) -> Estimates:
    """Every tested contrast (of a block that tests none: every one) of the run, of the control, and their difference.

    Quantities are <quantity>_run and <quantity>_control, described, and <quantity>_difference, tested: the run's
    weights on its cells and their negative on the control's, unit by unit, so that what documents share drops out.

    What is missing in either (`of_control`: the control's own contrasts) is missing here.
    """
    control_missing = {(c.quantity, *c.labels.items()): c.missing for c in of_control}
    contrasts = [
        replace(c, missing=c.missing or control_missing.get((c.quantity, *c.labels.items()), "")) for c in contrasts
    ]
    if run.measure != control.measure or not run.cells.equals(control.cells):
        raise InputError(f"a run and its control need the same cells of one measure, {run.measure.name!r} has others")
    run_block, control_block = on_shared_units(run, control)
    if (n := len(run_block.units)) < 2 and not all(c.missing for c in contrasts):
        raise InputError(f"{run.measure.name}: {counted(n, 'unit')} in both the run and its control, two are needed")
    total = np.concatenate([run_block.total, control_block.total])
    size = np.concatenate([run_block.sizes, control_block.sizes])
    pair = replace(run_block, cells=pd.concat([run.cells] * 2), total=total, size=size)
    comparisons = []
    for c in [c for c in contrasts if c.null is not None] or contrasts:
        of_control_cells = {cell + len(run.cells): w for cell, w in c.weights.items()}
        weights = {**c.weights, **{cell: -w for cell, w in of_control_cells.items()}}
        described = replace(c, null=None, fixed="")
        comparisons += [
            replace(described, quantity=f"{c.quantity}_run"),
            replace(described, quantity=f"{c.quantity}_control", weights=of_control_cells),
            replace(c, quantity=f"{c.quantity}_difference", weights=weights, null=0.0, tested=True),
        ]
    return estimate(pair, comparisons)


def on_shared_units(run: Observations, control: Observations) -> tuple[Observations, Observations]:
    """Both on the units that both have, in the order of the run; raises `InputError` where there is none."""
    control_units = set(control.units["unit"])
    common = [name for name in run.units["unit"] if name in control_units]
    if not common:
        raise InputError(f"{run.measure.name}: 0 units in both the run and its control, two are needed")
    run_block, control_block = (block.at(pd.Index(block.units["unit"]).get_indexer(common)) for block in (run, control))
    return run_block, control_block


def over_seeds(runs: Sequence[Estimates], keys: Sequence[str], measure: Measure) -> Estimates:
    """The same contrasts of several training runs, with runs as units: mean, sd between them, t interval, p.

    The question is then about the recipe and not about one trained model. A row that is missing in any run is missing.
    Intervals stay inside the measure's limits.
    """
    first, columns = runs[0], [*keys, "quantity"]
    if any(not run.frame[columns].equals(first.frame[columns]) for run in runs):
        raise InputError("seeds can be summarised where all runs have the same rows; the runs differ in theirs")
    values = np.stack([run.frame["value"].to_numpy(float) for run in runs])  # [runs, contrasts]
    cells = pd.DataFrame({"row": range(values.shape[1])})
    units = pd.DataFrame({"unit": range(len(runs)), "cluster": range(len(runs))})
    plain = Measure(name=measure.name, unit=measure.unit, resolution=measure.resolution)  # values are in units already
    has_value = ~np.isnan(values)  # an estimate without a value has a reason, in its run
    observed = Observations(measure=plain, cells=cells, units=units, total=values.T, size=has_value.T.astype(float))
    lost = np.where(has_value.all(0), "", "undefined in a run").tolist()
    contrasts = [
        replace(c, weights={i: 1.0}, fixed="", missing=c.missing or lost[i]) for i, c in enumerate(first.contrasts)
    ]
    estimates = estimate(observed, contrasts)
    value, *ends = estimates.frame[["value", "low", "high"]].to_numpy().T
    *_, reach, is_level = _weights(first.contrasts, measure.ends)
    ends = np.where(is_level, inside(np.array(ends), value, ends[1] - value, measure.ends), ends)
    estimates.frame["low"], estimates.frame["high"] = np.clip(ends, *reach)
    return estimates


def bootstrap(
    observed: Observations, cells: Sequence[int], statistic: Callable[..., np.ndarray],
    columns: Callable[[np.ndarray, np.ndarray], Sequence[np.ndarray]] | None = None, *, resamples: int = 2000,
    seed: int = 0,
) -> tuple[dict[str, float], dict[str, str]]:  # fmt: skip
    """value, low, high, n and clusters of a statistic that is no contrast (Cohen's d), and why some are missing.

    `columns(total, size)`, both [cells, units], gives what is summed over units, each [units] or [cells, units]; by
    default totals and sizes. `statistic(*columns, axis)` reduces the last axis, of clusters. Only units in all the
    cells count. The interval is that of `estimators.statistic_interval`.
    """
    names, cell_indices = ("value", "low", "high"), np.asarray(cells, int)
    unit_indices = np.flatnonzero(observed.inside[cell_indices].all(0))
    row = {**dict.fromkeys(names, float("nan")), "n": len(unit_indices), "clusters": 0}
    if not len(unit_indices):
        return row, dict.fromkeys(names, NOWHERE)
    clusters = read_clusters(observed.units["cluster"].iloc[unit_indices].to_list(), len(unit_indices))
    y, n = observed.total[np.ix_(cell_indices, unit_indices)], observed.sizes[np.ix_(cell_indices, unit_indices)]
    summed = (y, n) if columns is None else columns(y, n)
    sums = [cluster_totals(np.asarray(column, float), clusters.codes)[0] for column in summed]
    row |= {"clusters": clusters.count, "value": float(statistic(*sums, axis=-1))}
    if not np.isfinite(row["value"]):
        return {**row, "value": float("nan")}, dict.fromkeys(names, "the statistic has no value here")
    if clusters.count < BOOTSTRAP_CLUSTERS:
        return row, dict.fromkeys(("low", "high"), f"fewer than {BOOTSTRAP_CLUSTERS} clusters to resample")
    low, high = statistic_interval(statistic, *sums, clusters=clusters, resamples=resamples, seed=seed)
    if np.isfinite([low, high]).all():
        return {**row, "low": float(low), "high": float(high)}, {}
    return row, dict.fromkeys(("low", "high"), ZERO if np.isinf(low) else SAME)


def interval_columns(
    name: str, interval: tuple[Mapping[str, Any], Mapping[str, str]]
) -> tuple[dict[str, float], dict[str, str]]:
    """What `bootstrap` found as the columns name, name_low and name_high, and why some have no value."""
    (numbers, reasons), columns = interval, {"value": name, "low": f"{name}_low", "high": f"{name}_high"}
    named = {column: numbers[number] for number, column in columns.items()}
    return named, {columns[number]: reason for number, reason in reasons.items()}
