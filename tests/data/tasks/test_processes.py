"""The processes follow their laws, and no prediction beats the optimum that they state."""

import math

import numpy as np
import pytest

from scale_invariant_attention.data.tasks import NOT_SCORED, FractalNoiseTask, MotifTask
from scale_invariant_attention.data.tasks._process import transitions


def correlation(distance, memory):
    """Autocorrelation of fractionally integrated noise, from its Gamma functions."""
    terms = (distance + memory, 1 - memory), (distance + 1 - memory, memory)
    above, below = (math.lgamma(a) + math.lgamma(b) for a, b in terms)
    return math.exp(above - below)


def test_fractal_noise_is_drawn_with_the_best_linear_prediction():
    """The weights solve the normal equations of the correlations, bit by bit."""
    task = FractalNoiseTask(memory=0.3)
    inputs, bits, losses = task.process(40, range(5))
    assert np.isfinite(losses).all()
    signs = 2.0 * bits - 1
    assert (inputs[:, 0] == 2).all() and (inputs[:, 1:] == bits[:, :-1]).all()
    known = np.array([correlation(r, 0.3) for r in range(40)])
    for now in range(39):
        matrix = known[np.abs(np.subtract.outer(np.arange(now), np.arange(now)))]
        weights = np.linalg.solve(matrix, known[now:0:-1]) if now else np.empty(0)
        mean = signs[:, :now] @ weights
        expected = -np.log((1 + signs[:, now] * mean) / 2)
        np.testing.assert_allclose(losses[:, now], expected, rtol=1e-9)


def test_correlations_of_fractal_noise_are_a_power_law():
    task = FractalNoiseTask(memory=0.3)
    _, bits, _ = task.process(257, range(1500))
    signs = 2.0 * bits - 1
    for distance in (1, 2, 5, 20, 100):
        products = signs[:, distance:] * signs[:, :-distance]
        # Sequences are independent, bits of one are not.
        error = products.mean(axis=1).std() / math.sqrt(len(products))
        assert abs(products.mean() - correlation(distance, 0.3)) < 4 * error
    # The power: at ten times the distance, correlations are 10 ** (2 * 0.3 - 1) times as large.
    assert correlation(1000, 0.3) / correlation(100, 0.3) == pytest.approx(10**-0.4, rel=0.01)


def test_without_memory_noise_is_white():
    _, _, losses = FractalNoiseTask(memory=0).process(30, range(3))
    np.testing.assert_allclose(losses, math.log(2))


@pytest.mark.parametrize("mutation", [0.0, 0.2])
def test_motifs(mutation):
    """Read token by token, with a dict of motifs; the law of each letter is known before it is read."""
    task = MotifTask(names=5, motif=4, longest=6, mutation=mutation)
    letters, law = 4, transitions()
    mutated, copied, stretches, names = 0, 0, [], np.zeros(5)
    for length in (61, 400):
        inputs, targets, losses = task.process(length, range(40))
        for row in range(40):
            tokens = [*inputs[row].tolist(), None]
            motifs, before, since, name, run = {}, 0, task.motif + 1, None, 0
            assert tokens[0] == task.vocab_size - 1
            for at, target in enumerate(targets[row].tolist()):
                if target == NOT_SCORED:
                    assert losses[row, at] == 0 and since > task.motif
                    stretches.append(run)
                    name, since, run = tokens[at + 1], 1, 0
                    if name is not None:
                        assert letters <= name < letters + task.names
                        names[name - letters] += 1
                    is_copy = name in motifs
                    motifs.setdefault(name, [])
                    continue
                assert target < letters and tokens[at + 1] in (target, None)
                if since > task.motif:
                    likely = law[before, target]
                    run += 1
                elif not is_copy:
                    likely = 1 / letters
                    motifs[name].append(target)
                else:
                    is_same = motifs[name][since - 1] == target
                    likely = 1 - mutation if is_same else mutation / (letters - 1)
                    copied, mutated = copied + 1, mutated + (not is_same)
                assert losses[row, at] == pytest.approx(-math.log(likely), abs=1e-12)
                before = (letters * before + target) % 16
                since += 1
    assert set(stretches) == set(range(1, 7))
    assert mutated / copied == pytest.approx(mutation, abs=0.02)
    # Names are drawn in another order for each sequence, so that all are equally frequent.
    assert (names / names.sum()).tolist() == pytest.approx([0.2] * 5, abs=0.05)


def test_frequencies_of_names_fall_with_their_rank():
    task = MotifTask(names=4, motif=1, longest=1)
    inputs, _, _ = task.process(3000, range(30))
    counts = np.sort([np.bincount(row[row >= 4], minlength=8)[4:8] for row in inputs])[:, ::-1]
    expected = 1 / np.arange(1, 5)
    shares = counts.sum(axis=0) / counts.sum()
    assert shares.tolist() == pytest.approx((expected / expected.sum()).tolist(), abs=0.02)


def test_letters_of_stretches_follow_the_law():
    """Counted after each pair of letters, in sequences that are almost all one stretch."""
    task = MotifTask(motif=1, longest=2000)
    _, targets, losses = task.process(1500, range(60))
    counts = np.zeros((16, 4))
    for row in targets:
        letters = row[row != NOT_SCORED]
        np.add.at(counts, (4 * letters[:-2] + letters[1:-1], letters[2:]), 1)
    law, after = transitions(), counts.sum(axis=1, keepdims=True)
    assert (abs(counts / after - law) < 4.5 * np.sqrt(law * (1 - law) / after)).all()
    # The mean loss of what is drawn from a law is its entropy.
    entropy = -(law * np.log(law)).sum(axis=1) @ counts.sum(axis=1) / counts.sum()
    assert losses.mean() == pytest.approx(entropy, abs=0.03)


@pytest.mark.parametrize("task", [FractalNoiseTask(), MotifTask()], ids=["noise", "motifs"])
def test_the_optimum_is_that_of_the_batch(task):
    _, targets, losses = task.process(200, [4, 1])
    assert task.optimal_losses(200, [4, 1]) == pytest.approx(losses.sum(axis=1))
    assert (losses[targets == NOT_SCORED] == 0).all() and (losses >= 0).all()
    guess = math.log(task.vocab_size - 1 if isinstance(task, FractalNoiseTask) else 4)
    assert losses.sum() / (targets != NOT_SCORED).sum() < guess
