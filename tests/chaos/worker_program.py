"""A further process of the server under test: the real one, behind the levers."""

import os
import sys
from pathlib import Path

from courser.server.worker import main
from tests.chaos.spoiling import CONTROL_VARIABLE, obey

if __name__ == "__main__":
    obey(Path(os.environ[CONTROL_VARIABLE]))
    main(sys.argv[1:])
