"""Measure a model that the user already has, on the user's data: how far it sees, and what the theory says to that."""

from isornn.diagnosis.denormals import Denormals
from isornn.diagnosis.gates import GateActivity, Memory
from isornn.diagnosis.illnesses import CANNOT_TELL, ILLNESSES, Verdict, verdicts
from isornn.diagnosis.inputs import InputFacts
from isornn.diagnosis.jacobians import JacobianAt, Lyapunov
from isornn.diagnosis.model import measure
from isornn.diagnosis.moments import StateMoments
from isornn.diagnosis.monitor import Monitor
from isornn.diagnosis.predicted import Predicted, TiedPrediction
from isornn.diagnosis.profiles import Profile
from isornn.diagnosis.records import Diagnosis, LayerDiagnosis, Place, Unmeasured
from isornn.diagnosis.remedies import fix_
from isornn.diagnosis.replaying import Check, ReplayError
from isornn.diagnosis.watching import Watch, WatchedLayer
from isornn.diagnosis.weights import DefaultDraw, GateWeights, WeightFacts

__all__ = [
    "CANNOT_TELL",
    "ILLNESSES",
    "Check",
    "DefaultDraw",
    "Denormals",
    "Diagnosis",
    "GateActivity",
    "GateWeights",
    "InputFacts",
    "JacobianAt",
    "LayerDiagnosis",
    "Lyapunov",
    "Memory",
    "Monitor",
    "Place",
    "Predicted",
    "Profile",
    "ReplayError",
    "StateMoments",
    "TiedPrediction",
    "Unmeasured",
    "Verdict",
    "Watch",
    "WatchedLayer",
    "WeightFacts",
    "fix_",
    "measure",
    "verdicts",
]
