"""Programs on a pseudo-terminal."""

import contextlib
import os
import pty
import subprocess
import sys


def printed_on_a_terminal(*arguments, **environment):
    """Everything that Python prints on a terminal of 80 columns, to standard output and error."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=follower,
        stderr=follower,
        env=os.environ | {"COLUMNS": "80", "TERM": "xterm"} | environment,
    )
    os.close(follower)
    printed = b""
    # Linux reports the end of a pseudo-terminal as an error.
    with contextlib.suppress(OSError):
        while more := os.read(leader, 4096):
            printed += more
    os.close(leader)
    process.wait()
    return printed


def sia_on_a_terminal(*words, **environment):
    """Everything that a command prints on a terminal, as text."""
    return printed_on_a_terminal(
        "-m", "scale_invariant_attention.cli", *words, **environment
    ).decode()
