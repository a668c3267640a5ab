# An image that trains, without root.
#   docker build --tag mhrl .
#   docker run --rm --volume mhrl:/outputs mhrl                                             the default command
#   docker run --rm --volume mhrl:/outputs --gpus all mhrl mhrl-train +experiment=ddpg device=cuda
#   docker run --rm mhrl python -m mhrl.doctor
# Runs land in /outputs. For a folder of yours instead of a named volume, build with --build-arg UID="$(id -u)".
FROM python:3.11-slim

# g++ for engine=compiled; EGL, OpenGL and OSMesa for mujoco's off-screen rendering.
# Versions are those of the base image's Debian release, which keeps no older ones to pin:
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libegl1 libgl1 libglib2.0-0 libosmesa6 \
    && rm -rf /var/lib/apt/lists/*

ARG UID=1000
RUN useradd --create-home --uid "$UID" mhrl && install --directory --owner=mhrl /outputs

# A package index of yours: --build-arg PIP_INDEX_URL=...; empty means pip's own default.
ARG PIP_INDEX_URL=""
ARG EXTRAS="mujoco,box2d,bullet,video,balancing"
WORKDIR /opt/mhrl

# The dependencies first, with an empty package: this layer changes with pyproject.toml alone.
COPY pyproject.toml ./
# Their versions are bounded there:
# hadolint ignore=DL3013
RUN mkdir configs mhrl && touch LICENSE README.md mhrl/__init__.py && pip install --no-cache-dir ".[$EXTRAS]"

COPY LICENSE README.md ./
COPY configs configs
COPY mhrl mhrl
RUN pip install --no-cache-dir --no-deps --force-reinstall .

USER $UID
ENV MUJOCO_GL=egl
# A run's folder is outputs/... in the folder where it starts.
WORKDIR /
VOLUME /outputs
CMD ["mhrl-train", "+experiment=ddpg"]
