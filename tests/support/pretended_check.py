"""Stands in for the process of a self-check: it ends in the way that PRETENDED names.

It never imports torch. PRETENDED_LOG gets a line per run; PRETENDED_OUTCOME is the file to print.
"""

import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    with Path(os.environ["PRETENDED_LOG"]).open("a") as log:
        log.write(f"{' '.join(sys.argv[1:])}\n")
    how = os.environ["PRETENDED"]
    if how == "killed":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "hangs":
        time.sleep(60)
    elif how == "raises":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    elif how == "passes":
        # Long enough for others to come meanwhile.
        time.sleep(0.3)
        print("a line of a library")
        print(Path(os.environ["PRETENDED_OUTCOME"]).read_text())


if __name__ == "__main__":
    main()
