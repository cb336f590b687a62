"""Records of fuzzing, one per fuzzer, in one file: `results/fuzzing.json`."""

import json
from pathlib import Path

from scale_invariant_attention.files import replace_file


def record(path, fuzzer, before, **measured):
    """Replace the last record of a fuzzer; `before` is the provenance at its start."""
    path = Path(path)
    records = json.loads(path.read_text()) if path.exists() else {}
    records[fuzzer] = {**measured, "provenance": before}
    replace_file(path, (json.dumps(records, indent=1, sort_keys=True) + "\n").encode())
