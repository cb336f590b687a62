"""Our GPT as a transformers model: the same modules behind its configuration, calls and caches."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils.generic import can_return_tuple

from ..model import GPT, GPTConfig, projected_cross_entropy
from ..model.inputs import check_context_length, check_inputs
from ..model.loss import IGNORED
from ..schemes import SchemeLayer
from ._attention import reset_missing_parameters
from ._gpt_inputs import TokenArguments, TransformersCache, token_arguments

MODEL_TYPE = "scale_invariant_gpt"
# The fields of GPTConfig that have other names in transformers.
RENAMED = {"layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads"}


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
            raise ValueError("tie_word_embeddings must be False: this GPT has a separate head")
        self.gpt()

    def gpt(self) -> GPTConfig:
        """This configuration as a ``GPTConfig``."""
        if self.scheme_name is None:
            raise ValueError(
                "scheme_name must be one of schemes.names(), got None: a scheme without a name is code, "
                "which a configuration cannot hold; register it with schemes.register"
            )
        names = (field.name for field in fields(GPTConfig) if field.name != "is_causal")
        try:
            config = GPTConfig(**{name: getattr(self, RENAMED.get(name, name)) for name in names})
        except (TypeError, ValueError) as error:
            error.add_note(f"The names in transformers are: {RENAMED}.")
            raise
        if config.scheme.has_memory:
            raise ValueError(
                f"scheme_name must name a scheme without a memory, which caches of transformers cannot "
                f"keep, got {self.scheme_name!r}: use model.GPT itself"
            )
        return config

    @classmethod
    def of(cls, config: GPTConfig, **others: Any) -> "ScaleInvariantGPTConfig":
        """The configuration for a ``GPTConfig``; `others` are fields such as `eos_token_id`.

        >>> ScaleInvariantGPTConfig.of(GPTConfig.preset("mini", scheme_name="yarn")).num_hidden_layers
        4
        """
        config.check_is_causal("transformers' causal language model")
        values = {RENAMED.get(name, name): value for name, value in config.to_dict().items()}
        return cls(**values, **others)


class ScaleInvariantGPTForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """``model.GPT`` for transformers; the attribute `gpt` is the model itself.

    >>> config = ScaleInvariantGPTConfig(vocab_size=256, num_hidden_layers=2, hidden_size=64,
    ...                                  num_attention_heads=2)
    >>> model = ScaleInvariantGPTForCausalLM(config)
    >>> tokens = torch.tensor([list(b"def main")])
    >>> model(tokens, labels=tokens).loss
    tensor(5.5452, grad_fn=...)
    """

    config_class = ScaleInvariantGPTConfig
    base_model_prefix = "gpt"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["Block"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]

    def __init__(self, config: ScaleInvariantGPTConfig) -> None:
        super().__init__(config)
        self.gpt = GPT(config.gpt())
        self.post_init()

    @classmethod
    def of(cls, gpt: GPT, **others: Any) -> "ScaleInvariantGPTForCausalLM":
        """Wrap a GPT without copying its weights; `others` are fields of its configuration.

        >>> gpt = GPT(GPTConfig.preset("mini"))
        >>> ScaleInvariantGPTForCausalLM.of(gpt).gpt is gpt
        True
        """
        config = ScaleInvariantGPTConfig.of(gpt.config, dtype=gpt.head.weight.dtype, **others)
        with torch.device("meta"):
            model = cls(config)
        model.gpt = gpt
        model.train(gpt.training)
        return model

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether blocks recompute their activations in the backward pass."""
        return self.gpt.checkpoint_activations

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, enabled: bool) -> None:
        self.gpt.checkpoint_activations = enabled

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        context_length: int | Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        skip_logits: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, float32, and the loss if there are labels.

        Args:
            input_ids: integers ``[B, L]``.
            attention_mask: ``[B, N]`` including the tokens of a cache, 0 for padding on either side.
            position_ids: integers ``[B, L]``; by default they count the tokens, padding left out.
            past_key_values: a cache of transformers, dynamic or static.
            inputs_embeds: ``[B, L, W]`` instead of `input_ids`.
            labels: integers ``[B, L]``, the tokens themselves, or -100 to ignore one.
            use_cache: whether to return a cache; by default as the configuration says.
            logits_to_keep: number of last tokens to compute logits for, or their indices; 0 means all.
            context_length: for schemes that depend on it, the context length to assume: a number, or
                integers ``[B]``. With a cache, the final length of the text.
            output_hidden_states: whether to return the input of every block and of the head.
            output_attentions: unsupported, because no backend holds attention weights.
            skip_logits: whether to return the loss alone, which saves memory; by default in training.
            num_items_in_batch: divisor of the summed loss, instead of the number of labels.
            others: further arguments of transformers models; ignored.
        """
        if output_attentions or (output_attentions is None and self.config.output_attentions):
            raise ValueError("output_attentions must be False: attention never stores its weights")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass either input_ids or inputs_embeds, not both or neither")
        if input_ids is not None:
            check_inputs(self.gpt.config.vocab_size, input_ids)
            embedded = self.gpt.embedding(input_ids.long())
        else:
            assert inputs_embeds is not None
            embedded = inputs_embeds
        check_context_length(context_length, embedded.shape[0])
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if use_cache is None:
            use_cache = self.config.use_cache
        if skip_logits is None:
            skip_logits = self.training
        with _block_inputs(self.gpt, bool(output_hidden_states)) as states:
            hidden, cache = self._hidden_states(
                embedded, attention_mask, position_ids, past_key_values, use_cache, context_length
            )
        targets = others.get("shift_labels")
        if targets is None and labels is not None:
            # The target of each token is the label of the next one.
            targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        logits = None
        if targets is None or not skip_logits:
            logits = self.gpt.logits(slice_logits_to_keep(hidden, logits_to_keep))
        return CausalLMOutputWithPast(
            loss=None if targets is None else self._loss(hidden, targets, num_items_in_batch),
            logits=logits,
            past_key_values=cache,
            hidden_states=(*states, hidden) if output_hidden_states else None,
        )

    def _hidden_states(
        self,
        embedded: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        given: Cache | None,
        use_cache: bool,
        context_length: int | Tensor | None,
    ) -> tuple[Tensor, Cache | None]:
        """The input of the head, and the filled cache, if any."""
        if given is not None and not isinstance(given, Cache):
            kind = type(given).__name__
            raise TypeError(f"past_key_values must be a transformers Cache, got {kind}")
        tokens = embedded[:, :, 0]
        past = 0 if given is None else int(given.get_seq_length())
        arguments = token_arguments(tokens, attention_mask, position_ids, past)
        cache = self._cache(given, use_cache, arguments)
        if cache is None:
            layout = arguments.layout(tokens, past, context_length)
            return self.gpt.transformed(embedded, layout), None
        rows, new = tokens.shape
        layers = TransformersCache(cache, past, new)
        lengths = arguments.reached_lengths(past + new)
        context = layers.context_length(self.gpt.scheme, lengths, context_length, rows)
        layout = arguments.layout(tokens, past, context)
        return self.gpt.transformed(embedded, layout, layers), cache

    def _cache(
        self, given: Cache | None, use_cache: bool, arguments: TokenArguments
    ) -> Cache | None:
        """The cache to fill: the given one, or a new one if requested and possible."""
        checkpoints = self.gpt.checkpoint_activations and torch.is_grad_enabled()
        if given is None:
            # Recomputing activations would fill a cache twice.
            possible = use_cache and arguments.counted and not checkpoints
            return DynamicCache(config=self.config) if possible else None
        if not arguments.counted:
            raise ValueError(
                "past_key_values needs position_ids that count the tokens: leave out one of the two"
            )
        if checkpoints:
            raise ValueError(
                "past_key_values cannot be filled with gradient checkpointing: call the model under "
                "torch.no_grad(), or gradient_checkpointing_disable()"
            )
        return given

    def _loss(self, hidden: Tensor, targets: Tensor, items: int | Tensor | None) -> Tensor:
        head = self.gpt.head
        counted = (targets != IGNORED).sum()
        # A head that an adapter, a quantiser or an offloading hook has replaced must be called.
        if type(head) is nn.Linear and not hasattr(head, "_hf_hook"):
            mean = projected_cross_entropy(hidden, head.weight, targets)
        else:
            logits = self.gpt.logits(hidden)
            total = F.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
            )
            mean = total / counted.clamp(min=1)
        if items is None:
            return mean
        return mean * counted / (items.to(mean.device) if isinstance(items, Tensor) else items)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding module."""
        return self.gpt.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embedding module."""
        self.gpt.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        """The head module."""
        return self.gpt.head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the head module."""
        self.gpt.head = new_embeddings

    def resize_token_embeddings(self, *arguments: Any, **named: Any) -> nn.Embedding:
        """Resize embedding and head together."""
        resized: nn.Embedding = super().resize_token_embeddings(*arguments, **named)
        self.gpt.config = replace(self.gpt.config, vocab_size=self.config.vocab_size)
        return resized

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module as ``GPT.initialise`` does; transformers skips loaded weights."""
        layers = (part for part in self.modules() if isinstance(part, SchemeLayer))
        scheme = next((layer for layer in layers if module in layer.modules()), None)
        if scheme is not None:
            reset_missing_parameters(scheme)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
        elif isinstance(module, nn.Linear):
            # A resized head is not part of the model yet.
            name = next((name for name, part in self.named_modules() if part is module), "")
            # The head, and the matrices that write to the residual stream.
            if name.endswith(("gpt.head", "attention.output", "mlp.down")):
                nn.init.zeros_(module.weight)
            else:
                bound = module.weight.shape[1] ** -0.5
                nn.init.uniform_(module.weight, -bound, bound)

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        """Also pass the maximal final length of each text to schemes that depend on it."""
        prepared = super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )
        cache = model_kwargs.get("past_key_values")
        continues = cache is not None and int(cache.get_seq_length()) > 0
        given = model_kwargs.get("context_length")
        if self.gpt.scheme.depends_on_context and given is None and not continues:
            # The cache has no room for the last token, because no token follows it.
            longest = max_cache_length + 1
            mask = model_kwargs.get("attention_mask")
            model_kwargs["context_length"] = (
                longest if mask is None else mask.sum(1) + longest - mask.shape[1]
            )
        return prepared

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None, **_: Any) -> Tensor | None:
        """The mask unchanged, even for static caches: it determines which keys a query sees."""
        return attention_mask


@contextmanager
def _block_inputs(gpt: GPT, enabled: bool) -> Iterator[list[Tensor]]:
    """The inputs of all blocks that run in this context, if enabled."""
    states: list[Tensor] = []
    hooks = [
        block.register_forward_pre_hook(lambda _, given: states.append(given[0]))
        for block in (gpt.blocks if enabled else ())
    ]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()
