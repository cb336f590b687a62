"""The example trains, converts and saves a Llama, and stays short."""

import re
import runpy
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

EXAMPLE = Path(__file__).parents[2] / "examples" / "longer_context.py"


def test_the_example_runs_and_saves_a_converted_model(tmp_path, capsys):
    main = runpy.run_path(str(EXAMPLE))["main"]
    main.__globals__["LENGTH"] = 16
    main(steps=8, output=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split(",")[0] for line in lines] == ["RoPE", "scale-invariant"]
    for line in lines:
        assert re.search(r"loss \d\.\d{3} at 16, \d\.\d{3} at 64, \d\.\d{3} at 256$", line)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "scale-invariant" / "model")
    assert saved.config._attn_implementation == "scale_invariant"
    assert len(saved.config.scale_invariant_attention["calibration"]["spread"]) == 4


def test_it_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 60


@pytest.mark.slow
def test_the_converted_model_reads_longer_texts_than_the_llama(tmp_path, capsys):
    runpy.run_path(str(EXAMPLE))["main"](steps=400, output=tmp_path)
    plain, ours = (
        [float(loss) for loss in re.findall(r"(\d\.\d{3}) at", line)]
        for line in capsys.readouterr().out.splitlines()
    )
    assert plain[2] > plain[0] + 0.3
    assert max(ours[1:]) < ours[0] + 0.1 < plain[2]
