"""The README of an exported model: what it is, how to open it, and where it comes from."""

import json
from collections.abc import Mapping
from typing import Any

from ..model import GPTConfig

_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [scale-invariant-attention]
---

# {title}

{sentence}

```python
import scale_invariant_attention.huggingface  # makes transformers know the model
from transformers import AutoModelForCausalLM{more_imports}

model = AutoModelForCausalLM.from_pretrained("."){more_lines}
```

It takes `pip install "scale-invariant-attention[huggingface]"`. {tokens}

## Where it comes from

```json
{provenance}
```
"""


def model_card(config: GPTConfig, tokens: str | None, provenance: Mapping[str, Any]) -> str:
    """The card, as Markdown; `tokens` says what text is encoded with, None if that is not known.

    >>> print(model_card(GPTConfig.preset("mini"), "bytes", {"seed": 0}).splitlines()[6])
    # A GPT with the scheme scale-invariant-p-rope
    """
    trained = (
        "The length that it was trained at is not noted."
        if config.train_length is None
        else f"It was trained at {config.train_length:,} tokens, and takes any length."
    )
    return _CARD.format(
        title=f"A GPT with the scheme {config.scheme}",
        sentence=(
            f"{config.layers} layers, {config.width} wide, {config.heads} heads, "
            f"{config.vocab_size:,} tokens; scheme options {json.dumps(config.scheme_options)}. "
            f"{trained}"
        ),
        more_imports="" if tokens is None else ", AutoTokenizer",
        more_lines="" if tokens is None else '\ntokenizer = AutoTokenizer.from_pretrained(".")',
        tokens=(
            "The tokenizer is not part of this folder."
            if tokens is None
            else f"Its text is encoded with: {tokens}."
        ),
        provenance=json.dumps(dict(provenance), indent=2),
    )
