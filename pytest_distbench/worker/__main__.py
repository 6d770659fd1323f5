"""Entry of all that ``torchrun`` starts: ``python -m pytest_distbench.worker KIND PLAN``.

KIND is ``rank``; ``elastic``, a worker of an elastic job; or ``serving``, a server of a pool, with its slot.
"""

import gc
import sys

gc.disable()  # going through torch's objects again and again, while they become more, is a fifth of its import
if sys.argv[1] == "rank":
    from pytest_distbench.worker import main
else:
    from pytest_distbench.elastic.worker import life
gc.freeze()  # as in a rank that was forked: no collection in the body goes through torch
gc.enable()

if __name__ == "__main__":
    kind, plan, *slot = sys.argv[1:]
    if kind == "rank":
        main.run_rank(plan)
    elif kind == "serving":
        life.serve(plan, int(slot[0]))
    else:
        life.main(plan)
