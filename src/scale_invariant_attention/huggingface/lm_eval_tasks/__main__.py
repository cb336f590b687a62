"""lm-eval's own command line, with our models and tasks registered."""

import sys

from . import FOLDER


def main() -> None:
    """Run lm-eval with this command's arguments."""
    try:
        from lm_eval.__main__ import cli_evaluate
    except ModuleNotFoundError as missing:
        raise SystemExit(
            'this needs lm-eval; install it with: pip install "scale-invariant-attention[lm-eval]"'
        ) from missing
    if "--include_path" not in sys.argv:
        sys.argv += ["--include_path", str(FOLDER)]
    cli_evaluate()


if __name__ == "__main__":
    main()
