"""What the config of a converted model holds: the scheme, its options, and how the model was before.

It is a dictionary in the config, so that ``save_pretrained`` and ``from_pretrained`` keep it:

    "attn_implementation": "scale_invariant",
    "scale_invariant_attention": {"scheme": ..., "options": ..., "calibration": ..., "original": ...}
"""

import copy
from dataclasses import dataclass, field
from typing import Any

IMPLEMENTATION = "scale_invariant"
KEY = "scale_invariant_attention"


@dataclass(frozen=True)
class Settings:
    """A scheme by name with its options, the calibration if there is one, and the original config."""

    scheme: str
    options: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, list[list[float]]] | None = None
    original: dict[str, Any] = field(default_factory=dict)

    @property
    def uses_our_attention(self) -> bool:
        """Whether logits change: p-RoPE, NoPE, NTK and YaRN only rotate otherwise."""
        return self.scheme.startswith(("scale-invariant", "logn", "alibi"))


def read(config: Any) -> Settings | None:
    """The settings in a config; None if its model was not converted."""
    held = getattr(config, KEY, None)
    if held is None:
        return None
    if not isinstance(held, dict) or not set(held) <= set(Settings.__dataclass_fields__):
        raise ValueError(
            f"config.{KEY} must be what convert() writes, a dictionary with scheme, options, "
            f"calibration and original, got {held!r}"
        )
    return Settings(**copy.deepcopy(held))


def write(config: Any, settings: Settings | None) -> None:
    """Put settings into a config, or take them out."""
    if settings is None:
        for name in (KEY, "attn_implementation"):
            config.__dict__.pop(name, None)
        return
    held: dict[str, Any] = {"scheme": settings.scheme, "options": settings.options}
    if settings.calibration is not None:
        held["calibration"] = settings.calibration
    held["original"] = settings.original
    setattr(config, KEY, copy.deepcopy(held))
    name_implementation(config, settings)


def name_implementation(config: Any, settings: Settings) -> None:
    """Have the attention implementation saved: by itself transformers leaves it out of a config."""
    if settings.uses_our_attention:
        config.attn_implementation = IMPLEMENTATION
    else:
        config.__dict__.pop("attn_implementation", None)
