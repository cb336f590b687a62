"""Calls at the limits of numbers, which every backend must answer alike."""

import math

import torch

import scale_invariant_attention as sia

# Logits of five keys. With these factors in query and key, the large ones overflow in float32.
QUERY = 1e30
HIDDEN, SPOILED = "as if keys with -inf were hidden", "NaN"
LOGITS = {
    "a key at -inf": ([1.0, 2.0, -math.inf, 3.0, 1.0], HIDDEN),
    "all keys at -inf": ([-math.inf] * 5, HIDDEN),
    "a key at inf": ([1.0, 2.0, math.inf, 3.0, 1.0], SPOILED),
    "all keys at inf": ([math.inf] * 5, SPOILED),
    "both": ([1.0, -math.inf, math.inf, 0.0, 2.0], SPOILED),
    "almost": ([1e38, 2e38, -2e38, 1.0, 2.0], HIDDEN),
}
TAUS = (1e-19, 1e-10, 10.0, 1e300)
FAR = torch.tensor([-(2**61), -(2**61) + 1, -1, 0, 2**61 - 2, 2**61 - 1])
# Queries of which none is at the position of a key.
BETWEEN = torch.tensor([-(2**61) + 2, -(2**60), 1, 5, 2**60, 2**61 - 3])


def overflowing_logits(backend, *, has_lse=True):
    """Check output, log-sum-exp and gradients where logits overflow."""
    for name, (logits, outcome) in LOGITS.items():
        query, key = torch.zeros(2, 1, 1, 5, 4).unbind()
        query[..., 0] = QUERY
        # The product with the query is beyond the range of float32 where the logit is infinite.
        key[0, 0, :, 0] = torch.tensor([max(-1e30, min(it / QUERY, 1e30)) for it in logits])
        value = torch.arange(20.0).reshape(1, 1, 5, 4)
        settings = {"scale": 1.0, "is_causal": False, "tau": 1e300, "backend": backend}
        visible = torch.tensor(logits) > -math.inf
        expected_lse = torch.tensor(logits)[visible].double().logsumexp(0)
        weights = torch.tensor(logits).double().softmax(0).nan_to_num(0.0)
        expected = weights @ value[0, 0].double()
        if has_lse:
            leaves = [it.requires_grad_() for it in (query, key, value)]
            out, lse = sia.scale_invariant_attention(*leaves, return_lse=True, **settings)
            grads = torch.autograd.grad(out.sum(), leaves)
        else:
            out, lse, grads = sia.scale_invariant_attention(query, key, value, **settings), None, ()
        if outcome == SPOILED:
            assert out.isnan().all(), (name, out)
            assert lse is None or lse.isnan().all(), (name, lse)
            continue
        torch.testing.assert_close(out[0, 0, 0].double(), expected, rtol=1e-5, atol=1e-5, msg=name)
        if lse is not None:
            torch.testing.assert_close(lse[0, 0, 0].double(), expected_lse, rtol=1e-5, atol=1e-5)
        for grad in grads:
            assert grad.isfinite().all(), (name, grad)
            assert not grad[0, 0, ~visible].any() or grad is grads[0], (name, grad)


def far_positions(backend, *, learns_tau=True):
    """Check extreme positions with extreme taus against the float64 reference."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 1, 2, 6, 16, generator=generator).unbind()
    for tau in TAUS:
        for settings in (
            {"query_positions": FAR},
            {"query_positions": FAR, "is_causal": False},
            {"query_positions": BETWEEN},
            {"query_positions": BETWEEN, "is_causal": False},
            {"query_positions": BETWEEN, "window": 9, "sinks": 1},
            {"query_positions": BETWEEN, "window": 2**70},
        ):
            learned = [torch.tensor(tau, dtype=torch.float64, requires_grad=True) for _ in range(2)]
            if not learns_tau:
                learned = [it.detach() for it in learned]
            call = {"key_positions": FAR, **settings}
            out = sia.scale_invariant_attention(*inputs, tau=learned[0], backend=backend, **call)
            doubled = (it.double() for it in inputs)
            right = sia.scale_invariant_attention(
                *doubled, tau=learned[1], backend="reference", **call
            )
            torch.testing.assert_close(out.double(), right, rtol=1e-4, atol=1e-5)
            if learns_tau:
                grads = [
                    torch.autograd.grad(it.sum(), of)[0]
                    for it, of in zip((out, right), learned, strict=True)
                ]
                assert grads[1].isfinite(), (tau, settings)
                # Of logits near 100, float32 keeps five digits; their slopes are up to 1 / tau.
                torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3 / tau + 1e-30)
