"""Trust in the Triton kernels, in a process whose environment has TRITON_INTERPRET=1.

They are made the first choice on CPUs, which stand for a GPU here. The test that starts this reads its
exit status and what it prints.
"""

import warnings
from dataclasses import replace
from functools import cached_property

import torch
from quick_interpreter import hurry

import scale_invariant_attention as sia
from scale_invariant_attention.attention import _triton_plan, backends, self_check, trust


def first_choice_on_cpus() -> None:
    """Make Triton what "auto" tries first here, and its check a short one."""
    kernels = replace(backends.BACKENDS["triton"], auto_on=("cpu",))
    others = {name: it for name, it in backends.BACKENDS.items() if name != "triton"}
    backends.BACKENDS = {"triton": kernels, **others}
    small = {"queries": 40, "keys": 40, "head_dim": 16, "precisions": (self_check.SINGLE,)}
    short = [
        self_check.Contract("causal", heads=1, key_heads=1, **small),
        self_check.Contract("learned tau", learned="tau", **small),
    ]
    trust.check = lambda *where: self_check.check(*where, short)


def break_the_table() -> None:
    """Shift the pairs of gain and bias by one distance."""
    right = _triton_plan.Plan.lines.func

    def shifted(plan):
        line, slopes = right(plan)
        return (None if line is None else line.roll(1, 1)), slopes

    broken = cached_property(shifted)
    broken.__set_name__(_triton_plan.Plan, "lines")
    _triton_plan.Plan.lines = broken


def main() -> None:
    torch.set_num_threads(1)
    hurry()
    first_choice_on_cpus()
    query, key, value = torch.randn(3, 1, 2, 30, 16).unbind()
    expected = sia.scale_invariant_attention(query, key, value, backend="tiled")

    def attend(query, key, value):
        return sia.scale_invariant_attention(query, key, value)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sia.backend_for(query, key, value) == "triton"
        torch.testing.assert_close(attend(query, key, value), expected, atol=1e-5, rtol=1e-5)
    # A traced call relies on the outcome.
    graphs = []

    def look(graph, inputs):
        graphs.append(str(graph.graph))
        return graph.forward

    compiled = torch.compile(attend, fullgraph=True, backend=look)(query, key, value)
    assert "scale_invariant_attention.triton" in graphs[0]
    torch.testing.assert_close(compiled, expected, atol=1e-5, rtol=1e-5)

    # Another process, with a broken kernel.
    trust.OUTCOMES = trust.Outcomes()
    trust.cache_folder = lambda: None
    break_the_table()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = attend(query, key, value)
        assert sia.backend_for(query, key, value) != "triton"
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    (warning,) = (str(it.message) for it in caught if it.category is RuntimeWarning)
    print(warning)


if __name__ == "__main__":
    main()
