"""A scheme that a user registers trains, saves and loads in the GPT without changes elsewhere.

Conversion of transformers models is tested in tests/huggingface/test_conversion.py; tables, figures and
the report in tests/lab/reporting/test_own_scheme.py.
"""

import pytest
import torch
from own_schemes import OWN, own_scheme
from tiny_training import losses, tiny_config, weights

from scale_invariant_attention.model import GPT, GPTConfig, SavedModelError
from scale_invariant_attention.training import train


@pytest.fixture
def name():
    with own_scheme() as name:
        yield name


def test_the_gpt_trains_it(name, tmp_path):
    config = tiny_config(scheme=name, scheme_options={"base": 100.0}, steps=2)
    train(config, tmp_path, device="cpu")
    assert losses(tmp_path)
    assert GPT.from_pretrained(tmp_path / "model").scheme == OWN.build(base=100.0)
    assert "embedding.weight" in weights(tmp_path)


def test_a_saved_model_comes_back_while_the_scheme_is_registered(tmp_path):
    tokens = torch.arange(40).unsqueeze(0)
    with own_scheme() as name:
        model = GPT(GPTConfig.preset("mini", layers=1, scheme_name=name))
        torch.nn.init.normal_(model.head.weight)
        model.save_pretrained(tmp_path)
        assert torch.equal(GPT.from_pretrained(tmp_path)(tokens), model(tokens))
    with pytest.raises(SavedModelError, match=f"there is no scheme '{name}'"):
        GPT.from_pretrained(tmp_path)
