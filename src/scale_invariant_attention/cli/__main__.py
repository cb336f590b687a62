"""`python -m scale_invariant_attention.cli` is `sia`."""

from .commands import main

if __name__ == "__main__":
    main()
