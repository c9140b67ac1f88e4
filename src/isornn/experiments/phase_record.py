"""Phase diagrams on disk, complete or partial."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.files import replacing
from isornn.records import RecordError, versions, write_record
from isornn.theory.phase import Axis, Line, PhaseDiagram, phase_diagram
from isornn.theory.quantity import Quantity

_KIND = "isornn phase diagram"
_NONE = -1  # in place of a reason where there is a number


def save_phase(diagram: PhaseDiagram, file: Path) -> None:
    """Write a diagram, atomically, as ``.npz`` (which `load_phase` reads) or as ``.json``.

    Arrays have the values of y along their rows and those of x along their columns. Each quantity has its values, its
    standard errors and, under ``reason``, a place in the list ``reasons`` or -1 where there is a number.

    Raises:
        OSError: the folder is missing or cannot be written to.
    """
    reasons = sorted({reason for quantity in diagram.quantities.values() for reason, _ in quantity.reasons})
    arrays = _arrays(diagram, reasons)
    if file.suffix.lower() == ".json":
        listed = {name: _listed(array) for name, array in arrays.items()}
        write_record(file, {**_header(diagram), "reasons": reasons, **listed})
        return
    with replacing(file) as new:
        arrays |= {"header": np.array(json.dumps(_header(diagram))), "reasons": np.array(reasons, dtype=np.str_)}
        np.savez(new, allow_pickle=False, **arrays)


def load_phase(file: Path) -> PhaseDiagram:
    """What `save_phase` wrote as ``.npz``.

    Raises:
        RecordError: the file is missing or not a phase diagram.

    >>> from tempfile import TemporaryDirectory
    >>> from isornn.cells import Gate, Minimal
    >>> from isornn.theory import phase_diagram
    >>> base = Spec(Minimal(), {"u": Gate(1.0, 1.0)})
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "map.npz"
    ...     save_phase(phase_diagram(base, ("u.bias_mean", [0.0, 2.0]), ("u.weight_var", [1.0])), file)
    ...     load_phase(file).quantities["chi"].value.shape
    torch.Size([1, 2])
    """
    return _diagram(*_read(file))


def resumed_phase(
    spec: Spec,
    x: Line,
    y: Line,
    kept: Path,
    *,
    tied_steps: int | None = None,
    progress: Callable[[PhaseDiagram], None] | None = None,
) -> PhaseDiagram:
    """`phase_diagram` that survives an interrupt: finished specs are saved in ``kept``, and the next call
    resumes from it.

    ``kept`` (``.npz``) is written whole after each group of specs and removed when all are done. One that another spec,
    other axes or another version left is replaced.
    """

    def keep(diagram: PhaseDiagram) -> None:
        save_phase(diagram, kept)
        if progress is not None:
            progress(diagram)

    begun = _begun(kept, spec, x, y, tied_steps)
    diagram = phase_diagram(spec, x, y, tied_steps=tied_steps, begun=begun, progress=keep)
    kept.unlink(missing_ok=True)
    return diagram


def unfinished(output: Path, spec: Spec, x: Line, y: Line, tied_steps: int | None) -> Path:
    """Where the finished specs of this diagram are kept beside the file ``output`` until all are; each diagram has a
    file of its own there."""
    asked = [spec.to_json(), *([path, list(map(float, values))] for path, values in (x, y)), tied_steps]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return output.with_name(f".{output.name}.{digest[:8]}.begun.npz")


def _begun(kept: Path, spec: Spec, x: Line, y: Line, tied_steps: int | None) -> PhaseDiagram | None:
    try:
        header, arrays = _read(kept)
        diagram = _diagram(header, arrays)
    except RecordError:
        return None
    return diagram if header["versions"] == versions() and diagram.is_of(spec, x, y, tied_steps) else None


def _read(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with np.load(file, allow_pickle=False) as data:
            header, arrays = json.loads(str(data["header"])), dict(data)
    except OSError as error:
        raise RecordError(f"{file}: not readable ({error.strerror})") from None
    except (BadZipFile, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{file}: not a phase diagram ({error})") from None
    if not isinstance(header, dict) or header.get("record") != _KIND or "asked" not in arrays:
        raise RecordError(f"{file}: not a phase diagram")
    return header, arrays


def _header(diagram: PhaseDiagram) -> dict[str, Any]:
    return {
        "record": _KIND,
        "spec": diagram.spec.to_json(),
        "engine": diagram.engine,
        "tied_steps": diagram.steps,
        "x": {"path": diagram.x.path, "values": diagram.x.values.tolist()},
        "y": {"path": diagram.y.path, "values": diagram.y.values.tolist()},
        "quantities": list(diagram.quantities),
        "versions": versions(),
    }


def _arrays(diagram: PhaseDiagram, reasons: list[str]) -> dict[str, np.ndarray]:
    arrays = {name: getattr(diagram, name).numpy() for name in ("residual", "converged", "asked", "answered")}
    for name, quantity in diagram.quantities.items():
        places = np.full(quantity.value.shape, _NONE, dtype=np.int16)
        for reason, where in quantity.reasons:
            places[where.numpy()] = reasons.index(reason)
        arrays |= {name: quantity.value.numpy(), f"{name}.stderr": quantity.stderr.numpy(), f"{name}.reason": places}
    return arrays


def _listed(array: np.ndarray) -> list[Any]:
    """Rows for JSON, in which what is no finite number is null."""
    return [
        [None if isinstance(value, float) and not math.isfinite(value) else value for value in row]
        for row in array.tolist()
    ]


def _diagram(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> PhaseDiagram:
    def tensor(name: str) -> Tensor:
        return torch.from_numpy(arrays[name])

    def quantity(name: str) -> Quantity:
        places = tensor(f"{name}.reason")
        masks = ((str(reason), places == place) for place, reason in enumerate(arrays["reasons"]))
        return Quantity(
            tensor(name), tensor(f"{name}.stderr"), tuple((reason, where) for reason, where in masks if where.any())
        )

    x, y = (Axis(header[k]["path"], torch.tensor(header[k]["values"], dtype=torch.float64)) for k in "xy")
    return PhaseDiagram(
        spec=Spec.from_json(header["spec"]),
        x=x,
        y=y,
        engine=header["engine"],
        steps=header["tied_steps"],
        quantities={name: quantity(name) for name in header["quantities"]},
        residual=tensor("residual"),
        converged=tensor("converged"),
        asked=tensor("asked"),
        answered=tensor("answered"),
    )
