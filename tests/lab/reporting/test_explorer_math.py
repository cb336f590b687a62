"""The explorer's mathematics, as the page has it, against that of `theory`."""

import json
import math
import shutil
import subprocess
from importlib.resources import files
from itertools import pairwise

import pytest
import torch
from explored_schedules import schedules

from scale_invariant_attention.theory import expected_range_mass, expected_range_negentropy

ASSETS = files("scale_invariant_attention.lab.reporting.web_page") / "assets"
NODE = shutil.which("node")
RUN = """
const settings = JSON.parse(process.argv[1]);
console.log(JSON.stringify(settings.map(({tau, length, recent, slope, distances, range}) => {
  const schedules = explorerMath.schedules({tau, length, slope});
  return Object.fromEntries(Object.entries(schedules).map(([name, it]) => [name, {
    gain: distances.map(it.gain), bias: distances.map(it.bias),
    mass: it.mass(...range), negentropy: it.negentropy(...range),
    share: explorerMath.recentShare(it, recent, length),
    entropy: explorerMath.entropy(it, length),
    decades: explorerMath.decades(length), shares: explorerMath.decadeShares(it, length),
  }]));
})));
"""
SETTINGS = [
    {"tau": tau, "length": length, "recent": recent, "slope": slope}
    | {"distances": [0, 1, 7, length - 1], "range": [length // 3, length]}
    for tau, length, recent, slope in (
        (10.0, 4096, 100, 2.0**-8),
        (0.1, 16, 1, 0.5),
        (1000.0, 65_536, 65_536, 2.0**-12),
        (2.5, 1_048_576, 1000, 2.0**-4),
        (16.0, 10, 5, 2.0**-12),
    )
]


@pytest.mark.skipif(NODE is None, reason="there is no node; the browser's test covers less of it")
def test_sums_in_constant_time_are_those_of_theory():
    script = (ASSETS / "explorer_math.js").read_text() + RUN
    command = [NODE, "-e", script, json.dumps(SETTINGS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    close = {"rel": 1e-9, "abs": 1e-12}
    for setting, found in zip(SETTINGS, json.loads(done.stdout), strict=True):
        length, places = setting["length"], setting["distances"]
        for name, schedule in schedules(setting).items():
            here = found[name]
            distance = torch.tensor(places)
            assert here["gain"] == pytest.approx(schedule.gain(distance).tolist(), **close)
            assert here["bias"] == pytest.approx(schedule.bias(distance).tolist(), **close)
            mass = expected_range_mass(schedule, *setting["range"])
            assert here["mass"] == pytest.approx(mass, **close), (name, setting)
            negentropy = expected_range_negentropy(schedule, *setting["range"])
            assert here["negentropy"] == pytest.approx(negentropy, rel=1e-8, abs=1e-9 * mass)
            whole = expected_range_mass(schedule, 0, length)
            share = expected_range_mass(schedule, 0, setting["recent"]) / whole
            assert here["share"] == pytest.approx(share, **close)
            entropy = math.log(whole) - expected_range_negentropy(schedule, 0, length) / whole
            assert here["entropy"] == pytest.approx(entropy, rel=1e-9, abs=1e-9)
            edges = [0, *(10**power for power in range(1, 9) if 10**power < length), length]
            assert here["decades"] == [list(it) for it in pairwise(edges)]
            masses = [expected_range_mass(schedule, *it) / whole for it in here["decades"]]
            assert here["shares"] == pytest.approx(masses, **close)
            assert sum(here["shares"]) == pytest.approx(1)
