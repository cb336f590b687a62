"""The program of a self-check in a process of its own; its last line is the outcome as JSON.

    python -m scale_invariant_attention.attention._check_process BACKEND DEVICE PRECISION

PRECISION is that of float32 products: "tf32" or "ieee". Nothing imports this module.
"""

import json
import sys
from dataclasses import asdict, replace

import torch

from .backends import BACKENDS
from .self_check import check, compile_kernels
from .trust import Subject


def main(name: str, device: str, precision: str) -> None:
    """Check one backend on one device."""
    torch.backends.cuda.matmul.fp32_precision = precision
    backend, place = BACKENDS[name], torch.device(device)
    compiling = compile_kernels(backend, place)
    outcome = replace(check(backend, place), compile_seconds=compiling)
    document = {"subject": asdict(Subject.of(backend, place)), "outcome": outcome.as_json()}
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
