"""What is left out of a test run where an optional library is missing."""

from importlib.util import find_spec

collect_ignore_glob = []
if find_spec("transformers") is None:
    collect_ignore_glob += [
        "docs/export.md",
        "docs/huggingface.md",
        "src/scale_invariant_attention/integrations/huggingface/*",
        "tests/integrations/huggingface/*",
    ]
