"""The planner. `loadstone.recommend` names this wing and the function alike: Python puts the wing
there once anything of it is imported, so that the wing can be called as the function can.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadstone.recommend.tell.document import Recommendation
    from loadstone.recommend.tell.mixed import MixRecommendation


class _Wing(ModuleType):
    def __call__(self, model: str, **options: Any) -> Recommendation | MixRecommendation:
        """See loadstone.recommend()."""
        from loadstone.recommend import recommend as planner
        from loadstone.recommend.demand.options import RecommendOptions
        from loadstone.workload.option_fields import options_of

        return planner.advise(options_of({"model": model, **options}, RecommendOptions))


sys.modules[__name__].__class__ = _Wing
