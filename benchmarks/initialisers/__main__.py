"""Which start learns soonest: every start with the same rates, seeds and budgets.

    python benchmarks/initialisers [--mnist DIR] [--goals NAME ...] [--modules NAME ...] [--starts NAME ...] [--table]

Trains what is not in ``benchmarks/results/initialisers.json`` yet, of the core set unless others are named; an
interrupted call goes on where it was, and one goal, module and start is some minutes on two cores. ``--table`` trains
nothing. Other data of MNIST's form are tried with ``--mnist DIR --records FILE``. See ``protocol.py`` for what is run.
Wanted of ``critical_``, over the core set: updates at most .5 times those of the best other start in the median, never
above 1.1 times, and .7 in the median where the others' input weights are scaled alike; no divergence at its best rate;
learning where torch's start and the standard one stay at chance over 500 steps. ``predict.py`` says in what order
starts should learn, and the table how well it knew.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kept import of_goals
from protocol import CORE_GOALS, CORE_MODULES, CORE_STARTS, GOALS, MODULES, STARTS, Place
from race import found, race
from report import report

RESULTS = Path(__file__).parent.parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's files or others of that form")
    parser.add_argument("--goals", nargs="+", choices=GOALS, default=list(CORE_GOALS))
    parser.add_argument("--modules", nargs="+", choices=MODULES, default=list(CORE_MODULES))
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(CORE_STARTS))
    parser.add_argument("--records", type=Path, default=RESULTS / "initialisers.json", help="one file for each data")
    parser.add_argument("--folder", type=Path, default=Path("initialisers-runs"), help="of the runs at work")
    parser.add_argument("--table", action="store_true", help="show what is known; train nothing")
    arguments = parser.parse_args()
    mnist = None if arguments.mnist is None else arguments.mnist.absolute()
    records = arguments.records
    kept = of_goals(records, arguments.folder / records.stem, mnist)
    if not arguments.table:
        if mnist is None and any(GOALS[goal].mnist for goal in arguments.goals):
            parser.error("the noise-padded goals need --mnist DIR")
        for goal in arguments.goals:
            for module in arguments.modules:
                print(f"{goal}, {module}")
                race([Place(goal, module, start) for start in arguments.starts], kept)
    places = [Place(goal, module, start) for goal in GOALS for module in MODULES for start in STARTS]
    report(found(places, kept), kept, records.with_suffix(".png"))


if __name__ == "__main__":
    main()
