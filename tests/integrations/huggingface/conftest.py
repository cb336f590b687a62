"""Tests of this folder need transformers."""

import pytest

pytest.importorskip("transformers", minversion="5")
