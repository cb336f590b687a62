"""Candidates for the recommended scheme: spreads of tau over the heads, and shares of rotating pairs."""

from collections.abc import Mapping
from typing import Any

# Options of each candidate for the recommended scheme; its scheme and its training length, if they are
# others than the recommended and the scale's.
SPREAD_CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "10-in-all-heads": {"scheme": "scale-invariant-p-rope"},
    "10-in-all-heads-quarter": {"scheme": "scale-invariant-p-rope", "rotating": 0.25},
    "1-to-30-half": {"tau": 1.0, "highest_tau": 30.0, "rotating": 0.5},
    "1-to-30-quarter": {"tau": 1.0, "highest_tau": 30.0, "rotating": 0.25},
    "1-to-30-eighth": {"tau": 1.0, "highest_tau": 30.0, "rotating": 0.125},
    "1-to-30-nope": {"scheme": "scale-invariant-nope", "tau": 1.0, "highest_tau": 30.0},
    "1-to-10-quarter": {"tau": 1.0, "highest_tau": 10.0, "rotating": 0.25},
    "1-to-100-quarter": {"tau": 1.0, "highest_tau": 100.0, "rotating": 0.25},
    "1-to-30-quarter-learned": {
        **{"tau": 1.0, "highest_tau": 30.0, "rotating": 0.25},
        "learn_tau": True,
    },
    **{
        f"1-to-{highest}-quarter-at-{length}": {
            **{"tau": 1.0, "highest_tau": float(highest), "rotating": 0.25},
            "length": length,
        }
        for length, highest in ((128, 15), (128, 30), (512, 30), (512, 60))
    },
}
