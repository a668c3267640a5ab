import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from mhrl.distributions import Distributions
from mhrl.policy import GreedyPolicy


@pytest.fixture
def agent(make_agent):
    return make_agent(Dict(arm=Box(-1, 3, (2,)), gear=Discrete(3, start=5)))


def test_nothing_is_asked_for(agent, make_batch):
    quiet = Distributions(GreedyPolicy(agent))
    quiet.see(make_batch(agent))
    assert quiet.collect() == {}


@pytest.mark.parametrize(
    ("watch", "kinds"),
    [("gradients", ["gradients"]), ("parameters", ["parameters"]), ("all", ["gradients", "parameters"])],
)
def test_parameters_and_those_gradients_that_there_are(agent, watch, kinds):
    head = agent.head("gear")
    sum(parameter.square().sum() for parameter in head.parameters()).backward()
    found = Distributions(GreedyPolicy(agent), watch).collect()
    named = dict(agent.named_parameters())
    expected = {f"parameters/{name}": named[name].detach() for name in named if "parameters" in kinds}
    if "gradients" in kinds:  # of a sum of squares; the trunk and the arm have none
        expected |= {f"gradients/{name}": 2 * named[name].detach() for name in named if name.startswith("head_gear.")}
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_heads_say_what_they_would_do_for_the_last_batch(agent, make_batch):
    distributions = Distributions(GreedyPolicy(agent), heads=True)
    assert distributions.collect() == {}  # no update yet
    distributions.see(make_batch(agent, seed=1))
    distributions.see(batch := make_batch(agent, seed=2))
    found = distributions.collect()
    # row by row, by the network's own parts
    for i, row in enumerate(batch):
        features = agent.trunk_features(agent.observe(row))
        arm = agent.head("arm")(features)
        values = agent.head("gear")(features, arm)
        np.testing.assert_allclose(found["head/arm/action"][i], arm.detach(), rtol=1e-5)
        assert found["head/gear/index"][i] == int(values.argmax())
        np.testing.assert_allclose(found["head/gear/value"][i], values.max().item(), rtol=1e-5)
    assert found.keys() == {"head/arm/action", "head/gear/index", "head/gear/value"}
    assert found["head/arm/action"].shape == (6, 2)


def test_a_critic_without_branches_judges_the_proposed_action(make_agent, make_batch):
    agent = make_agent(Box(-1, 1, (1,)), twin=True)
    distributions = Distributions(GreedyPolicy(agent), heads=True)
    distributions.see(batch := make_batch(agent))
    features = agent.trunk_features(agent.observe(batch))
    right = agent.head("value")(features, agent.head("action")(features)).squeeze(-1).detach()
    found = distributions.collect()
    assert found.keys() == {"head/action/action", "head/value/value"}
    np.testing.assert_allclose(found["head/value/value"], right, rtol=1e-5)


def test_masked_values_are_not_among_the_choices(make_agent, make_batch):
    agent = make_agent(Discrete(4), masks=True)
    distributions = Distributions(GreedyPolicy(agent), heads=True)
    distributions.see(batch := make_batch(agent, 32))
    legal = batch["action_mask"]
    index = torch.as_tensor(distributions.collect()["head/action/index"])
    assert not legal.all()
    assert legal.gather(-1, index.unsqueeze(-1)).all()


def test_observations_pass_through_the_normaliser_and_nothing_is_drawn_or_changed(agent, make_batch):
    class Halves:
        def observation(self, leaves):
            return {key: value / 2 for key, value in leaves.items()}

    batch = make_batch(agent)
    raw, halved = (Distributions(GreedyPolicy(agent, normaliser), "all", heads=True) for normaliser in (None, Halves()))
    before, random = batch.clone(), torch.get_rng_state()
    halved.see(batch)
    found = halved.collect()["head/arm/action"]
    assert torch.equal(random, torch.get_rng_state())
    assert (batch == before).all()
    assert all(parameter.grad is None for parameter in agent.parameters())
    batch["observation"] = batch["observation"] / 2
    raw.see(batch)
    np.testing.assert_array_equal(found, raw.collect()["head/arm/action"])
