"""``python -m torch_cute_backend``."""

import sys

from torch_cute_backend.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
