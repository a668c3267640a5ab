"""The properties of rules on rows are a module of their own; this folder is put on the path for it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
