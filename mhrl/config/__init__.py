"""Configuration: open mappings, head kinds, and our own check of the composed whole. Imports no torch."""

from mhrl.config.check import SCHEMA, ConfigError, check_arguments, check_at_least, check_keys, check_present, nearest
from mhrl.config.kinds import head_kinds
from mhrl.config.open_mappings import register

__all__ = [
    "SCHEMA",
    "ConfigError",
    "check_arguments",
    "check_at_least",
    "check_keys",
    "check_present",
    "head_kinds",
    "nearest",
    "register",
]
