"""Inference for cross-validated hits, in which every case has also trained the probes that judge the others."""

import numpy as np

SHARED = 1 + 2 / np.pi
"""Variance of a cross-validated share of hits, over that of as many independent hits.

Of two cases in different folds each has trained the probe that judges the other. A linear probe scores case i by
Σ_j y_i y_j k(x_i, x_j): the term (i, j) is in the scores of i and of j. Where the activations say nothing, two scores
so have correlation 1/n_train and their signs, the hits, (2/π)/n_train; summed over all pairs that adds 2/π. In
simulations of such nulls (8 and 96 dimensions, cases or whole groups independent) the factor was 1.6 to 1.8; where
a label is easy to read it falls to 1, so that intervals are then too wide: they hold 98 to 99 %. No estimate of this
variance from one cross-validation is unbiased (Bengio & Grandvalet 2004); Nadeau & Bengio's factor (2003), 2.25 for
five folds, is more cautious.
"""


def dealt(words: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A control task [N]: each word type gets one label at random, the labels as frequent as in `labels`.

    words and labels are codes from 0. Words in random order each take the label that is furthest behind, so that no
    control has a commoner label, and with it a better guess, than the task itself.
    """
    budget = np.bincount(labels) + 0.5 * rng.random(labels.max() + 1)
    sizes = np.bincount(words)
    label_of = np.zeros(len(sizes), int)
    for word in rng.permutation(len(sizes)):
        label_of[word] = budget.argmax()
        budget[label_of[word]] -= sizes[word]
    return label_of[words]
