"""Data that instruments of this package read instead of a model: features of tokens, and effects on tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from streamscope.instruments.data import Data, Tokens
from streamscope.instruments.registry import named


@dataclass(frozen=True)
class FeatureTables(Data):
    """Tables of features of tokens."""

    features: tuple[Path, ...] = ()
    """Tables of `features.extract` from one model and different data; default: 2,000 tokens, extracted now."""

    @property
    def alone(self) -> bool:
        return bool(self.features)

    def of(self, model: Any, like: Any = None) -> Any:
        """The `OpenFeatures`. Raises `InputError` for tables of another model, if one is given."""
        from streamscope.cli.errors import InputError
        from streamscope.features.store import features_of, read_features
        from streamscope.instruments.contract import checkpoint_of

        if not self.features:
            features = features_of(named("extract")().measure(model, Tokens(max_tokens=2000)))
            return OpenFeatures(features, "extracted now")
        features = read_features(self.features)
        if model is not None and checkpoint_of(model)["checkpoint"] != features.about["checkpoint"]:
            raise InputError(
                f"{self.features[0]} comes from {features.about['run']}, not from this model; measure that run, or none"
            )
        return OpenFeatures(features, ", ".join(map(str, self.features)), self.features)


@dataclass(frozen=True)
class OpenFeatures:
    """Features in memory, and where they come from."""

    kind: ClassVar[type[Data]] = FeatureTables
    found: Any
    where: str
    files: tuple[Path, ...] = ()

    def about(self) -> dict[str, Any]:
        names = ("run", "preset", "checkpoint", "tier", "options", "data")
        return {"where": self.where, **{name: self.found.about.get(name) for name in names}}


@dataclass(frozen=True)
class EffectTable(Data):
    """A table of effects of interventions on the same tokens."""

    effects: Path | None = None
    """Table of `interventions.token_effects` on the same model and data; default: every head alone, measured now."""

    @property
    def alone(self) -> bool:
        return self.effects is not None

    def of(self, model: Any, like: Any = None) -> Any:
        from streamscope.features.store import read_effects

        if self.effects is not None:
            return OpenEffects(*read_effects(self.effects), str(self.effects))
        result = named("token_effects")().measure(model, Tokens(max_tokens=2000))
        return OpenEffects(result.table().frame, dict(result.about["effects"]), "measured now")


@dataclass(frozen=True)
class OpenEffects:
    """Effects in memory, their description, and where they come from."""

    kind: ClassVar[type[Data]] = EffectTable
    table: Any
    description: dict[str, Any]
    where: str

    def about(self) -> dict[str, Any]:
        return {"where": self.where, **self.description}
