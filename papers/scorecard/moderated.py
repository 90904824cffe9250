"""Differences of many arms from a control with few seeds each: t with moderated variances.

With three seeds a variance is hardly known, and arms do not share one. So each arm's own variance is drawn towards what
the variances of all arms have in common, the more so the more alike they are (empirical Bayes; Smyth 2004,
doi:10.2202/1544-6115.1027, as in limma):

    σ²_a ~ d₀ s₀² / χ²(d₀),    s²_a | σ²_a ~ σ²_a χ²(d_a) / d_a,    s̃²_a = (d₀ s₀² + d_a s²_a) / (d₀ + d_a)

    t_a = (x̄_a − x̄_c) / √(s̃²_a / n_a + s̃²_c / n_c)    with d₀ + min(d_a, d_c) degrees of freedom, at most Σ_a d_a

Here σ_a is the spread over seeds of arm a, s_a its estimate from n_a seeds, d_a = n_a − 1, and c the control. These
are the degrees of freedom of the less certain of the two variances. Welch's are more, and with so few seeds too many:
the tests count how often any of 22 arms without a difference passes, with both.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import digamma, polygamma
from scipy.stats import t as student

from streamscope.instruments.stats.estimators import holm

FLOOR = 1e-5
"""Of the median variance: a smaller one, as of three equal counts, has no logarithm of its own."""


def prior(variances: np.ndarray, df: np.ndarray) -> tuple[float, float]:
    """(s₀², d₀) of sample variances [arms] with degrees of freedom [arms], from mean and variance of log s².

    d₀ is infinite where the variances differ by no more than chance; s₀² is then the pooled variance. Raises
    `ValueError` for fewer than two variances, and where half of them or more are 0.
    """
    if len(variances) < 2 or np.median(variances) <= 0:
        raise ValueError("a common spread needs two arms and more, most of them with a spread over seeds")
    e = np.log(np.maximum(variances, FLOOR * np.median(variances))) - digamma(df / 2) + np.log(df / 2)
    excess = float(e.var(ddof=1) - polygamma(1, df / 2).mean())
    if excess <= 0:
        return float((df * variances).sum() / df.sum()), np.inf
    half = brentq(lambda x: polygamma(1, x) - excess, 1e-4, 1e8)
    return float(np.exp(e.mean() + digamma(half) - np.log(half))), 2 * half


def differences(arms: Mapping[str, np.ndarray], control: str, confidence: float = 0.95) -> pd.DataFrame:
    """A row per arm but the control: n, mean (less that of the control), ci_low, ci_high, p, and p_holm over the rows.

    `arms` has the values [seeds] of each arm; arms of one seed are held against the spread of the others. Units are
    those of the values. Raises `ValueError` as `prior` does, and without the control.
    """
    n = np.array([len(values) for values in arms.values()])
    means = np.array([values.mean() for values in arms.values()])
    own = np.array([values.var(ddof=1) if len(values) > 1 else 0.0 for values in arms.values()])
    df = n - 1.0
    s0, d0 = prior(own[df > 0], df[df > 0])
    spread = np.full(len(n), s0) if np.isinf(d0) else (d0 * s0 + df * own) / (d0 + df)
    c = list(arms).index(control)
    error = np.sqrt(spread / n + spread[c] / n[c])
    degrees = np.minimum(d0 + np.minimum(df, df[c]), df.sum())
    gap, half = means - means[c], student.ppf(0.5 + confidence / 2, degrees) * error
    table = pd.DataFrame({"arm": list(arms), "n": n, "mean": gap, "ci_low": gap - half, "ci_high": gap + half})
    table["p"] = 2 * student.sf(np.abs(gap) / error, degrees)
    table = table.drop(index=c).reset_index(drop=True)
    return table.assign(p_holm=holm(table["p"]))
