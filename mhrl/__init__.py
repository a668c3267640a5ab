"""Train agents with several action heads on one shared trunk: one weighted backward, one optimizer step."""

__version__ = "0.1.0"
