"""lm-eval tasks that need no download: loss by context length, and needles in a haystack.

Pass `FOLDER` to lm-eval as an include path.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
