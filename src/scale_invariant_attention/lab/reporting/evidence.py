"""The records that REPRODUCTION.md is made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..experiments.catalogue import EXPERIMENTS
from ..experiments.trials import DifferentRecordError
from ..records import Record, TrainingRecord
from ..seeds import SeedRow, scheme_of, seed_rows

if TYPE_CHECKING:
    from ..experiments.conversions import ConversionConfig

    ConversionRecords = Sequence[Record[ConversionConfig]]

Records = Sequence[TrainingRecord]

ANY_RECORDS = (
    "The page is made from records of the unchanged trials of each scale, in the folders mini, mini-500 "
    "and small; sia report shows any others, such as sia report results/mine"
)


@dataclass(frozen=True)
class Size:
    """The records of Table 1 and Table 2 at one size of the model."""

    name: str
    losses: Records = ()
    needles: Records = ()

    @property
    def loss_rows(self) -> dict[str, SeedRow]:
        """Loss by scheme."""
        return seed_rows(self.losses, scheme_of, TrainingRecord.losses_by_length)

    @property
    def needle_rows(self) -> dict[str, SeedRow]:
        """Share of needles found by scheme."""
        return seed_rows(self.needles, scheme_of, TrainingRecord.needles_by_length)

    @property
    def title(self) -> str:
        """Its parameters and training length in words."""
        millions = self.parameters / 1e6
        length = self.losses[0].config.length
        return f"{millions:.1f} million parameters, trained at {length:,} tokens"

    @property
    def parameters(self) -> int:
        """Number of weights of its models, apart from those of their schemes."""
        config = self.losses[0].config
        return config.layers * 12 * config.width**2 + 2 * config.vocab_size * config.width


@dataclass(frozen=True)
class Extensions:
    """The records of converted models of transformers."""

    losses: "ConversionRecords" = ()
    choices: "ConversionRecords" = ()
    strings: "ConversionRecords" = ()
    needles: "ConversionRecords" = ()


@dataclass(frozen=True)
class Evidence:
    """All records that the page is made from; those of `mini` include our scheme."""

    mini: Size
    small: Size = field(default_factory=lambda: Size("small"))
    short: Size = field(default_factory=lambda: Size("mini-500"))
    sweeps: Mapping[str, Records] = field(default_factory=dict)
    """The records of our scheme by swept option, with 500 steps."""
    lengths: Records = ()
    spread: Records = ()
    spread_needles: Records = ()
    attention: Records = ()
    infini: Records = ()
    recall: Records = ()
    extensions: Extensions = field(default_factory=Extensions)

    @classmethod
    def read(cls, results: Path) -> "Evidence":
        """The records in the folders inside `results`."""

        def recorded(name: str, scale: str = "mini", seeds: Sequence[int] = ()) -> Any:
            try:
                return EXPERIMENTS[name].records(results, seeds, scale)
            except DifferentRecordError as error:
                raise DifferentRecordError(f"{error}. {ANY_RECORDS}") from error

        sizes = {
            scale: Size(scale, recorded("table1", scale), recorded("table2", scale))
            for scale in ("mini", "small", "mini-500")
        }
        if not sizes["mini"].losses:
            raise FileNotFoundError(
                f"there is no record of Table 1 in {results / 'mini'}; sia reproduce table1 writes "
                f"them. {ANY_RECORDS}"
            )
        seeds = range(EXPERIMENTS["table1"].seeds)
        # Only these need transformers.
        has_conversions = any((results / "mini").glob("extension-*.json"))
        kinds = ("extension", "extension-choice", "extension-strings", "extension-needles")
        converted = [recorded(kind) for kind in kinds] if has_conversions else []
        return cls(
            sizes["mini"],
            sizes["small"],
            sizes["mini-500"],
            {option: recorded(option, "mini-500", seeds) for option in ("tau", "base")},
            lengths=recorded("lengths"),
            spread=recorded("spread"),
            spread_needles=recorded("spread-needles"),
            attention=recorded("attention"),
            infini=recorded("table3"),
            recall=recorded("recall"),
            extensions=Extensions(*converted),
        )

    @property
    def trainings(self) -> list[TrainingRecord]:
        """The records of all trainings, each once."""
        swept = [record for records in self.sweeps.values() for record in records]
        sizes = [it for size in (self.mini, self.small) for it in (*size.losses, *size.needles)]
        short = [*self.short.losses, *self.short.needles, *swept]
        chosen = [*self.lengths, *self.spread, *self.spread_needles]
        several = [*sizes, *chosen, *self.infini, *self.recall, *short]
        return [record for index, record in enumerate(several) if record not in several[:index]]
