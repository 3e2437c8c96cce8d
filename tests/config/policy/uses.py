"""Uses of names, and what a refusal of them says."""

from functools import partial

import pytest

from forgather_mem.config.policy.policy import NameUse
from forgather_mem.config.source.rendered import SourceLocation
from forgather_mem.errors import TemplateError


def use(name, *, line=3, directory=None, searchpath=()):
    place = SourceLocation("train.yaml", line, 8, f"cb: !singleton:{name}", None)
    return NameUse(name, partial(place.error, path="$.cb"), directory, tuple(searchpath))


def refusal(policy, *names, **where):
    with pytest.raises(TemplateError) as caught:
        policy.check([use(name, line=3 + i, **where) for i, name in enumerate(names)])
    return str(caught.value)
