"""Processes of one group, forked from one that has imported torch already."""

import os
import sys
import traceback
from collections.abc import Callable


def forked(size: int, action: Callable[[int], None]) -> list[int]:
    """Run an action in `size` processes, given the rank; their exit codes."""
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                action(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
