"""The configuration of a training, one flat list of fields, and its fields from command lines."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch

from ..arguments import check_field_names, integer, positive_number, real_number
from ..attention.backends import BACKENDS
from ..data.windows import ORDERS
from ..model import GPTConfig
from ._optimisers import LearningRates
from ._parallel import PARALLEL
from ._schedules import Cosine, Trapezoid
from .training_data import MASKED, TASKS, TEXT, check_data, check_task

CHOICES = {
    "order": ORDERS,
    "schedule": ("trapezoid", "cosine"),
    "precision": ("float32", "bfloat16"),
    "backend": ("auto", *BACKENDS),
    "parallel": tuple(PARALLEL),
    "task": TASKS,
}
SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class TrainingConfig:
    """A model, its data and its training; the defaults are a small model for CPUs.

    `micro_batch_size` is the number of rows of a batch that a device processes at once; gradients are
    added up. `constant_steps` of None leaves the last 2/7 of the steps to the decay, as in the paper.
    `task` is "text", to predict text; "needles", to find sentences hidden in it; "masked-text", to
    predict hidden tokens of text with an encoder; or one of the tasks that need no text, such as
    "recall": see ``data.tasks``. `task_options` are fields of the task's class, for needles of
    ``NeedleFormat``, for masked text of ``Masking``. Sequences of a task grow from `first_length` to
    `length` during the first `growth_steps`.
    `parallel` is what each of several processes holds: "replicate", the whole model, or "shard", a part.
    `validate_every` and `checkpoint_every` of 0 mean once, at the end.
    """

    # The model.
    scheme: str = "scale-invariant-p-rope"
    scheme_options: Mapping[str, Any] = field(default_factory=dict)
    vocab_size: int = 256
    layers: int = 4
    width: int = 128
    heads: int = 4
    qk_norm: bool = True

    # The run or model whose weights to start from, and the task.
    start: str | None = None
    task: str = "text"
    task_options: Mapping[str, Any] = field(default_factory=dict)
    first_length: int | None = None
    growth_steps: int = 0

    # The data: "standard-library", "text:PATH" or "shards:PATH", and its batches.
    data: str = "standard-library"
    length: int = 256
    batch_size: int = 16
    micro_batch_size: int | None = None
    order: str = "shuffled"
    seed: int = 0

    # The optimisers.
    steps: int = 500
    schedule: str = "trapezoid"
    warmup_steps: int = 0
    constant_steps: int | None = None
    matrix_rate: float = 0.02
    embedding_rate: float = 0.3
    head_rate: float = 0.005
    scalar_rate: float = 0.005
    clip_norm: float | None = None

    # Validation, at several lengths of the same tokens, and checkpoints.
    validate_every: int = 125
    validation_tokens: int = 16_384
    validation_lengths: tuple[int, ...] = (256, 1024, 4096)
    checkpoint_every: int = 125
    keep_checkpoints: int = 2

    # How to compute.
    precision: str = "float32"
    backend: str = "auto"
    compile: bool = False
    checkpoint_activations: bool = False
    parallel: str = "replicate"

    def __post_init__(self) -> None:
        for each in fields(self):
            value = KINDS[each.type].check(each.name, getattr(self, each.name))
            object.__setattr__(self, each.name, value)
        for name in ("length", "batch_size", "steps", "validation_tokens", "keep_checkpoints"):
            integer(name, getattr(self, name), at_least=1)
        for name in ("warmup_steps", "growth_steps", "validate_every", "checkpoint_every"):
            integer(name, getattr(self, name), at_least=0)
        for name in ("matrix_rate", "embedding_rate", "head_rate", "scalar_rate"):
            real_number(name, getattr(self, name), at_least=0)
        if self.micro_batch_size is not None:
            integer("micro_batch_size", self.micro_batch_size, at_least=1)
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed must fit into 64 bits, got {self.seed}")
        if self.clip_norm is not None:
            positive_number("clip_norm", self.clip_norm)
        if min(self.validation_lengths, default=0) < 1:
            got = list(self.validation_lengths)
            raise ValueError(f"validation_lengths must be one or more, each at least 1, got {got}")
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
        check_data(self.data)
        check_task(self.task, self.task_options)
        self._check_growth()
        # These check the remaining fields before anything is trained.
        self.model_config()
        self.learning_schedule().factor(0, self.steps)

    def _check_growth(self) -> None:
        first = self.first_length
        if (first is None) != (self.growth_steps == 0):
            got = f"{first} and {self.growth_steps}; give both, or neither"
            raise ValueError(f"first_length and growth_steps belong together, got {got}")
        if first is not None and not 1 <= first <= self.length:
            right = f"from 1 to the length of {self.length}"
            raise ValueError(f"first_length must be {right}, got {first}")
        if first is not None and self.task == TEXT:
            raise ValueError(
                f"first_length must be none for the task 'text', got {first}: only sequences of the "
                f"other tasks grow"
            )

    def model_config(self) -> GPTConfig:
        """Configuration of the model to train."""
        return GPTConfig(
            vocab_size=self.vocab_size,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            scheme_name=self.scheme,
            scheme_options=self.scheme_options,
            train_length=self.length,
            qk_norm=self.qk_norm,
            is_causal=self.task != MASKED,
        )

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Context that sets the precision of computation; weights stay float32."""
        if self.precision == "float32":
            return nullcontext()
        # Each weight is used once per call; cached copies would add up to the model that ranks shard.
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)

    def learning_rates(self) -> LearningRates:
        """Learning rates of the four groups of parameters."""
        return LearningRates(
            embedding=self.embedding_rate,
            head=self.head_rate,
            scalars=self.scalar_rate,
            matrices=self.matrix_rate,
        )

    def learning_schedule(self) -> Trapezoid | Cosine:
        """Factor on all learning rates as a function of the step."""
        if self.schedule == "trapezoid":
            constant = self.constant_steps
            if constant is None:
                constant = max(0, self.steps * 5 // 7 - self.warmup_steps)
            return Trapezoid(constant, self.warmup_steps)
        if self.constant_steps is not None:
            got = f"which has no constant part, got {self.constant_steps}"
            raise ValueError(f"constant_steps must be none with schedule 'cosine', {got}")
        return Cosine(self.warmup_steps)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON."""
        return asdict(self) | {"validation_lengths": list(self.validation_lengths)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainingConfig":
        """A configuration from its fields; unknown fields are refused.

        >>> TrainingConfig.from_dict({"step": 8})
        Traceback (most recent call last):
        TypeError: TrainingConfig has no field 'step' (did you mean 'steps'?); its fields are: ...
        """
        check_field_names(cls, values)
        return cls(**values)


def _instance(kind: type, words: str) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {words}, got {value!r} ({type(value).__name__})")
        return value

    return check


def _integers(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of integers, got {value!r}")
    return tuple(integer(name, each) for each in value)


def parse_fields(words: Sequence[str], *, options: Sequence[str] = ()) -> dict[str, Any]:
    """Parse ``--field value`` and ``--field=value``, with dashes for underscores.

    `options` are other options of the command, to suggest for a misspelt word.

    >>> parse_fields(["--steps", "100", "--clip-norm=1", "--validation-lengths", "256,1024"])
    {'steps': 100, 'clip_norm': 1.0, 'validation_lengths': (256, 1024)}
    >>> parse_fields(["--scheme-options", "tau=1,learn_tau=true"])
    {'scheme_options': {'tau': 1, 'learn_tau': True}}
    """
    known = {"--" + field.name.replace("_", "-"): field for field in fields(TrainingConfig)}
    values: dict[str, Any] = {}
    remaining = list(words)
    while remaining:
        option, equals, text = remaining.pop(0).partition("=")
        option = option.replace("_", "-")
        if option not in known:
            close = get_close_matches(option, [*known, *options], n=1)
            hint = f"did you mean {close[0]}?" if close else "see --print-config for all fields"
            raise ValueError(f"there is no option {option!r}; {hint}")
        name, kind = known[option].name, KINDS[known[option].type]
        if not equals:
            if not remaining or remaining[0].startswith("--"):
                raise ValueError(f"{option} needs a value: {kind.meaning}")
            text = remaining.pop(0)
        if name in values:
            raise ValueError(f"{option} is given twice")
        values[name] = _parse(option, text, kind)
    return values


def parse_options(option: str, text: str) -> dict[str, Any]:
    """Parse the text of an option: names with values, or a JSON object.

    >>> parse_options("--options", "needles=1,order=alphabet")
    {'needles': 1, 'order': 'alphabet'}
    """
    return dict(_parse(option, text, KINDS[Mapping[str, Any]]))


def _parse(option: str, text: str, kind: "_Kind") -> Any:
    try:
        return kind.read(text)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{option} must be {kind.meaning}, got {text!r}") from error


def _options(text: str) -> dict[str, Any]:
    """A JSON object, or names with values, each read as JSON if possible, as text otherwise."""
    if text.startswith("{"):
        return dict(json.loads(text))
    options = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not (name and equals):
            raise ValueError(part)
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


class _Kind(NamedTuple):
    """A type of field: its check, which returns the value as JSON does, and how to read it from text."""

    check: Callable[[str, Any], Any]
    meaning: str
    read: Callable[[str], Any]

    def or_none(self) -> "_Kind":
        return _Kind(
            lambda name, value: None if value is None else self.check(name, value),
            f"{self.meaning} or none",
            lambda text: None if text.lower() == "none" else self.read(text),
        )


_WORD = _Kind(_instance(str, "text"), "a word", str)
_INTEGER = _Kind(integer, "a whole number", int)
_NUMBER = _Kind(real_number, "a number", float)
_SWITCH = _Kind(_instance(bool, "True or False"), "true or false", lambda it: SWITCHES[it.lower()])
_COMMAS = "whole numbers separated by commas"
KINDS: dict[Any, _Kind] = {
    str: _WORD,
    int: _INTEGER,
    float: _NUMBER,
    bool: _SWITCH,
    str | None: _WORD.or_none(),
    int | None: _INTEGER.or_none(),
    float | None: _NUMBER.or_none(),
    tuple[int, ...]: _Kind(_integers, _COMMAS, lambda text: tuple(map(int, text.split(",")))),
    Mapping[str, Any]: _Kind(_instance(Mapping, "a dict"), "name=value,name=value", _options),
}
