"""All reproductions in one page of Markdown, from their records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from isornn.experiments.reproduce import Reproduction
from isornn.experiments.target import SCALES, Target, target_ids, target_named

_HEAD = """\
# Reproductions

Figures, tables and statements of the papers, measured again. This page is made by `isornn reproduce report` from the
records in `results/`, each next to its figure, with settings, seeds, versions and hardware. A verdict is about the
claim as worded here and is *holds*, *does not hold* or *cannot tell*. Terms are defined in the [glossary](glossary.md).
"""


def report(results: Path) -> str:
    """The page for all records in ``results/<scale>``, in the order of targets; targets without one say so.

    Raises:
        RecordError: a file there is not a record.
    """
    targets = [target_named(name) for name in target_ids()]
    found = {
        target.id: [
            Reproduction.load(file) for scale in SCALES if (file := results / scale / f"{target.id}.json").exists()
        ]
        for target in targets
    }
    counts = Counter(one.verdict.answer for each in found.values() for one in each)
    details = ", ".join(f"{count} {answer}" for answer, count in sorted(counts.items()))
    summary = f"{len(targets)} targets, {sum(counts.values())} records: {details or 'none'}.\n"
    table = ["| target | claim | scale | verdict |", "|---|---|---|---|"]
    for target in targets:
        table += [_row(target, one) for one in found[target.id]] or [_row(target, None)]
    sections = [_section(target, found[target.id]) for target in targets]
    return "\n".join([_HEAD, summary, *table, "", *sections]).rstrip("\n")


def _row(target: Target, found: Reproduction | None) -> str:
    scale, answer = ("-", "not measured") if found is None else (found.scale, found.verdict.answer)
    return f"| [{target.id}](#{target.id}) | {target.claim} | {scale} | {answer} |"


def _section(target: Target, found: Sequence[Reproduction]) -> str:
    lines = [
        f"## {target.id}\n",
        f"{target.source}. {target.claim}\n",
        f"Published: {target.published}.\n",
        f"Chosen here: {target.choices}\n",
    ]
    for one in found:
        settings = ", ".join(f"{name} {value}" for name, value in one.settings.items())
        data = "" if one.data is None else f" Data: {one.data}."
        lines += [
            f"At scale {one.scale}: **{one.verdict.answer}**. {one.verdict.why}.\n",
            f"Settings: {settings}; seed {one.seed}.{data} `{one.command}`, {one.seconds:.0f} s on "
            f"{one.hardware['processor'] or one.hardware['machine']}, isornn {one.versions['isornn']}, torch "
            f"{one.versions['torch']}.\n",
            f"![{target.id}](../results/{one.scale}/{target.id}.png)\n",
        ]
    return "\n".join(lines)
