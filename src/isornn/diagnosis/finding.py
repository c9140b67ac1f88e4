"""What a check is, and what it gives: a finding with its sentence, evidence and fix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from isornn.diagnosis.advice import Advice
from isornn.diagnosis.fixes import Fix
from isornn.diagnosis.records import LayerDiagnosis

CANNOT_TELL, NOT_FINITE = "cannot_tell", "not_finite"


@dataclass(frozen=True)
class Finding:
    """Something measured that limits training: a sentence with numbers, its evidence and its fix.

    Args:
        kind: one of `KINDS`, or ``"cannot_tell"``.
        layer: the layer's name as `LayerInfo.name` has it, or an unmeasured module's; ``None`` for the whole model.
        sentence: what was found, with numbers and units.
        evidence: by what was measured: its value, with its error unless it is exact, and the bar it is held to.
        fix: a correction of the layer that `fix_` can make, or code for the user to place; ``None`` where only other
            data or a look at the model helps.

    >>> finding = Finding("vanishing", "LSTM l0", "LSTM l0: gradients vanish.", {"xi": "1.01(7) steps"})
    >>> finding.sentence
    'LSTM l0: gradients vanish.'
    """

    kind: str
    layer: str | None
    sentence: str
    evidence: Mapping[str, str]
    fix: Fix | Advice | None = None

    @property
    def remedy(self) -> str:
        """Python that corrects it where ``model`` and ``batch`` are what was measured; empty without a fix."""
        return "" if self.fix is None else self.fix.code

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        plain = {name: getattr(self, name) for name in ("kind", "layer", "sentence", "remedy")}
        return {**plain, "evidence": dict(self.evidence)}


class Check(ABC):
    """One condition on a measured layer.

    ``explains`` names findings of the same layer that follow from this one, and are not reported with it.
    """

    kind: ClassVar[str]
    explains: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def find(self, layer: LayerDiagnosis) -> Finding | None:
        """The finding, where the condition holds."""

    def finding(
        self, layer: LayerDiagnosis, sentence: str, evidence: Mapping[str, str], fix: Fix | Advice | None
    ) -> Finding:
        """A finding of this check's kind."""
        return Finding(self.kind, layer.info.name, sentence, evidence, fix)
