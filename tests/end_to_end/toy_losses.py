"""An objective of a user's own whose losses become negative without a word."""

from mhrl.objectives import ValueBased


class Sinking(ValueBased):
    """The family's losses, less 1,000."""

    def losses(self, batch, active=None):
        losses, metrics = super().losses(batch, active)
        return losses - 1000, metrics
