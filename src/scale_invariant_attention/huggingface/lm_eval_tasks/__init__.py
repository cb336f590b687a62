"""Tasks for lm-eval that need no download: loss by context length, and needles.

`FOLDER` is what lm-eval calls an include path.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
