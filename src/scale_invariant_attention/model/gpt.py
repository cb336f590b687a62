"""The paper's GPT: pre-norm blocks without gains or biases, and a scheme for the positions.

x = rms(embedding[tokens]);   x = block(x) for every block;   logits = head(rms(x))

Shapes: B batch, L tokens, W width, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..arguments import integer
from ..attention.numerics import compute_dtype
from ..schemes import ModelScheme, SchemeLayer, rotation
from . import storage
from ._cache import KeyValueCache, LayerCache
from ._generation import Sampler, generate_tokens
from ._segments import SegmentLayout, segment_layouts
from .block import Attention, Block, ForwardPass, check_backend, initialise_blocks, rms
from .config import GPTConfig
from .context_parallel import ContextParallel, SharedRows
from .inputs import (
    TokenLayout,
    cached_layout,
    check_context_length,
    check_inputs,
    token_layout,
)
from .loss import projected_cross_entropy
from .pretrained import model_folder
from .storage import SavedModelError


class GPT(nn.Module):
    """A GPT with the scheme of its configuration, for contexts of any length.

    Args:
        config: sizes and scheme.
        scheme: a scheme of your own instead of the one that `config` names, or a `LayeredScheme`; the
            model's configuration then has no scheme name.
        backend: the backend of attention: "auto", or one of ``available_backends(device)``.
        checkpoint_activations: keep one activation per block for backward, and recompute the rest.

    >>> model = GPT(GPTConfig.preset("mini"))
    >>> tokens = torch.randint(256, (2, 100))
    >>> model(tokens).shape
    torch.Size([2, 100, 256])
    >>> model(tokens[:, :-1], targets=tokens[:, 1:])
    tensor(5.5452, grad_fn=...)
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        scheme: ModelScheme | None = None,
        backend: str = "auto",
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        _check_arguments(config, scheme, backend, checkpoint_activations)
        if scheme is not None:
            config = replace(config, scheme_name=None, scheme_options={})
            config.check_scheme(scheme)
        self.config = config
        self.scheme = config.scheme if scheme is None else scheme
        layer_schemes = [self.scheme.of_layer(i) for i in range(config.layers)]
        # The first layer with an equal scheme, per layer.
        self._layers_like = [layer_schemes.index(each) for each in layer_schemes]
        self.backend = backend
        self.checkpoint_activations = checkpoint_activations
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config, each, i) for i, each in enumerate(layer_schemes))
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        memories = (attention.scheme.memory for attention in self._attention_layers())
        self._segment_lengths = {it.segment_length for it in memories if it is not None}
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialise all weights; matrices that write to the residual stream, and the head, are zero."""
        nn.init.normal_(self.embedding.weight)
        nn.init.zeros_(self.head.weight)
        initialise_blocks(self.blocks)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        token_mask: Tensor | None = None,
        context_length: int | Tensor | None = None,
        cache: KeyValueCache | None = None,
        context_parallel: ContextParallel | None = None,
        reduction: Literal["mean", "none"] = "mean",
    ) -> Tensor:
        """The logits ``[B, L, V]``, float32; with targets the loss.

        Args:
            tokens: integers ``[B, L]``.
            targets: integers ``[B, L]``, the tokens to predict; -100 is ignored. The loss is computed in
                chunks, without holding all logits.
            positions: integers ``[L]`` or ``[B, L]``; None counts from 0 in every document.
            documents: integers ``[L]`` or ``[B, L]``, for packed batches: neighbouring tokens with the
                same number form a document, and attention stays inside it.
            token_mask: bool ``[B, L]``, False for padding.
            context_length: the context length for schemes that depend on it: a number, or integers
                ``[B]``. By default the length of a token's document.
            cache: from `new_cache`; the tokens follow those in it, and are added to it.
            context_parallel: the ranks that share the rows of this call. All of them pass whole rows;
                each gets the logits or losses of its own part.
            reduction: "mean", or "none" for the loss of every token, ``[B, L]``.
        """
        hidden = self.hidden_states(
            tokens,
            positions=positions,
            documents=documents,
            token_mask=token_mask,
            context_length=context_length,
            cache=cache,
            context_parallel=context_parallel,
        )
        if targets is None:
            return self.logits(hidden)
        if context_parallel is not None:
            targets = context_parallel.part(targets)
        return projected_cross_entropy(hidden, self.head.weight, targets, reduction=reduction)

    def hidden_states(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        token_mask: Tensor | None = None,
        context_length: int | Tensor | None = None,
        cache: KeyValueCache | None = None,
        context_parallel: ContextParallel | None = None,
    ) -> Tensor:
        """The input of the head, ``[B, L, W]``; arguments as in `forward`."""
        vocab_size = self.config.vocab_size
        described = (positions, documents, token_mask, context_length)
        check_inputs(vocab_size, tokens, *described, cache, context_parallel)
        if context_parallel is not None and any(it.key_bias for it in self.scheme.pattern):
            raise NotImplementedError(
                "context_parallel must be None for schemes with a key_bias, such as 'fox', whose sums "
                f"run over whole rows, got {context_parallel}: leave it out, or use another scheme"
            )
        if context_parallel is not None and self._segment_lengths:
            raise NotImplementedError(
                "context_parallel must be None for schemes with a memory, such as 'infini-rope', which "
                f"segments pass on, got {context_parallel}: leave it out, or use another scheme"
            )
        shared = None if context_parallel is None else context_parallel.rows(tokens.shape[1])
        if cache is None:
            layout = token_layout(tokens, *described, is_causal=self.config.is_causal)
            if shared is not None:
                layout, tokens = layout.part(shared), shared.part(tokens)
        else:
            cache.begin(self, tokens.shape[0])
            check_context_length(cache.context_length, tokens.shape[0])
            layout = cached_layout(tokens, positions, token_mask, cache)
        out = self.transformed(self.embedding(tokens.long()), layout, cache, shared)
        if cache is not None:
            cache.advance(tokens.shape[1])
        return out

    def transformed(
        self,
        embedded: Tensor,
        layout: TokenLayout,
        cache: LayerCache | None = None,
        shared: SharedRows | None = None,
    ) -> Tensor:
        """Embeddings ``[B, L, W]`` through all blocks, without any checks."""
        x = rms(embedded)
        segments = segment_layouts(self._segment_lengths, layout, cache)
        calls: dict[int, ForwardPass] = {}
        for block, like in zip(self.blocks, self._layers_like, strict=True):
            if like not in calls:
                calls[like] = self._forward_pass(like, layout, x.dtype, cache, shared, segments)
            if self.checkpoint_activations and torch.is_grad_enabled():
                x = checkpoint(block, x, calls[like], use_reentrant=False)
            else:
                x = block(x, calls[like])
        return rms(x)

    def _forward_pass(
        self,
        layer: int,
        layout: TokenLayout,
        dtype: torch.dtype,
        cache: LayerCache | None,
        shared: SharedRows | None,
        segments: Mapping[int, SegmentLayout],
    ) -> ForwardPass:
        """What a layer shares with all that have an equal scheme."""
        scheme, rotate = self.scheme.of_layer(layer), None
        if scheme.rotary is not None:
            rotate = rotation(
                scheme.rotary, layout.tokens, self.config.head_dim, compute_dtype(dtype)
            )
        if scheme.window is not None:
            forgotten = 0 if cache is None else cache.forgotten(layer)
            layout = layout.within(scheme.window, forgotten)
        return ForwardPass(layout, rotate, cache, self.backend, shared, segments)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., V]`` of hidden states, float32 or wider."""
        logits: Tensor = self.head(hidden)
        return logits.to(compute_dtype(logits.dtype))

    def new_cache(
        self, *, context_length: int | Tensor | None = None, room: int = 64
    ) -> KeyValueCache:
        """An empty cache of keys and values, for `forward` under ``torch.no_grad()``.

        Args:
            context_length: for schemes that depend on it, the length that the text will have: a number,
                or integers ``[B]``. By default the training length, or the length of the first call if
                that is longer.
            room: the number of tokens to allocate memory for at first.
        """
        self.config.check_is_causal("new_cache")
        check_context_length(context_length)
        return KeyValueCache(self, context_length, integer("room", room, at_least=1))

    def generate(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        *,
        token_mask: Tensor | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop_tokens: Sequence[int] = (),
        seed: int | None = None,
    ) -> Tensor:
        """The prompts and the tokens generated after them, ``[B, L + new]``.

        Args:
            tokens: prompts, integers ``[B, L]``, padded on the left (see `left_padded`).
            max_new_tokens: the maximum number of tokens to generate.
            token_mask: bool ``[B, L]``, False for padding.
            temperature: 0 takes the likeliest token and ignores `top_k`, `top_p` and `seed`; 1 samples
                as the model predicts.
            top_k: sample only among the `top_k` likeliest tokens.
            top_p: sample only among the fewest likeliest tokens whose probabilities add up to this.
            stop_tokens: a row ends with the first of these, which then fills the rest of the row.
                Generation ends when all rows have ended.
            seed: makes samples reproducible; None uses torch's global generator.
        """
        sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        written = generate_tokens(self, tokens, token_mask, max_new_tokens, sampler, stop_tokens)
        return torch.cat([tokens.long(), *(column.unsqueeze(1) for column in written)], dim=1)

    def stream(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        *,
        token_mask: Tensor | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop_tokens: Sequence[int] = (),
        seed: int | None = None,
    ) -> Iterator[Tensor]:
        """The tokens of `generate`, ``[B]`` per step, as they are generated."""
        sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        return generate_tokens(self, tokens, token_mask, max_new_tokens, sampler, stop_tokens)

    def save_pretrained(
        self,
        folder: str | PathLike[str],
        *,
        state_dict: Mapping[str, Tensor] | None = None,
        shard_bytes: int = 5 * 10**9,
        stored_dtype: torch.dtype | None = None,
    ) -> None:
        """Save configuration and weights to a folder, replacing a model saved there.

        The old model stays intact until the new one is complete.

        Args:
            folder: created if it does not exist.
            state_dict: the gathered weights of a model that holds only a part of them, as under FSDP.
            shard_bytes: the maximum size of a weights file.
            stored_dtype: the dtype to round weights to in the files, such as float16 to halve them; they
                are loaded in their own dtype. None rounds nothing.
        """
        weights = self.state_dict() if state_dict is None else dict(state_dict)
        if state_dict is not None:
            try:
                _check_tensors(self, weights)
            except ValueError as error:
                raise ValueError(f"state_dict cannot be saved: {error}") from error
        storage.save(
            folder,
            self.config.to_dict(),
            weights,
            shard_bytes=shard_bytes,
            stored_dtype=stored_dtype,
        )

    @classmethod
    def from_pretrained(
        cls,
        folder: str | PathLike[str],
        *,
        scheme: ModelScheme | None = None,
        backend: str = "auto",
        checkpoint_activations: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> "GPT":
        """Load a model that `save_pretrained` saved, or a pretrained one by its name.

        Args:
            folder: the folder of the model, or a name that `pretrained_models` lists.
            scheme: the scheme of a model that was built with a scheme of its own.
            backend: as for a new model; so is `checkpoint_activations`.
            device: the device of the weights.
            dtype: the dtype to convert the weights to; None keeps theirs.
        """
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"dtype must be a floating dtype of torch or None, got {dtype!r}")
        folder = model_folder(folder)
        values, tensors = storage.load(folder)
        try:
            known = {"is_causal", *values}
            missing = [each.name for each in fields(GPTConfig) if each.name not in known]
            if missing:
                raise ValueError(f"its configuration lacks {', '.join(missing)}")
            storage.check_sizes(values, tensors)
            with torch.device("meta"):
                model = cls(
                    GPTConfig.from_dict(values),
                    scheme=scheme,
                    backend=backend,
                    checkpoint_activations=checkpoint_activations,
                )
            # A scheme may hold more than is saved, so its layers are built, not only loaded.
            for attention in model._attention_layers():
                attention.scheme = SchemeLayer(
                    model.scheme.of_layer(attention.layer), attention.heads, model.config.width
                )
            _check_tensors(model, tensors)
        except (TypeError, ValueError) as error:
            path = folder / storage.CONFIG
            raise SavedModelError(f"{path} cannot be opened: {error}") from error
        model.load_state_dict(tensors, assign=True)
        return model.to(device=device, dtype=dtype)

    def _attention_layers(self) -> Iterator[Attention]:
        return (module for module in self.modules() if isinstance(module, Attention))


def _check_arguments(
    config: GPTConfig, scheme: ModelScheme | None, backend: str, checkpoint_activations: bool
) -> None:
    if not isinstance(config, GPTConfig):
        raise TypeError(f"config must be a GPTConfig, as GPTConfig.preset(name), got {config!r}")
    if scheme is not None and not isinstance(scheme, ModelScheme):
        raise TypeError(
            f"scheme must be a Scheme or a LayeredScheme, got {scheme!r}; pass a name as "
            "GPTConfig(scheme_name=name)"
        )
    check_backend(backend)
    given = checkpoint_activations
    if not isinstance(given, bool):
        raise TypeError(f"checkpoint_activations must be True or False, got {given!r}")


def _check_tensors(model: GPT, tensors: dict[str, Tensor]) -> None:
    """Refuse weights that do not fit the model, naming the first mismatch."""
    expected = model.state_dict()
    for name in [*expected, *sorted(tensors.keys() - expected.keys())]:
        if name not in tensors:
            wrong = f"{name} is missing"
        elif name not in expected:
            wrong = f"{name} is no parameter of this model"
        elif tensors[name].shape != expected[name].shape:
            wrong = (
                f"{name} has shape {tuple(tensors[name].shape)}, "
                f"but the configuration makes it {tuple(expected[name].shape)}"
            )
        elif tensors[name].is_floating_point() != expected[name].is_floating_point():
            wrong = f"{name} has dtype {tensors[name].dtype}"
        else:
            continue
        raise ValueError(f"its weights do not fit its configuration: {wrong}")
