"""An episode that is cut from outside.

Shapes: `*` any batch shape.
"""

from tensordict import TensorDictBase


def cut_episodes(rows: TensorDictBase) -> None:
    """Mark each of `rows` `[*]` as the last of its episode, in place: truncated and done, unless it is done already."""
    after = rows.get("next")
    done = after.get("done")
    after.get("truncated").logical_or_(~done)
    done.fill_(True)
