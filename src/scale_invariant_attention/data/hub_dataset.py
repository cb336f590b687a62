"""Text datasets of the Hugging Face hub as documents, streamed and never stored."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HubDataset:
    """The rows of a dataset, one document each.

    Attributes:
        name: On the hub, such as "HuggingFaceFW/fineweb", or a local folder.
        config: Which configuration of it, such as "sample-10BT".
        split: Which split of it.
        column: Where in a row the text is.
        at_most: Only so many rows.
    """

    name: str
    config: str | None = None
    split: str = "train"
    column: str = "text"
    at_most: int | None = None

    def __post_init__(self) -> None:
        if self.at_most is not None and self.at_most < 1:
            raise ValueError(f"at_most must be at least 1, got {self.at_most}")

    @property
    def identity(self) -> str:
        """All that chooses the rows."""
        return (
            f"dataset {self.name}, config {self.config}, split {self.split}, column {self.column}, "
            f"rows {self.at_most or 'all'}"
        )

    def documents(self, skip: int = 0) -> Iterator[tuple[str, bytes]]:
        """Name and text of each row, after the first `skip`."""
        rows = self._rows()
        if self.at_most is not None:
            rows = rows.take(self.at_most)
        for number, row in enumerate(rows.skip(skip), skip):
            name = f"row {number} of {self.name}"
            if self.column not in row:
                raise ValueError(
                    f"column must be one of {', '.join(row)}, got {self.column!r}, which {name} lacks"
                )
            text = row[self.column]
            if not isinstance(text, str):
                raise ValueError(f"{name} has no text in {self.column!r}, but {text!r:.40}")
            # Half of a surrogate pair cannot be UTF-8; the hub's JSON may have one.
            yield name, text.encode(errors="replace")

    def _rows(self) -> Any:
        try:
            import datasets
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                f"{self.name} needs the datasets library; install it with: "
                f'pip install "scale-invariant-attention[datasets]"'
            ) from missing
        try:
            return datasets.load_dataset(self.name, self.config, split=self.split, streaming=True)
        except OSError as problem:  # of the network as well as of a name that is not there
            raise ConnectionError(
                f"cannot open the dataset {self.name!r}: {problem}. Without a network give a local "
                f"folder of it, or text files"
            ) from problem
