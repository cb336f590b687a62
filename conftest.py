"""Tests and doctests to skip where an optional library is missing."""

from importlib.util import find_spec

collect_ignore_glob = []
if find_spec("transformers") is None:
    collect_ignore_glob += [
        "docs/export.md",
        "docs/extending.md",
        "docs/fine-tuning.md",
        "docs/huggingface.md",
        "src/scale_invariant_attention/huggingface/*",
        "tests/huggingface/*",
        # Users of the integration in other packages.
        "docs/extending.md",
        "src/scale_invariant_attention/lab/experiments/conversions.py",
        "src/scale_invariant_attention/lab/experiments/extension.py",
        "tests/cli/test_diagnose_transformers.py",
        "tests/cli/test_export.py",
        "tests/cli/test_extend.py",
        "tests/cli/test_reproduce_extension.py",
        "tests/lab/experiments/test_conversions.py",
        "tests/lab/experiments/test_extension.py",
        "tests/lab/reporting/test_conversion_section.py",
        "tests/lab/reporting/test_extension_section.py",
    ]
if find_spec("triton") is None:
    collect_ignore_glob += [
        "src/scale_invariant_attention/attention/_triton_*.py",
        "tests/support/*triton*.py",
        "tests/support/compiled_kernels.py",
        "tests/support/quick_interpreter.py",
    ]
