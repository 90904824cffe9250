"""The plots of stories, in the template language of `stories.template`.

A plot is a list of stages, each a choice of templates; labelled passages come between stages. `binds` draws a word once
per story, so that it can return. Slots: h, f the two children (hs, ho, hp and fs, fo, fp their pronouns), e the adult,
toy a thing with its color ("red kite"), toy_noun and color its parts, place the location, pet and pet_name.
"""

from dataclasses import dataclass

from streamscope.text.stories.lexicon import TEXT, PlotText


@dataclass(frozen=True)
class Plot:
    name: str
    places: tuple[str, ...]
    stages: tuple[tuple[str, ...], ...]
    binds: tuple[tuple[str, str], ...] = ()
    likes: tuple[str, ...] = ()


GROUPS = TEXT["groups"]


def _plot(text: PlotText) -> Plot:
    places = tuple(place for name in text["places"] for place in GROUPS.get(name, (name,)))
    return Plot(text["name"], places, text["stages"], text["binds"], text["likes"])


PLOTS = tuple(map(_plot, TEXT["plots"]))
QUIET_DAY = next(plot for plot in PLOTS if plot.name == "a quiet day")
"""The default plot: an outing."""
