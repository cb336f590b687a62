import pytest
import torch
from saved_models import CONFIG

from scale_invariant_attention.model.storage import save


@pytest.fixture
def folder(tmp_path):
    """A saved model of two tensors."""
    save(tmp_path / "model", CONFIG, {"a": torch.arange(12.0).view(3, 4), "b": torch.ones(2)})
    return tmp_path / "model"
