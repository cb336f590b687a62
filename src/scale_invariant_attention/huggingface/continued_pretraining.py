"""Continued pretraining of a causal language model with transformers' Trainer, as the paper's Table 4.

A folder holds the recipe, Trainer's checkpoints and, at the end, the losses of every step and the model.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from ..arguments import integer, positive_number
from ..data import TokenSource, Windows
from ..files import finish_growing, growing_path, replace_file
from . import settings as held
from .slots import NAME

RECIPE, LOG, MODEL = "recipe.json", "training.json", "model"
# Trainer writes this file last: a checkpoint that has it is whole.
STATE = "trainer_state.json"


@dataclass(frozen=True)
class PretrainingRecipe:
    """How a model is trained on. Length, tokens and rate are the paper's for Llama-2-7B.

    Args:
        tokens: to train on, rounded up to whole steps.
        length: tokens of a sequence; those of the corpus go on across documents.
        batch_size: sequences of a step, over all devices.
        micro_batch_size: sequences that a device computes at once; by default its part of the step.
        learning_rate: of AdamW, after the warm-up.
        schedule: of the rate, one of transformers' ("constant_with_warmup", "cosine", "linear").
        warmup_steps: in which the rate rises from 0.
        weight_decay: of AdamW.
        clip_norm: of gradients.
        lora_rank: to train adapters of this rank and merge them in the end; None trains all weights.
        seed: of the order of sequences.
        checkpoint_every: so many steps.

    >>> PretrainingRecipe().steps
    763
    """

    tokens: int = 50_000_000
    length: int = 4096
    batch_size: int = 16
    micro_batch_size: int | None = None
    learning_rate: float = 2e-5
    schedule: str = "constant_with_warmup"
    warmup_steps: int = 20
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    lora_rank: int | None = None
    seed: int = 0
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        for name in ("tokens", "length", "batch_size", "checkpoint_every"):
            integer(name, getattr(self, name), at_least=1)
        for name in ("micro_batch_size", "lora_rank"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), at_least=1)
        integer("warmup_steps", self.warmup_steps, at_least=0)
        positive_number("learning_rate", self.learning_rate)

    @property
    def steps(self) -> int:
        """As many as the tokens need."""
        return ceil(self.tokens / (self.batch_size * self.length))

    def micro_batches(self, devices: int) -> tuple[int, int]:
        """Sequences that a device computes at once, and how often it does in a step.

        >>> PretrainingRecipe(batch_size=16, micro_batch_size=2).micro_batches(devices=4)
        (2, 2)
        """
        at_once = self.micro_batch_size or max(1, self.batch_size // devices)
        if self.batch_size % (at_once * devices):
            raise ValueError(
                f"batch_size must be a multiple of micro_batch_size times devices, {at_once} times "
                f"{devices}, got {self.batch_size}"
            )
        return at_once, self.batch_size // (at_once * devices)


class WindowRows(Dataset[dict[str, Tensor]]):
    """The sequences of a training as Trainer takes them, in the order of :class:`Windows`.

    >>> from scale_invariant_attention.data import standard_library
    >>> recipe = PretrainingRecipe(tokens=200, length=8, batch_size=4)
    >>> rows = WindowRows(standard_library("train"), recipe)
    >>> len(rows), rows[3]["input_ids"].shape
    (28, torch.Size([8]))
    """

    def __init__(self, corpus: TokenSource, recipe: PretrainingRecipe) -> None:
        self._windows = Windows(
            corpus, length=recipe.length, batch_size=1, order="shuffled", seed=recipe.seed
        )
        self._count = recipe.steps * recipe.batch_size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        (tokens,), _ = self._windows[row]
        # transformers' models shift labels themselves.
        return {"input_ids": tokens, "labels": tokens}


def continue_pretraining(
    model: Any,
    corpus: TokenSource,
    folder: str | os.PathLike[str],
    recipe: PretrainingRecipe | None = None,
    *,
    watch: Callable[[int, float], object] = lambda step, loss: None,
    **arguments: Any,
) -> Any:
    """Train a model on, and return it; it is in ``folder/model`` too.

    Broken off, it goes on from the last whole checkpoint when it is called again with the same, a model
    as it was before included; and a training that is done is opened and not repeated.

    Args:
        model: a causal language model of transformers, converted before: see :func:`convert`.
        corpus: of ``scale_invariant_attention.data``: ``open_shards``, ``text_files``,
            ``standard_library``, with the tokens of the model's own tokenizer.
        folder: for checkpoints and the trained model.
        recipe: the paper's if it is not given.
        watch: called with every step that is made, counted from 1, and its loss.
        arguments: others of ``TrainingArguments``: ``bf16=True``, ``gradient_checkpointing=True``.

    >>> import tempfile
    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> from scale_invariant_attention.data import standard_library
    >>> from scale_invariant_attention import huggingface
    >>> config = LlamaConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=256)
    >>> model = huggingface.convert(AutoModelForCausalLM.from_config(config))
    >>> recipe = PretrainingRecipe(tokens=64, length=16, batch_size=2)
    >>> folder = tempfile.mkdtemp()
    >>> model = continue_pretraining(model, standard_library("train"), folder, recipe, use_cpu=True)
    >>> len(training_log(folder)["loss"])
    2
    """
    recipe = recipe or PretrainingRecipe()
    place = Path(folder)
    if corpus.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"corpus must have tokens below the model's vocab_size, {model.config.vocab_size}, got a "
            f"corpus with {corpus.vocab_size}: encode the text with the model's own tokenizer"
        )
    place.mkdir(parents=True, exist_ok=True)
    _check_same(place / RECIPE, _described(model, corpus, recipe))
    if (place / MODEL / "config.json").exists():
        return type(model).from_pretrained(place / MODEL, dtype=model.dtype).to(model.device)
    if recipe.lora_rank is not None:
        model = _with_adapters(model, recipe.lora_rank)
    steps = _StepLog(watch)
    trainer = Trainer(
        model=model,
        args=_training_arguments(place, recipe, arguments),
        train_dataset=WindowRows(corpus, recipe),
        data_collator=default_data_collator,
        callbacks=[steps],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=_last_checkpoint(place))
    if recipe.lora_rank is not None:
        # The adapters become part of the weights.
        trainer.model = model = model.merge_and_unload()
    if trainer.is_world_process_zero():
        lines = [line for line in trainer.state.log_history if "loss" in line]
        log = {name: [line[name] for line in lines] for name in ("loss", "grad_norm", "seconds")}
        replace_file(place / LOG, json.dumps(log).encode())
    # Under a name of its own until it is whole.
    trainer.save_model(str(growing_path(place / MODEL)))
    if trainer.is_world_process_zero():
        finish_growing(place / MODEL)
    return model


def training_log(folder: str | os.PathLike[str]) -> dict[str, list[float]]:
    """Loss, norm of the gradient and seconds of every step of a training that is done."""
    log: dict[str, list[float]] = json.loads((Path(folder) / LOG).read_text())
    return log


class _StepLog(TrainerCallback):  # type: ignore[misc]
    """Adds to every line of Trainer's log how long its step took: checkpoints keep the log."""

    def __init__(self, watch: Callable[[int, float], object]) -> None:
        self._watch = watch
        self._start = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._start = perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        line = state.log_history[-1]
        if "loss" in line:
            line["seconds"] = perf_counter() - self._start
            self._watch(state.global_step, line["loss"])


def _training_arguments(
    folder: Path, recipe: PretrainingRecipe, others: dict[str, Any]
) -> TrainingArguments:
    at_once, times = recipe.micro_batches(int(os.environ.get("WORLD_SIZE", "1")))
    own = {
        "output_dir": str(folder),
        "max_steps": recipe.steps,
        "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": times,
        "optim": "adamw_torch",
        "learning_rate": recipe.learning_rate,
        "lr_scheduler_type": recipe.schedule,
        "warmup_steps": recipe.warmup_steps,
        "weight_decay": recipe.weight_decay,
        "max_grad_norm": recipe.clip_norm,
        "seed": recipe.seed,
        "save_steps": recipe.checkpoint_every,
    }
    fixed = {name for name in own if name in others}
    if fixed:
        raise TypeError(
            f"{', '.join(sorted(fixed))} cannot be among the arguments of Trainer: the recipe or the "
            f"folder sets it"
        )
    quiet = {
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
        # Rows are in their order already, and so a resumed training finds its place.
        "train_sampling_strategy": "sequential",
    }
    return TrainingArguments(**{**quiet, **others, **own})


def _described(model: Any, corpus: TokenSource, recipe: PretrainingRecipe) -> dict[str, Any]:
    settings = held.read(model.config)
    return {
        "recipe": asdict(recipe),
        "scheme": None if settings is None else settings.to_dict(),
        "model": _fingerprint(model),
        "corpus": {"tokens": len(corpus), "vocab_size": corpus.vocab_size},
    }


def _fingerprint(model: Any) -> str:
    """SHA-256 of every weight's name, shape and up to a thousand values: to tell starts apart."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        values = weight.detach().flatten()
        some = values[:: max(1, len(values) // 1000)]
        digest.update(some.to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()


def _check_same(path: Path, wanted: dict[str, Any]) -> None:
    """Write down what is trained in a folder, and refuse to go on there with anything else."""
    text = json.dumps(wanted, indent=1)
    if not path.exists():
        replace_file(path, text.encode())
        return
    there = json.loads(path.read_text())
    different = [name for name, value in json.loads(text).items() if there.get(name) != value]
    if different:
        raise ValueError(
            f"folder must be that of the same training, and {path} has another "
            f"{' and '.join(different)}: give another folder, or remove this one"
        )


def _with_adapters(model: Any, rank: int) -> Any:
    """The model with frozen weights and LoRA adapters on its linear layers."""
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("lora_rank needs the package peft: pip install peft") from missing

    learned = [name for name, _ in model.named_parameters() if f"{NAME}." in name]
    if learned:
        raise ValueError(
            f"lora_rank must be None for a scheme with parameters of its own, such as {learned[0]}, "
            f"which adapters would freeze: train all weights, or use a scheme without parameters"
        )
    config = LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules="all-linear"
    )
    return get_peft_model(model, config)


def _last_checkpoint(folder: Path) -> str | None:
    """The last that is whole."""
    whole = [it.parent for it in folder.glob(f"checkpoint-*/{STATE}")]
    last = max(whole, key=lambda it: int(it.name.rpartition("-")[2]), default=None)
    return None if last is None else str(last)
