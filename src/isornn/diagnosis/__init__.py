"""Measure the recurrent layers of a model on its user's data: gradients, states, weights; findings, and their fixes."""

from isornn.diagnosis.apply_fixes import fix_
from isornn.diagnosis.checks import KINDS, findings
from isornn.diagnosis.facts import (
    Amplification,
    DefaultDraw,
    Denormals,
    GateActivity,
    GateWeights,
    InputFacts,
    JacobianAt,
    KnownStart,
    Lyapunov,
    Memory,
    Profile,
    StateMoments,
    WeightFacts,
)
from isornn.diagnosis.finding import CANNOT_TELL, NOT_FINITE, Finding
from isornn.diagnosis.fixes import orthogonal_by_gate_, redraw_, single_bias_
from isornn.diagnosis.measurement import measure
from isornn.diagnosis.monitor import Monitor
from isornn.diagnosis.records import (
    Diagnosis,
    LayerDiagnosis,
    LayerInfo,
    Predicted,
    ReplayCheck,
    TiedPrediction,
    Unmeasured,
    Use,
)
from isornn.diagnosis.replay import ReplayError
from isornn.diagnosis.training_record import LayerRecord, TrainingRecord

__all__ = [
    "CANNOT_TELL",
    "KINDS",
    "NOT_FINITE",
    "Amplification",
    "DefaultDraw",
    "Denormals",
    "Diagnosis",
    "Finding",
    "GateActivity",
    "GateWeights",
    "InputFacts",
    "JacobianAt",
    "KnownStart",
    "LayerDiagnosis",
    "LayerInfo",
    "LayerRecord",
    "Lyapunov",
    "Memory",
    "Monitor",
    "Predicted",
    "Profile",
    "ReplayCheck",
    "ReplayError",
    "StateMoments",
    "TiedPrediction",
    "TrainingRecord",
    "Unmeasured",
    "Use",
    "WeightFacts",
    "findings",
    "fix_",
    "measure",
    "orthogonal_by_gate_",
    "redraw_",
    "single_bias_",
]
