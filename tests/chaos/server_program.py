"""``courser serve`` whose clock and disk obey a control file. Arguments: the file, the program, then as for courser."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from courser.cli.main import main
from courser.server import crew
from tests.chaos.spoiling import CONTROL_VARIABLE, WORKER_MODULE, obey

if __name__ == "__main__":
    control = Path(sys.argv[1])
    obey(control)
    # Further processes obey the same levers.
    crew.WORKER_MODULE = WORKER_MODULE
    os.environ |= {CONTROL_VARIABLE: str(control), "PYTHONPATH": os.pathsep.join(sys.path)}
    sys.argv = sys.argv[2:]
    main()
