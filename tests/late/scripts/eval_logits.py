"""An evaluation with metrics keeps the logits of the whole set (transformers#7232, #12878)."""

from common import Rows, accuracy, limit, make, model, options, peak_of

own = options(limit=130)
trainer = make(
    model(),
    Rows(64),
    Rows(1600),
    arguments={"eval_strategy": "steps", "eval_steps": 3},
    compute_metrics=accuracy,
    preprocess_logits_for_metrics=(lambda logits, labels: logits.argmax(-1)) if own.fixed else None,
)
limit(own.limit)
peak_of(trainer.train)
