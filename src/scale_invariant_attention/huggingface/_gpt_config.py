"""The configuration of our GPT for transformers, converted from and to ``GPTConfig``."""

from typing import Any, ClassVar

from transformers import PreTrainedConfig

from ..model import GPTConfig

MODEL_TYPE = "scale_invariant_gpt"
# Names in transformers, and those in GPTConfig.
FIELDS = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "layers",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "scheme_name": "scheme_name",
    "scheme_options": "scheme_options",
    "train_length": "train_length",
    "qk_norm": "qk_norm",
}


class ScaleInvariantGPTConfig(PreTrainedConfig):  # type: ignore[misc]
    """Sizes and scheme of a GPT: the fields of ``GPTConfig``, and those of every transformers model.

    >>> config = ScaleInvariantGPTConfig(vocab_size=256, hidden_size=64, num_attention_heads=2)
    >>> config.gpt().head_dim
    32
    """

    model_type: ClassVar[str] = MODEL_TYPE
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: int = 50_304
    num_hidden_layers: int = 12
    hidden_size: int = 768
    num_attention_heads: int = 6
    scheme_name: str | None = "scale-invariant-p-rope"
    scheme_options: dict[str, Any] | None = None
    train_length: int | None = None
    qk_norm: bool = True
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False

    def __post_init__(self, **others: Any) -> None:
        self.scheme_options = dict(self.scheme_options or {})
        super().__post_init__(**others)
        if self.tie_word_embeddings:
            raise ValueError(
                "tie_word_embeddings must be False: this GPT has a separate head, which starts at 0"
            )
        self.gpt()

    def gpt(self) -> GPTConfig:
        """This configuration as a ``GPTConfig``."""
        values = {ours: getattr(self, theirs) for theirs, ours in FIELDS.items()}
        if self.scheme_name is None:
            raise ValueError(
                "scheme_name must be one of schemes.names(), got None: a scheme without a name is code, "
                "which a configuration cannot hold; register it with schemes.register"
            )
        try:
            return GPTConfig.from_dict(values)
        except (TypeError, ValueError) as error:
            error.add_note(
                "In transformers width is hidden_size, heads num_attention_heads, and layers "
                "num_hidden_layers."
            )
            raise

    @classmethod
    def of(cls, config: GPTConfig, **others: Any) -> "ScaleInvariantGPTConfig":
        """The configuration for a ``GPTConfig``; `others` are fields such as `eos_token_id`.

        >>> ScaleInvariantGPTConfig.of(GPTConfig.preset("mini", scheme_name="yarn")).num_hidden_layers
        4
        """
        values = config.to_dict()
        return cls(**{theirs: values[ours] for theirs, ours in FIELDS.items()}, **others)
