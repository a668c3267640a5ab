"""The weighted sum: the plain gradient of `sum_i weight_i * loss_i`."""

from typing import final

from mhrl.aggregators.loss_weighting import LossWeighting


@final
class WeightedSum(LossWeighting):
    """Static weights. With `trunk_grad` 1/K for each of K losses the trunk receives their mean."""

    name = "weighted_sum"
