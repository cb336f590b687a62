"""Continued pretraining of a language model with transformers' Trainer, as in the paper's Table 4.

The folder holds the recipe, Trainer's checkpoints and, at the end, the model and its loss per step.
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
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from ..arguments import integer, positive_number
from ..data import TokenSource, Windows
from ..data.tasks import NOT_SCORED, Task, TaskBatches
from ..files import finish_growing, growing_path, replace_file
from ..files.json_files import read_json_object
from . import settings as held
from ._attention import NAME, dropout_reason

RECIPE, LOG, MODEL = "recipe.json", "training.json", "model"
# Trainer writes this file last: a checkpoint that has it is complete.
STATE = "trainer_state.json"


@dataclass(frozen=True)
class PretrainingRecipe:
    """Hyperparameters. Length, tokens and learning rate default to the paper's for Llama-2-7B.

    `tokens` is rounded up to whole steps. A step has `batch_size` sequences of `length` tokens over all
    devices, each of which computes `micro_batch_size` at once, by default its share of the step.
    Sequences run across document boundaries, in an order given by `seed`. AdamW's rate rises for
    `warmup_steps`, then follows a `schedule` of transformers, such as "cosine" or "linear". With a
    `lora_rank`, LoRA adapters are trained and merged at the end; None trains all weights.

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
        """Number of steps, enough for all tokens."""
        return ceil(self.tokens / (self.batch_size * self.length))

    def micro_batches(self, devices: int) -> tuple[int, int]:
        """Sequences per micro-batch, and micro-batches per device and step.

        >>> PretrainingRecipe(batch_size=16, micro_batch_size=2).micro_batches(devices=4)
        (2, 2)
        """
        size = self.micro_batch_size or max(1, self.batch_size // devices)
        if self.batch_size % (size * devices):
            raise ValueError(
                "batch_size must be a multiple of micro_batch_size times devices, "
                f"{size} * {devices}, got {self.batch_size}"
            )
        return size, self.batch_size // (size * devices)


class WindowRows(Dataset[dict[str, Tensor]]):
    """The training sequences as a dataset for Trainer, in the order of :class:`Windows`.

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
        # transformers models shift labels themselves.
        return {"input_ids": tokens, "labels": tokens}


class TaskRows(Dataset[dict[str, Tensor]]):
    """Examples of a task as a dataset for Trainer, in the order of :class:`TaskBatches`.

    >>> from scale_invariant_attention.data.tasks import RecallTask
    >>> recipe = PretrainingRecipe(tokens=1000, length=100, batch_size=2)
    >>> row = TaskRows(RecallTask(queries=2), recipe)[1]
    >>> row["input_ids"].shape, int((row["labels"] != NOT_SCORED).sum())
    (torch.Size([100]), 2)
    """

    def __init__(
        self,
        task: Task,
        recipe: PretrainingRecipe,
        first_length: int | None = None,
        growth_steps: int = 0,
    ) -> None:
        self._batches = TaskBatches(
            task,
            length=recipe.length,
            batch_size=recipe.batch_size,
            first_length=first_length,
            growth_steps=growth_steps,
        )
        self._steps, self._size = recipe.steps, recipe.batch_size

    def __len__(self) -> int:
        return self._steps * self._size

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        step, index = divmod(row, self._size)
        inputs, targets = (it[0] for it in self._batches.rank(index, of=self._size)[step])
        # transformers models shift labels themselves: a token has the label of its own position.
        labels = torch.cat([torch.tensor([NOT_SCORED]), targets])
        return {"input_ids": torch.cat([inputs, targets[-1:]]), "labels": labels}


def checked_recipe(
    fine_tune: int | PretrainingRecipe, length: int, model: Any
) -> PretrainingRecipe:
    """The recipe of a fine-tuning given by its tokens or as a recipe, if it can change the model."""
    reason = dropout_reason(model.config)
    if reason:
        raise NotImplementedError(f"fine_tune must be None for this model: {reason}")
    recipe = fine_tune
    if not isinstance(recipe, PretrainingRecipe):
        recipe = PretrainingRecipe(integer("fine_tune", fine_tune, at_least=1), length)
    if recipe.steps <= recipe.warmup_steps:
        step = recipe.batch_size * recipe.length
        raise ValueError(
            f"fine_tune must be more than {recipe.warmup_steps * step:,} tokens, got {recipe.tokens:,}: "
            f"a step has {step:,}, and the first {recipe.warmup_steps} steps only warm up"
        )
    return recipe


def continue_pretraining(
    model: Any,
    corpus: TokenSource,
    folder: str | os.PathLike[str],
    recipe: PretrainingRecipe | None = None,
    *,
    optimiser: torch.optim.Optimizer | None = None,
    watch: Callable[[int, float], object] = lambda step, loss: None,
    **arguments: Any,
) -> Any:
    """Continue pretraining a model, and return it; it is also saved in ``folder/model``.

    If interrupted, the same call with the same starting model resumes from the last complete
    checkpoint. A finished training is loaded, not repeated.

    Args:
        model: a causal language model of transformers, usually converted: see :func:`convert`.
        corpus: a corpus of ``scale_invariant_attention.data`` (``open_shards``, ``text_files``,
            ``standard_library``) in the tokens of the model's own tokenizer.
        folder: folder for checkpoints and the trained model.
        recipe: hyperparameters, the paper's by default.
        optimiser: of the model's parameters, whose rates follow the recipe's schedule; by default AdamW
            with the recipe's rate and weight decay. Resuming needs one that is built in the same way.
        watch: called after every step with its number, from 1, and its loss.
        arguments: further ``TrainingArguments``: ``bf16=True``, ``gradient_checkpointing=True``.

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
    if corpus.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"corpus must have tokens below the model's vocab_size, {model.config.vocab_size}, got a "
            f"corpus with {corpus.vocab_size}: encode the text with the model's own tokenizer"
        )
    data = {"corpus": {"tokens": len(corpus), "vocab_size": corpus.vocab_size}}
    rows = WindowRows(corpus, recipe)
    return _train(model, rows, data, Path(folder), recipe, optimiser, watch, arguments)


def fine_tune_on_task(
    model: Any,
    task: Task,
    folder: str | os.PathLike[str],
    recipe: PretrainingRecipe,
    *,
    first_length: int | None = None,
    growth_steps: int = 0,
    watch: Callable[[int, float], object] = lambda step, loss: None,
    **arguments: Any,
) -> Any:
    """Fine-tune a model on a task whose last token is scored, such as needles, and return it.

    As :func:`continue_pretraining`. Sequences grow from `first_length` to the recipe's length at step
    `growth_steps`; the recipe counts the tokens of all sequences as if they had its length.
    """
    rows = TaskRows(task, recipe, first_length, growth_steps)
    data = {"task": {"name": type(task).__name__, "lengths": [first_length, growth_steps]}}
    return _train(model, rows, data, Path(folder), recipe, None, watch, arguments)


def _train(
    model: Any,
    rows: Dataset[dict[str, Tensor]],
    data: dict[str, Any],
    folder: Path,
    recipe: PretrainingRecipe,
    optimiser: torch.optim.Optimizer | None,
    watch: Callable[[int, float], object],
    arguments: dict[str, Any],
) -> Any:
    """Train a model on rows, which `data` describes; see :func:`continue_pretraining`."""
    settings, reason = held.read(model.config), dropout_reason(model.config)
    if reason and settings is not None and settings.uses_our_attention:
        raise NotImplementedError(f"this model cannot be trained: {reason}")
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "recipe": asdict(recipe),
        "scheme": None if settings is None else settings.to_dict(),
        "model": fingerprint(model),
        "optimiser": None if optimiser is None else _groups(optimiser),
        **data,
    }
    check_same(folder / RECIPE, described, "training")
    if (folder / MODEL / "config.json").exists():
        return type(model).from_pretrained(folder / MODEL, dtype=model.dtype).to(model.device)
    if recipe.lora_rank is not None:
        model = _with_adapters(model, recipe.lora_rank)
    trainer = Trainer(
        model=model,
        args=_training_arguments(folder, recipe, arguments),
        train_dataset=rows,
        callbacks=[_StepLog(watch)],
        optimizers=(optimiser, None),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=_last_checkpoint(folder))
    if recipe.lora_rank is not None:
        # The adapters become part of the weights.
        trainer.model = model = model.merge_and_unload()
    if trainer.is_world_process_zero():
        lines = [line for line in trainer.state.log_history if "loss" in line]
        log = {name: [line[name] for line in lines] for name in ("loss", "grad_norm", "seconds")}
        replace_file(folder / LOG, json.dumps(log).encode())
    # Renamed once it is complete.
    trainer.save_model(str(growing_path(folder / MODEL)))
    if trainer.is_world_process_zero():
        finish_growing(folder / MODEL)
    return model


def _groups(optimiser: torch.optim.Optimizer) -> list[dict[str, float]]:
    """Learning rate and number of weights of each group."""
    return [{"lr": it["lr"], "weights": len(it["params"])} for it in optimiser.param_groups]


def training_log(folder: str | os.PathLike[str]) -> dict[str, list[float]]:
    """Loss, gradient norm and seconds per step of a finished training."""
    # The loss of a training that diverged is NaN.
    return read_json_object(Path(folder) / LOG, finite=False)


class _StepLog(TrainerCallback):  # type: ignore[misc]
    """Adds the seconds of each step to Trainer's log, which its checkpoints keep."""

    def __init__(self, watch: Callable[[int, float], object]) -> None:
        self._watch, self._start = watch, 0.0

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
    size, count = recipe.micro_batches(int(os.environ.get("WORLD_SIZE", "1")))
    fixed = {
        "output_dir": str(folder),
        "max_steps": recipe.steps,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": count,
        "optim": "adamw_torch",
        "learning_rate": recipe.learning_rate,
        "lr_scheduler_type": recipe.schedule,
        "warmup_steps": recipe.warmup_steps,
        "weight_decay": recipe.weight_decay,
        "max_grad_norm": recipe.clip_norm,
        "seed": recipe.seed,
        "save_steps": recipe.checkpoint_every,
    }
    clashing = fixed.keys() & others.keys()
    if clashing:
        names = ", ".join(sorted(clashing))
        raise TypeError(f"{names} cannot be among arguments: the recipe or the folder sets it")
    defaults = {
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
        # Rows are already shuffled, and in a fixed order a resumed training continues exactly.
        "train_sampling_strategy": "sequential",
    }
    return TrainingArguments(**{**defaults, **others, **fixed})


def fingerprint(model: Any) -> str:
    """SHA-256 of every weight's name, shape and about a thousand values: identifies a starting model."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        values = weight.detach().flatten()
        some = values[:: max(1, len(values) // 1000)]
        digest.update(some.to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()


def check_same(path: Path, described: dict[str, Any], noun: str) -> None:
    """Record what is done in a folder, called `noun` in errors, and refuse to resume anything else."""
    text = json.dumps(described, indent=1)
    if not path.exists():
        replace_file(path, text.encode())
    recorded = read_json_object(path)
    different = [name for name, value in json.loads(text).items() if recorded.get(name) != value]
    if different:
        raise ValueError(
            f"{path.parent} holds another {noun}, which differs in {' and '.join(different)} ({path}): "
            "pass another folder, or remove this one"
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
            f"lora_rank must be None for a scheme with parameters, which adapters would freeze, such "
            f"as {learned[0]}: train all weights, or use a scheme without parameters"
        )
    config = LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules="all-linear"
    )
    return get_peft_model(model, config)


def _last_checkpoint(folder: Path) -> str | None:
    complete = [state.parent for state in folder.glob(f"checkpoint-*/{STATE}")]
    last = max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
    return None if last is None else str(last)
