import numpy as np
import pytest

from scale_invariant_attention.data.windows import Permutation


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 10, 99, 100, 101, 1000, 65_537])
def test_every_number_occurs_once(size):
    for key in ("a", "b"):
        order = Permutation(size, key)[np.arange(size)]
        assert sorted(order.tolist()) == list(range(size))


def test_a_number_does_not_depend_on_other_indices():
    order = Permutation(1000, "key")
    whole = order[np.arange(1000)]
    assert order[np.array([17, 3, 17])].tolist() == whole[[17, 3, 17]].tolist()
    assert order[np.array([], np.int64)].tolist() == []


def test_other_keys_give_other_orders():
    orders = {tuple(Permutation(50, f"key {n}")[np.arange(50)].tolist()) for n in range(100)}
    assert len(orders) == 100


def test_all_orders_of_three_occur_about_as_often():
    counts = {}
    for key in range(3000):
        order = tuple(Permutation(3, str(key))[np.arange(3)].tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert min(counts.values()) > 400
    assert max(counts.values()) < 600


def test_numbers_are_uniform_and_neighbours_part():
    size, keys = 64, 2000
    drawn = np.stack([Permutation(size, str(key))[np.arange(size)] for key in range(keys)])
    for index in (0, 1, 31, 63):
        counts = np.bincount(drawn[:, index], minlength=size)
        # Chi-square with 63 degrees of freedom: 99.99% lie below 112.
        expected = keys / size
        assert ((counts - expected) ** 2 / expected).sum() < 112
    steps = np.bincount((drawn[:, 11] - drawn[:, 10]) % size, minlength=size)[1:]
    expected = keys / (size - 1)
    assert ((steps - expected) ** 2 / expected).sum() < 112


def test_sizes_beyond_memory_cost_nothing():
    size = 10**15
    indices = np.array([0, 1, size - 1])
    drawn = Permutation(size, "key")[indices]
    assert len(set(drawn.tolist())) == 3
    assert ((drawn >= 0) & (drawn < size)).all()


def test_orders_never_change():
    """A run that is resumed with a later version must get the same batches."""
    drawn = Permutation(10, "seed 0, epoch 0")[np.arange(10)]
    assert drawn.tolist() == [0, 5, 7, 3, 6, 2, 8, 1, 9, 4]
