"""Table 4: a trained RoPE model converted to every scheme and trained on, and its loss beyond L.

    sia reproduce table4 --scale mini        on a CPU, about half an hour on one core

The paper continues Llama-2-7B; the miniature first trains a Llama of less than a million parameters with
RoPE on the source of Python's standard library, and converts that. Expected, as in the paper: what is
converted to scale-invariant p-RoPE is a little worse at the trained length, and holds beyond it. Whether
it does here, calibrated or not, is in REPRODUCTION.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from ... import schemes
from ...arguments import did_you_mean
from ...huggingface.continued_pretraining import PretrainingRecipe
from ..schema import from_json
from .evaluations import LossEvaluation
from .scales import SCALES

OURS = "scale-invariant-p-rope"
# In the order of the paper; those that it does not fine-tune read with the weights that are there.
SCHEMES = (
    *("rope", "p-rope", "nope", "rope-ntk", "yarn", "logn-rope", "logn-p-rope", "logn-ntk"),
    *("alibi", OURS),
)
NOT_CONTINUED = ("rope", "rope-ntk")

LENGTH = 256
LLAMA: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 256,
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": LENGTH,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
)
FIRST = PretrainingRecipe(
    tokens=300 * 16 * LENGTH,
    length=LENGTH,
    batch_size=16,
    learning_rate=3e-3,
    schedule="cosine",
    warmup_steps=30,
    weight_decay=0.1,
    checkpoint_every=50,
)
# A tenth of the tokens. The paper's rate is too low for so few steps of so small a model.
CONTINUED = PretrainingRecipe(
    tokens=30 * 16 * LENGTH,
    length=LENGTH,
    batch_size=16,
    learning_rate=1e-3,
    schedule="linear",
    warmup_steps=3,
    checkpoint_every=10,
)
EVALUATION = LossEvaluation((256, 1024, 4096), 65_536)


@dataclass(frozen=True)
class ConversionConfig:
    """Configuration of a conversion, as it is recorded."""

    scheme: str
    seed: int
    calibrated: bool
    model: Mapping[str, Any]
    first: PretrainingRecipe
    continued: PretrainingRecipe | None
    scheme_options: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The fields, as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ConversionConfig":
        """The configuration from its fields; unknown ones are an error."""
        return from_json(cls, dict(values))


@dataclass(frozen=True)
class Conversion:
    """A scheme that the first model is converted to, and how it is trained on, if it is.

    `calibrated` divides the scores of every head by their spread before the transform. `seed` is that of
    the first weights and sequences, whatever the recipes say; the continued training has the next one.
    """

    scheme: str
    seed: int = 0
    calibrated: bool = False
    model: Mapping[str, Any] = field(default_factory=lambda: dict(LLAMA))
    first: PretrainingRecipe = FIRST
    continued: PretrainingRecipe | None = CONTINUED
    evaluation: LossEvaluation = EVALUATION

    @property
    def name(self) -> str:
        """That of its folder and its record.

        >>> Conversion("alibi", seed=1).name
        'table4-alibi-seed-1'
        """
        calibrated = "-calibrated" if self.calibrated else ""
        bare = self.continued is None and self.scheme not in NOT_CONTINUED
        untrained = "-untrained" if bare else ""
        return f"table4-{self.scheme}{calibrated}{untrained}-seed-{self.seed}"

    @property
    def first_name(self) -> str:
        """That of the folder of the first training, which all schemes of a seed share."""
        return f"table4-first-seed-{self.seed}"

    @property
    def trainings(self) -> dict[str, int]:
        """The steps of what has to be trained for it, by the names of their folders.

        >>> Conversion("alibi").trainings
        {'table4-first-seed-0': 300, 'table4-alibi-seed-0': 30}
        """
        own = {} if self.continued is None else {self.name: self.continued.steps}
        return {self.first_name: self.first.steps} | own

    @property
    def options(self) -> dict[str, Any]:
        """Of the scheme: base and tau of the miniature, and what transformers' YaRN asks for.

        >>> Conversion("scale-invariant-p-rope").options
        {'base': 16.0, 'tau': 10.0}
        """
        scale = SCALES["mini"]
        if self.scheme == "yarn":
            return {"factor": max(self.evaluation.lengths) / self.model["max_position_embeddings"]}
        has_base = self.scheme.endswith("p-rope")
        has_tau = "tau" in schemes.options(self.scheme)
        return ({"base": scale.base} if has_base else {}) | ({"tau": scale.tau} if has_tau else {})


def trials(names: Sequence[str] = (), seeds: Sequence[int] = (0,)) -> list[Conversion]:
    """All conversions, seed by seed; ours also calibrated, and both as they are before any training.

    >>> for trial in trials(("rope", "scale-invariant-p-rope")):
    ...     print(trial.name)
    table4-rope-seed-0
    table4-scale-invariant-p-rope-seed-0
    table4-scale-invariant-p-rope-calibrated-seed-0
    table4-scale-invariant-p-rope-untrained-seed-0
    table4-scale-invariant-p-rope-calibrated-untrained-seed-0
    """
    for name in names:
        if name not in SCHEMES:
            raise ValueError(
                f"Table 4 has no scheme {name!r}{did_you_mean(name, SCHEMES)}; its schemes are: "
                f"{', '.join(SCHEMES)}"
            )
    return [trial for seed in seeds for name in names or SCHEMES for trial in _of(name, seed)]


def _of(scheme: str, seed: int) -> list[Conversion]:
    if scheme in NOT_CONTINUED:
        return [Conversion(scheme, seed, continued=None)]
    if scheme != OURS:
        return [Conversion(scheme, seed)]
    return [
        Conversion(scheme, seed, calibrated, continued=continued)
        for continued in (CONTINUED, None)
        for calibrated in (False, True)
    ]
