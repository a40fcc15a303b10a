"""The time that one engine step should take: rooflines with calibrated efficiencies, collectives,
and the host's time."""

from loadstone.predict.step_time.profile import Profile, profile_of
from loadstone.predict.step_time.step import StepModel

__all__ = ["Profile", "StepModel", "profile_of"]
