"""An export in TransformerLens: the adapter that the entry point group `transformer_lens.architectures` finds.

    bridge = boot("exported")        a TransformerBridge with the model and its tokenizer

`build_bridge_from_module(model, "StreamscopeForCausalLM", hf_config=model.config)` does so by hand. `boot_transformers`
of TransformerLens 4.3 does not: it asks its own list of architectures before it reads entry points. Native exports
(`--native`) it opens like any GPT-2 or Llama.

Every hook point that may be edited is one of the bridge's, under its own name, as `blocks.3.attn.hook_z`; not
`hook_result`, a head's share of the stream. All are computed always, so attention is written out, which costs time and
rounds otherwise than the fused one.
"""

from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import BlockBridge, EmbeddingBridge, UnembeddingBridge
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

from streamscope.cli.errors import InputError

ARCHITECTURE = "StreamscopeForCausalLM"


class Container(GeneralizedComponent):
    """A module of ours between its hooks."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The module's own; its first input and every other one that is the same pass `hook_in`."""
        assert self.original_component is not None
        first = inputs[0]
        if isinstance(first, Tensor):
            seen = self.hook_in(first)
            inputs = tuple(seen if x is first else x for x in inputs)
        return self.hook_out(self.original_component(*inputs, **options))


class Layer(BlockBridge):
    """A layer of ours: its points are its own, not those of the bridge's guess."""

    hook_aliases: ClassVar[dict[str, Any]] = {}

    @staticmethod
    def _is_standalone_hidden_state_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """False: our layers are called with the stream alone, and return it."""
        return False


def boot(folder: str | Path) -> Any:
    """The TransformerBridge of an exported folder. Raises `InputError` for a model with several streams."""
    from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ArchitectureAdapterFactory.discover_entry_points()  # where this installation has none, the adapter is put there
    ArchitectureAdapterFactory.register_adapter(ARCHITECTURE, StreamscopeAdapter)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = None
    if (Path(folder) / "tokenizer.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        tokenizer.init_kwargs["trust_remote_code"] = True  # the bridge reads it again
    return build_bridge_from_module(model, ARCHITECTURE, hf_config=model.config, tokenizer=tokenizer)


def is_point(module: nn.Module) -> bool:
    """Whether a module is a hook point of an export."""
    return any(base.__name__ == "HookPoint" for base in type(module).__mro__)


def parts_of(module: nn.Module) -> tuple[dict[str, GeneralizedComponent], dict[str, str]]:
    """(components for what a module has of hook points, the names that the points have in the bridge)."""
    parts, names = dict[str, GeneralizedComponent](), dict[str, str]()
    for name, child in module.named_children():
        if hasattr(child, "instead") or name == "hook_result":
            continue  # those speak only to who listens at the module itself
        if is_point(child):
            if hasattr(child, "wanted"):
                child.wanted = True  # type: ignore[assignment]
            parts[f"at_{name.removeprefix('hook_')}"] = Container(name=name)
            names[name] = f"at_{name.removeprefix('hook_')}.hook_out"
        elif any(map(is_point, child.modules())):
            inner, aliases = parts_of(child)
            parts[name] = Container(name=name, submodules=inner, hook_alias_overrides=aliases)
    return parts, names


class StreamscopeAdapter(ArchitectureAdapter):
    """Exports of models with one residual stream; `InputError` for others, which a bridge has no names for."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        cfg.attn_only, cfg.final_rms = False, False
        self.component_mapping: dict[str, Any] = {}

    def prepare_model(self, hf_model: Any) -> None:
        """Name the points of this model."""
        config = hf_model.model.config
        if config.residual.streams:
            raise InputError(
                f"{config.name} has {len(config.residual.streams)} streams, which a TransformerBridge cannot name: "
                "streamscope.models.load opens it as a TransformerLens model"
            )
        self.cfg.gated_mlp = config.mlp.gate is not None
        self.cfg.normalization_type = {"layer": "LN", "rms": "RMS"}.get(config.readout.norm.kind)
        self.cfg.positional_embedding_type = {"rope": "rotary", "alibi": "alibi"}.get(config.positions.kind, "standard")
        inner, names = parts_of(hf_model.model.blocks[0])
        for block in hf_model.model.blocks[1:]:
            parts_of(block)  # asks for its points
        final, final_names = parts_of(hf_model.model.ln_final)
        self.component_mapping = {
            "embed": EmbeddingBridge(name="model.embed"),
            **({"pos_embed": Container(name="model.pos_embed")} if config.positions.table else {}),
            "blocks": Layer(name="model.blocks", submodules=inner, hook_alias_overrides=names),
            "ln_final": Container(name="model.ln_final", submodules=final, hook_alias_overrides=final_names),
            "unembed": UnembeddingBridge(name="lm_head", config=self.cfg),
        }
