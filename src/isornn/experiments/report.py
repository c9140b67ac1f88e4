"""All reproductions in one page of Markdown, from their records alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isornn.experiments.papers import NOT_MEASURED, PAPERS, Paper
from isornn.experiments.reproduce import Reproduction
from isornn.experiments.target import SCALES, UNTESTED, Effect, Kind, Target, target_ids, target_named

_KINDS: Mapping[Kind, str] = {
    "theory": "theory and simulated networks",
    "timing": "timings",
    "training": "training",
    "file": "files",
}
_ANSWERS: Mapping[str, str] = {
    "holds": "hold",
    "does not hold": "do not hold",
    UNTESTED: "not tested at a size that decides",
    "not measured": "not measured",
}
_HEAD = """\
This page is made by `isornn reproduce report` from the records in `results/`. Each number is in the record that its
section links, and the command beside it measures it again; with `-o DIR` the record goes to a folder of your own,
without it in place of the one in `results/`. Of formulas, *printed* is what the paper prints, *repaired* the same as
corrected here; a *bar* is the threshold of a verdict. A verdict is about the claim as worded here and is *holds*,
*does not hold* or *not tested at this size*: a measurement that was too small, too short or too uncertain says nothing
against a paper. Sizes are *small* (ten minutes on two cores at most), *medium* (three hours at most, chosen so that it
can decide; some took longer) and *paper* (as published, or where a paper leaves sizes unsaid as large as is useful).
Intervals are Student's 95 % intervals over seeds, of differences Welch's, of factors those of their logarithms; a
number after +- is a standard error over networks. Intervals are of the mean, so that an accuracy's may reach beyond
what an accuracy can be. Terms are defined in the [glossary](glossary.md).
"""


@dataclass(frozen=True)
class _Found:
    """A target with its records, the smallest scale first."""

    target: Target
    records: Sequence[Reproduction]

    @property
    def deciding(self) -> Reproduction | None:
        """The record of the largest scale that decides the claim, or of the largest."""
        decided = [one for one in self.records if one.verdict.answer != UNTESTED]
        return next(reversed(decided or [*self.records]), None)

    @property
    def answer(self) -> str:
        return "not measured" if self.deciding is None else self.deciding.verdict.answer


def report(results: Path) -> str:
    """The page for all records in ``results/<scale>``, by paper; targets without one say so.

    Raises:
        RecordError: a file there is not a record.
    """
    found = [_Found(target, _records(results, target)) for target in map(target_named, target_ids())]
    parts = ["# Reproductions", "", _first_line(found), "", _HEAD, _provenance(found), ""]
    for prefix, paper in PAPERS.items():
        of_paper = [one for one in found if one.target.id.startswith(f"{prefix}-")]
        parts += [
            f"## {paper.title}",
            "",
            f"{paper.authors}, [arXiv:{paper.arxiv}](https://arxiv.org/abs/{paper.arxiv}).",
            "",
        ]
        parts += [*_table(of_paper), "", *_left_out(prefix), *(_section(one, paper) for one in of_paper)]
    return "\n".join(parts).rstrip("\n")


def _records(results: Path, target: Target) -> list[Reproduction]:
    files = [results / scale / f"{target.id}.json" for scale in SCALES]
    return [Reproduction.load(file) for file in files if file.exists()]


def _first_line(found: Sequence[_Found]) -> str:
    """What holds, by kind and by the size of the record that decides."""
    said = []
    for kind, name in _KINDS.items():
        of_kind = [one for one in found if one.target.kind == kind]
        counts = Counter(
            (one.answer, "" if one.deciding is None or one.answer == UNTESTED else one.deciding.scale)
            for one in of_kind
        )
        parts = [
            f"{count} {_answers(answer, count)}" + (f" at scale {scale}" if scale and answer != UNTESTED else "")
            for (answer, scale), count in sorted(counts.items(), key=lambda item: _order(*item[0]))
        ]
        corrected = sum(one.target.corrected for one in of_kind)
        of_these = f", {corrected} of them about formulas as corrected here" if corrected else ""
        said.append(f"{name} ({len(of_kind)}{of_these}): {', '.join(parts)}")
    return f"**Of {len(found)} figures, tables and statements: {'; '.join(said)}.**"


def _answers(answer: str, count: int) -> str:
    return answer if count == 1 and answer != UNTESTED else _ANSWERS[answer]


def _order(answer: str, scale: str) -> tuple[int, str]:
    return [*_ANSWERS].index(answer), scale


def _provenance(found: Sequence[_Found]) -> str:
    """When, with what source and on what the records were made; how the page is cited."""
    records = [record for one in found for record in one.records]
    dates = sorted(record.date[:10] for record in records if record.date)
    older = sum(record.date is None for record in records)
    commits = sorted({record.commit for record in records if record.commit})
    machines = sorted({_machine(record) for record in records})
    times = sum(record.seconds for record in records) / 3600
    lines = [f"{len(records)} records, {times:.1f} hours by the clock, on {'; '.join(machines)}."]
    if dates:
        days = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        lines.append(f"{len(dates)} of them are of {days}, commits {', '.join(commits)}.")
    if older:
        lines.append(f"{older} are of earlier versions, which noted neither date, commit nor processor time.")
    killed = [one.target for one in records if (one.processor_seconds or 0) > one.hardware["cores"] * one.seconds]
    if killed:
        lines.append(
            f"The clock times of {', '.join(killed)} are too short for their processor times: calls that were killed "
            "are not counted, or another target had trained the same runs."
        )
    lines.append("To cite a result, name its target, scale and commit.")
    return " ".join(lines)


def _machine(record: Reproduction) -> str:
    hardware = record.hardware
    return f"{hardware['processor'] or hardware['machine']}, {hardware['cores']} cores"


def _table(found: Sequence[_Found]) -> list[str]:
    lines = [
        "| target | figure, table or equation | published | measured | size | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        target, where = one.target, one.target.source.partition(", ")[2]
        link = f"[{target.id}](#{target.id})"
        for record in one.records:
            measured = _summary(record)
            lines.append(
                f"| {link} | {where} | {_cell(target.published)} | {_cell(measured)} | {record.scale} | "
                f"{record.verdict.answer} |"
            )
        if "medium" in target.settings and not any(record.scale != "small" for record in one.records):
            lines.append(f"| {link} | {where} | {_cell(target.published)} | not run yet | medium | - |")
        elif not one.records:
            lines.append(f"| {link} | {where} | {_cell(target.published)} | not measured | - | - |")
    return lines


def _summary(record: Reproduction) -> str:
    """The numbers that the claim is about, where the record has them: the first three; else all in words."""
    effects = record.verdict.effects
    if not effects:
        return record.verdict.why
    first = "; ".join(f"{one.what}: {_value(one)}" for one in effects[:3])
    return first if len(effects) <= 3 else f"{first}; [{len(effects) - 3} more](#{record.target})"


def _value(one: Effect) -> str:
    if one.value is None:
        return "none: not every seed has a number"
    interval = f" ({one.low:.4g} to {one.high:.4g})" if one.low is not None and one.high is not None else ""
    return f"{one.value:.4g}{interval}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _left_out(prefix: str) -> Iterator[str]:
    rows = [one for one in NOT_MEASURED if one.paper == prefix]
    if rows:
        yield "In the paper, and not measured here:\n"
        yield from ("| what | why |", "|---|---|", *(f"| {one.what} | {one.why} |" for one in rows), "")


def _section(found: _Found, paper: Paper) -> str:
    target = found.target
    lines = [
        f"### {target.id}\n",
        f"{target.source}, arXiv:{paper.arxiv}. {target.claim}\n",
        f"Published: {target.published}.\n",
        f"Chosen here: {target.choices}\n",
    ]
    if target.see:
        lines.append(f"More of the same, with its records: [{target.see}]({target.see}).\n")
    for record in found.records:
        lines += _details(record)
    if target.undecided:
        lines.append(f"No record decides it: {target.undecided}.\n")
    elif target.kind == "training" and not any(record.scale != "small" for record in found.records):
        lines.append(f"Not run yet at a size that can decide: `isornn reproduce {target.id} --scale medium`.\n")
    return "\n".join(lines)


def _details(record: Reproduction) -> Iterator[str]:
    verdict, name = record.verdict, record.target
    yield f"At scale {record.scale}: **{verdict.answer}**. {verdict.why}.\n"
    if verdict.effects:
        yield "| number | published | measured (95 % interval) | seeds |\n|---|---|---|---|"
        for one in verdict.effects:
            yield f"| {_cell(one.what)} | {_cell(one.published) or '-'} | {_value(one)} | {one.seeds} |"
        yield ""
    data = "" if record.data is None else f" Data: {record.data}."
    processor = "" if record.processor_seconds is None else f", {record.processor_seconds:.0f} s of processors"
    when = "" if record.date is None else f", {record.date[:10]}, commit {record.commit or 'unknown'}"
    yield (
        f"[Record](../results/{record.scale}/{name}.json): `{record.command}`, seed {record.seed}, "
        f"{record.seconds:.0f} s{processor} on {_machine(record)}, isornn {record.versions['isornn']}, torch "
        f"{record.versions['torch']}{when}.{data} Settings: `{json.dumps(record.settings)}`.\n"
    )
    yield f"![{name}](../results/{record.scale}/{name}.png)\n"
