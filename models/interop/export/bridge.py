"""Opens an export in TransformerLens, by an adapter in the entry point group `transformer_lens.architectures`.

    bridge = boot("exported")        a TransformerBridge with the model and its tokenizer

`build_bridge_from_module(model, "StreamscopeForCausalLM", hf_config=model.config)` also works. `boot_transformers` of
TransformerLens 4.3 does not, because it checks its own list of architectures before entry points. It opens native
exports (`--native`) like any GPT-2 or Llama.

The bridge has every editable hook point under its own name, such as `blocks.3.attn.hook_z`, except `hook_result`. All
are always computed, so attention is materialised, which takes time and rounds differently than the fused kernel.
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
    """One of our modules between its hooks."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the module; its first input, and every other input that is the same tensor, passes `hook_in`."""
        assert self.original_component is not None
        first = inputs[0]
        if isinstance(first, Tensor):
            hooked = self.hook_in(first)
            inputs = tuple(hooked if x is first else x for x in inputs)
        return self.hook_out(self.original_component(*inputs, **options))


class Layer(BlockBridge):
    """One of our layers, with its own hook points."""

    hook_aliases: ClassVar[dict[str, Any]] = {}

    @staticmethod
    def _is_standalone_hidden_state_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """False, because our layers take and return only the stream."""
        return False


def boot(folder: str | Path) -> Any:
    """Open an exported folder as a TransformerBridge. Raises `InputError` for a model with several streams."""
    from transformer_lens.factories.architecture_adapter_factory import ArchitectureAdapterFactory
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ArchitectureAdapterFactory.discover_entry_points()  # not found without installation, so it is registered below
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
    """(components for the hook points of a module, names of the points in the bridge)."""
    parts, names = dict[str, GeneralizedComponent](), dict[str, str]()
    for name, child in module.named_children():
        if hasattr(child, "instead") or name == "hook_result":
            continue  # these only work at the module itself
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
    """The adapter for exports with one residual stream; a bridge has no names for several."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        cfg.attn_only, cfg.final_rms = False, False
        self.component_mapping: dict[str, Any] = {}

    def prepare_model(self, hf_model: Any) -> None:
        """Name the hook points of this model."""
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
            parts_of(block)  # switches its points on
        final, final_names = parts_of(hf_model.model.ln_final)
        self.component_mapping = {
            "embed": EmbeddingBridge(name="model.embed"),
            **({"pos_embed": Container(name="model.pos_embed")} if config.positions.table else {}),
            "blocks": Layer(name="model.blocks", submodules=inner, hook_alias_overrides=names),
            "ln_final": Container(name="model.ln_final", submodules=final, hook_alias_overrides=final_names),
            "unembed": UnembeddingBridge(name="lm_head", config=self.cfg),
        }
