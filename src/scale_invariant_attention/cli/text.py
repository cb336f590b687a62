"""What the text of a trained model is encoded with: as asked for, as noted with its data, or bytes."""

from typing import Annotated

import typer

from ..data import Encoding, get_encoding
from ..data.encoding import DOCUMENT_START
from ..data.shards import NotedEncoding
from ..training import TrainedModel
from ..training.training_data import corpus_encoding

BYTES = get_encoding("bytes")

TokenizerName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help='What the model was trained with, where its data does not tell: "bytes", a file of '
        'the tokenizers library ending in .json, or an encoding of tiktoken, such as "gpt2".',
    ),
]
DocumentStart = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        help="The token of a tokenizer file before every document; by default what is noted "
        "with the data, or <|endoftext|>.",
    ),
]


def text_encoding(
    trained: TrainedModel, tokenizer: str | None, document_start: str | None
) -> Encoding:
    """The one that is asked for, or else the one that the data of the run was made with."""
    size = trained.model.config.vocab_size
    noted = noted_encoding(trained)
    if tokenizer is not None:
        noted_start = None if noted is None else noted.document_start_word
        start = document_start or noted_start or DOCUMENT_START
        encoding = get_encoding(tokenizer, document_start=start)
        if noted is not None:
            noted.check(encoding)
    elif noted is not None:
        encoding = noted.open()
    elif size == BYTES.vocab_size:
        encoding = BYTES
    else:
        raise ValueError(
            f"the tokens of this model are not bytes: it has {size:,} of them, and what they were made "
            f"with is not noted here. Give it as --tokenizer, a file ending in .json or a name such as "
            f"gpt2; or give the prompt as --tokens 464,3290,..."
        )
    if encoding.vocab_size > size:
        raise ValueError(
            f"the tokenizer {encoding.name!r} has {encoding.vocab_size:,} tokens and this model only "
            f"{size:,}: it was trained with another one. Give that one as --tokenizer"
        )
    return encoding


def noted_encoding(trained: TrainedModel) -> NotedEncoding | None:
    """That which the data of a run was made with, if it is still there to tell."""
    if trained.training is None:
        return None
    try:
        return corpus_encoding(trained.training.data)
    except FileNotFoundError:
        return None  # the model may be far from its data
