"""What `forgather-mem plan` asks of a script's Trainer, and the answer, both as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from forgather_mem.errors import PlanError
from forgather_mem.planning.entry import plan
from forgather_mem.planning.trainer import Trainer

Answer = dict[str, object]


def answer_to(request: Mapping[str, object], trainer: Trainer) -> Answer:
    """The plans of this trainer that are asked for, in JSON's types.

    Args:
        request: "sizes" is a list of pairs, rows and length of batches; None in place of one leaves it as it is.
        trainer: The script's.

    Returns:
        "plans" as dictionaries and "text" for people; or "problem", why there are none.
    """
    sizes = cast(Sequence[Sequence[int | None]], request["sizes"])
    try:
        plans = [plan(trainer, rows=rows, length=length) for rows, length in sizes]
    except PlanError as error:
        return {"problem": str(error)}
    return {"plans": [one.to_dict() for one in plans], "text": "\n".join(one.text() for one in plans)}
