"""Tables that this room measures instead of a model: features of tokens, and effects of interventions on them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from streamscope.instruments.data import Data, Tokens
from streamscope.instruments.registry import named


@dataclass(frozen=True)
class FeatureTables(Data):
    """Features of tokens."""

    features: tuple[Path, ...] = ()
    """Tables of `features.extract`, of one model and different data; default: 2,000 tokens, extracted now."""

    @property
    def alone(self) -> bool:
        """Whether no model is needed."""
        return bool(self.features)

    def of(self, model: Any, like: Any = None) -> Any:
        """`OpenFeatures`. Raises `InputError` for tables of another model, where one is given."""
        from streamscope.cli.errors import InputError
        from streamscope.features.store import features_of, read_features
        from streamscope.instruments.about_model import checkpoint_of

        if not self.features:
            found = features_of(named("extract")().measure(model, Tokens(max_tokens=2000)))
            return OpenFeatures(found, "extracted now")
        found = read_features(self.features)
        if model is not None and checkpoint_of(model)["checkpoint"] != found.about["checkpoint"]:
            raise InputError(
                f"{self.features[0]} is of {found.about['run']}, not of this model; name that run, or none"
            )
        return OpenFeatures(found, ", ".join(map(str, self.features)), self.features)


@dataclass(frozen=True)
class OpenFeatures:
    """Features in memory, and where they come from."""

    kind: ClassVar[type[Data]] = FeatureTables
    found: Any
    where: str
    files: tuple[Path, ...] = ()

    def about(self) -> dict[str, Any]:
        """Of which weights and data they are."""
        names = ("run", "preset", "checkpoint", "tier", "options", "data")
        return {"where": self.where, **{name: self.found.about.get(name) for name in names}}


@dataclass(frozen=True)
class EffectTable(Data):
    """Effects of interventions on the same tokens."""

    effects: Path | None = None
    """Table of `interventions.token_effects`, of the same model and data; default: every head alone, measured now."""

    @property
    def alone(self) -> bool:
        """Whether no model is needed."""
        return self.effects is not None

    def of(self, model: Any, like: Any = None) -> Any:
        """`OpenEffects`."""
        from streamscope.features.store import read_effects

        if self.effects is not None:
            return OpenEffects(*read_effects(self.effects), str(self.effects))
        result = named("token_effects")().measure(model, Tokens(max_tokens=2000))
        return OpenEffects(result.table().frame, dict(result.about["effects"]), "measured now")

    def small(self) -> "EffectTable":
        """The same."""
        return replace(self)


@dataclass(frozen=True)
class OpenEffects:
    """Effects in memory, what they say of themselves, and where they come from."""

    kind: ClassVar[type[Data]] = EffectTable
    table: Any
    of: dict[str, Any]
    where: str

    def about(self) -> dict[str, Any]:
        """Of which weights, edits and data they are."""
        return {"where": self.where, **self.of}
