"""Train a small transformer for some steps, data-parallel or with a parameter server, and leave traces of them.

mpirun -n 2 python -m commbench.train --mode ddp --inject slow-rank=1:50ms --profile out/
"""

from __future__ import annotations

from commbench.training.options import NAME, parser, read

if __name__ == "__main__":
    from commbench.measure.door import run_door
    from commbench.training.run import run

    run_door(NAME, parser(), read, run)
