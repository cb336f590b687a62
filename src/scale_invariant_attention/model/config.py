"""The configuration of a GPT: its sizes and its scheme."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .. import schemes
from ..arguments import check_field_names, integer, shown
from ..schemes import ModelScheme

# Far beyond any head in use; frequencies are computed per pair of dimensions.
LARGEST_HEAD = 2**16
# Beyond it, float64 does not hold every length.
LONGEST = 2**53
# Slots of a scheme that have no meaning without causality.
CAUSAL_SLOTS = {
    "key_bias": "which adds up the gates between a key and a later query",
    "memory": "which holds the segments before a query",
}


@dataclass(frozen=True)
class GPTConfig:
    """Sizes and scheme of a GPT; the defaults are the paper's model of 162 million parameters.

    `scheme_name` is one of ``schemes.names()``, or None for a model with an unnamed scheme:
    ``GPT(config, scheme=Scheme(...))``. Names joined by commas are a pattern that repeats over
    the layers. `scheme_options` are the options of a named scheme except `train_length`:
    see ``schemes.options(name)``. `train_length` is the context length of training. It
    limits nothing: a model accepts any length. Schemes that change beyond it (NTK, YaRN) or start from
    it (LogN) need it. Without `is_causal` the model is an encoder: every token sees its whole document.

    >>> GPTConfig(width=1024, heads=8).head_dim
    128
    >>> GPTConfig(scheme_name="scale-invariant-rope", scheme_options={"tau": 1.0}).scheme.distance
    ScaleInvariant(tau=1.0, highest_tau=None, learn_tau=False, without=None,
        sigma=1.0, mu=0.0, learn_sigma=False)
    >>> GPTConfig(scheme_name="rope,nope", scheme_options={"rope.window": 64}).scheme.of_layer(2)
    Scheme(rotary=RoPE(base=10000.0), query_scale=None, distance=Unchanged(), window=64)
    """

    vocab_size: int = 50_304
    layers: int = 12
    width: int = 768
    heads: int = 6
    scheme_name: str | None = "scale-invariant-p-rope"
    scheme_options: Mapping[str, Any] = field(default_factory=dict)
    train_length: int | None = None
    qk_norm: bool = True
    is_causal: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "layers", "width", "heads", "train_length"):
            if name != "train_length" or self.train_length is not None:
                # As Python integers, which JSON can hold.
                object.__setattr__(self, name, integer(name, getattr(self, name), at_least=1))
        for name in ("qk_norm", "is_causal"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if self.train_length is not None and self.train_length > LONGEST:
            raise ValueError(
                f"train_length must be at most {LONGEST:,}, got {shown(self.train_length)}"
            )
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads, got width={shown(self.width)} and "
                f"heads={shown(self.heads)}"
            )
        if self.head_dim > LARGEST_HEAD:
            raise ValueError(
                f"width / heads must be at most {LARGEST_HEAD}, got {shown(self.width)} / "
                f"{shown(self.heads)}"
            )
        self._check_scheme()

    def _check_scheme(self) -> None:
        if not isinstance(self.scheme_options, Mapping):
            raise TypeError(f"scheme_options must be a dict, got {self.scheme_options!r}")
        # Neither a default nor the caller's own dict, which may change.
        object.__setattr__(self, "scheme_options", dict(self.scheme_options))
        try:
            json.dumps(self.scheme_options, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"scheme_options must hold what JSON can hold, got {self.scheme_options}: {error}"
            ) from error
        if self.scheme_name is None:
            if self.scheme_options:
                raise ValueError(
                    f"scheme_options must be empty without a scheme_name, got {self.scheme_options}"
                )
            return
        if "train_length" in self.scheme_options:
            raise ValueError("train_length is a field of GPTConfig, not one of scheme_options")
        if self.train_length is None and "train_length" in schemes.options(self.scheme_name):
            raise ValueError(
                f"train_length must be given for scheme {self.scheme_name!r}, which depends on it"
            )
        self.check_scheme(self.scheme)

    def check_scheme(self, scheme: ModelScheme) -> None:
        """Refuse a scheme that cannot rotate heads of this size, or that this model has no layers for.

        Nor can one that is defined by the tokens before a query be that of an encoder.
        """
        if not self.is_causal:
            for slot, reason in CAUSAL_SLOTS.items():
                if any(getattr(each, slot) is not None for each in scheme.pattern):
                    raise ValueError(
                        f"is_causal must be True for schemes with a {slot}, {reason}, got False: use "
                        f"another scheme for an encoder"
                    )
        if len(scheme.pattern) > self.layers:
            raise ValueError(
                f"layers must be at least {len(scheme.pattern)}, the number of schemes in the pattern, "
                f"got {self.layers}: the last schemes would not be used"
            )
        try:
            for each in scheme.pattern:
                if each.rotary is not None:
                    each.rotary.frequencies(self.head_dim, 1)
        except ValueError as error:
            raise ValueError(
                f"width / heads = {self.width} / {self.heads} does not suit the scheme: {error}"
            ) from error

    def check_is_causal(self, name: str) -> None:
        """Refuse what an encoder cannot do, which sees the tokens that it would predict."""
        if not self.is_causal:
            raise ValueError(
                f"{name} needs a model that predicts the next token, with is_causal=True in its "
                f"configuration, got an encoder with is_causal=False"
            )

    @property
    def head_dim(self) -> int:
        """Dimensions per head."""
        return self.width // self.heads

    @property
    def scheme(self) -> ModelScheme:
        """The scheme, with its options."""
        if self.scheme_name is None:
            raise ValueError(
                "the configuration names no scheme: pass the model one, "
                "GPT(config, scheme=Scheme(...)), or set scheme_name in GPTConfig"
            )
        options = dict(self.scheme_options)
        if "train_length" in schemes.options(self.scheme_name):
            options["train_length"] = self.train_length
        return schemes.get(self.scheme_name, **options)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "GPTConfig":
        """One of `PRESETS`, with any fields changed.

        >>> GPTConfig.preset("mini", scheme_name="alibi").layers
        4
        """
        if name not in PRESETS:
            raise ValueError(f"there is no preset {name!r}; the presets are: {', '.join(PRESETS)}")
        return cls.from_dict({**PRESETS[name], **changes})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "GPTConfig":
        """A configuration from its fields; unknown ones are refused.

        >>> GPTConfig.from_dict({"head": 8})
        Traceback (most recent call last):
        TypeError: GPTConfig has no field 'head' (did you mean 'heads'?); its fields are: vocab_size, ...
        """
        check_field_names(cls, values)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The fields, as JSON can hold them; `is_causal` only if False, as older files lack it."""
        values = asdict(self)
        if self.is_causal:
            del values["is_causal"]
        return values


# The two models of the paper, trained at 4096 tokens, and a byte-level one for CPUs.
PRESETS: dict[str, dict[str, Any]] = {
    "162m": {"layers": 12, "width": 768, "heads": 6, "train_length": 4096},
    "304m": {"layers": 16, "width": 1024, "heads": 8, "train_length": 4096},
    "mini": {"vocab_size": 256, "layers": 4, "width": 128, "heads": 4, "train_length": 256},
}
