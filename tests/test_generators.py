import random

import numpy as np
import torch

from mhrl.generators import generator_states, isolated_generators, restore_generators, seed_generators


def draw():
    return random.random(), np.random.random(), np.random.normal(), torch.rand(()).item()


def test_states_bring_the_same_draws_back():
    seed_generators(3)
    np.random.normal()  # leaves a second normal number waiting
    states = generator_states()
    first = draw()
    assert draw() != first
    restore_generators(states)
    assert draw() == first


def test_a_seed_decides_all_of_them():
    seed_generators(2**40 + 3)
    first = draw()
    seed_generators(2**40 + 3)
    assert draw() == first
    seed_generators(4)
    assert all(a != b for a, b in zip(draw(), first, strict=True))


def test_isolation_leaves_no_trace():
    seed_generators(0)
    right = draw()
    seed_generators(0)
    with isolated_generators(7):
        inside = draw()
    assert draw() == right
    with isolated_generators(7):
        assert draw() == inside
