"""Which extra of this project installs a package that is missing."""

PACKAGES = {
    "mujoco": ("mujoco", "imageio"),
    "box2d": ("box2d", "Box2D", "pygame"),
    "balancing": ("torchjd", "quadprog", "qpsolvers", "cvxpy"),
}
"""`{extra: what its packages are called in messages}`."""


def extra_for(message: str) -> str:
    """How to install what `message`, of a failed import, misses: a line to put under it; empty if that is not known."""
    for extra, packages in PACKAGES.items():
        if any(package in message for package in packages):
            return f"\nThis needs an extra: pip install 'mhrl[{extra}]'"
    return ""
