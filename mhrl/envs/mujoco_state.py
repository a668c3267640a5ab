"""MuJoCo's model and data as numbers. Knows mujoco by its objects only: it is imported where an env has imported it."""

import hashlib
import sys
from typing import Any

import numpy as np


def is_model(value: Any) -> bool:  # noqa: ANN401
    """Whether `value` is an `MjModel`."""
    return "mujoco" in sys.modules and isinstance(value, sys.modules["mujoco"].MjModel)


def is_data(value: Any) -> bool:  # noqa: ANN401
    """Whether `value` is an `MjData`."""
    return "mujoco" in sys.modules and isinstance(value, sys.modules["mujoco"].MjData)


def digest(model: Any) -> str:  # noqa: ANN401
    """What tells one model from another, parameters that were changed after loading included."""
    mujoco = sys.modules["mujoco"]
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.sha256(buffer.data).hexdigest()


def capture(data: Any) -> dict[str, Any]:  # noqa: ANN401
    """The integration state of an `MjData`, and every other array: some observations read what a step left there."""
    mujoco = sys.modules["mujoco"]
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(data.model, kind))
    mujoco.mj_getState(data.model, data, state, kind)
    return {"state": state, "arrays": {name: array.copy() for name, array in _arrays(data).items()}}


def restore(data: Any, captured: dict[str, Any]) -> None:  # noqa: ANN401
    """Write what `capture` returned into an `MjData` of the same model."""
    mujoco = sys.modules["mujoco"]
    mujoco.mj_setState(data.model, data, captured["state"], mujoco.mjtState.mjSTATE_INTEGRATION)
    arrays = _arrays(data)
    for name, array in captured["arrays"].items():
        if name in arrays and arrays[name].shape == array.shape:
            arrays[name][...] = array


def _arrays(data: Any) -> dict[str, np.ndarray]:  # noqa: ANN401
    """Arrays of a fixed shape; those of constraints (`efc_*`) come and go, and are computed in each step."""
    arrays = {name: getattr(data, name) for name in dir(data) if not name.startswith(("_", "efc_"))}
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
