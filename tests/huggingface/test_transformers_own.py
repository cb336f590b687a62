"""Runs the tests that every transformers model must pass, from its source distribution, on ours."""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
import transformers

DOCS = Path(__file__).parents[2] / "docs" / "export.md"
SOURCES = Path(__file__).parents[2] / "src"

# They look for a GradientCheckpointingLayer, which our class does not have, and for tests of generation,
# which the distribution leaves out.
FAILING = {
    "test_generation_tester_mixin_inheritance",
    "test_gradient_checkpointing_enable_disable",
    "test_training_gradient_checkpointing",
    "test_training_gradient_checkpointing_use_reentrant_false",
    "test_training_gradient_checkpointing_use_reentrant_true",
}

# Modules that the tests import and the distribution leaves out.
LEFT_OUT = {
    "generation/__init__.py": "",
    "generation/test_utils.py": "class GenerationTesterMixin: ...",
    "exporters/__init__.py": "",
    "exporters/test_export.py": "class ExportTesterMixin: ...",
}

TESTS = """
import os
import unittest

import torch
from transformers.models.auto import modeling_auto

from scale_invariant_attention.huggingface import (
    ScaleInvariantGPTConfig,
    ScaleInvariantGPTForCausalLM,
)

from .test_modeling_common import ModelTesterMixin, ids_tensor

modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["scale_invariant_gpt"] = "ScaleInvariantGPTForCausalLM"


def drawn(self, module):
    # The head of a new model is zero, so every comparison of logits would hold.
    for parameter in module.parameters(recurse=False):
        torch.nn.init.normal_(parameter, 0.0, 0.3)


ScaleInvariantGPTForCausalLM._init_weights = drawn


class ModelTester:
    batch_size, seq_length, encoder_seq_length, key_length = 3, 7, 7, 7
    hidden_size, num_hidden_layers, num_attention_heads, vocab_size = 32, 2, 4, 99
    is_training = True

    def get_config(self):
        return ScaleInvariantGPTConfig(
            vocab_size=99,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            scheme_name=os.environ["SCHEME"],
            train_length=64,
            pad_token_id=0,
        )

    def prepare_config_and_inputs_for_common(self):
        ids = ids_tensor([3, 7], 98) + 1
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    prepare_config_and_inputs = prepare_config_and_inputs_for_common


class OursTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (ScaleInvariantGPTForCausalLM,)
    has_attentions = False  # they are never stored
    test_torch_exportable = False

    def setUp(self):
        self.model_tester = ModelTester()
"""


@pytest.fixture(scope="module")
def own_tests(tmp_path_factory):
    """A folder with the `tests` of transformers and a test of our class."""
    folder = tmp_path_factory.mktemp("transformers")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    name = f"transformers=={transformers.__version__}"
    fetched = subprocess.run(
        [*pip, "download", "--no-deps", "--no-binary", "transformers", "--dest", folder, name],
        capture_output=True,
        text=True,
        check=False,
    )
    if fetched.returncode:
        pytest.skip(f"the source of {name} cannot be fetched: {fetched.stderr.strip()[-200:]}")
    subprocess.run([*pip, "install", "--target", folder / "needed", "parameterized"], check=True)
    [archive] = folder.glob("transformers-*.tar.gz")
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            member.name = member.name.partition("/")[2]
            if member.name.startswith("tests/"):
                packed.extract(member, folder, filter="data")
    for name, contents in {"__init__.py": "", "test_ours.py": TESTS, **LEFT_OUT}.items():
        path = folder / "tests" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(contents)
    return folder


def outcomes(folder, scheme):
    """Names of tests by outcome."""
    report = folder / f"{scheme}.xml"
    paths = os.pathsep.join(map(str, (folder, folder / "needed", SOURCES)))
    subprocess.run(
        [*(sys.executable, "-m", "pytest", "tests/test_ours.py", "-q"), f"--junitxml={report}"],
        cwd=folder,
        env={**os.environ, "SCHEME": scheme, "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths},
        capture_output=True,
        check=False,
    )
    found = {"passed": set(), "failed": set(), "skipped": set()}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if kinds else "passed"
        found[kind].add(case.get("name"))
    found["passed"] -= found["failed"]
    return found


def documented():
    """The number of tests that the documentation says pass."""
    section = DOCS.read_text().partition("## The tests of transformers")[2]
    [number] = re.findall(r"The other (\d+) pass", section)
    return int(number)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["scale-invariant-p-rope", "yarn", "logn-rope"])
def test_our_model_passes_the_tests_of_transformers(own_tests, scheme):
    found = outcomes(own_tests, scheme)
    assert found["failed"] == FAILING
    assert len(found["passed"]) == documented()
