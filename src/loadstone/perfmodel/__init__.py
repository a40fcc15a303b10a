"""How long one engine step should take: rooflines with calibrated efficiencies, collectives, and the host's time."""

from loadstone.perfmodel.profile import Profile, profile_of
from loadstone.perfmodel.step import StepModel

__all__ = ["Profile", "StepModel", "profile_of"]
