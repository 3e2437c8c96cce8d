"""An evaluation keeps all logits until its end."""

import numpy as np
from common import Rows, arguments, leave, make, model

own, args = arguments(eval_strategy="steps", eval_steps=2, max_steps=4, per_device_eval_batch_size=8)


def metrics(prediction):
    predictions, labels = prediction
    if predictions.ndim == 3:
        predictions = predictions.argmax(-1)
    return {"accuracy": float(np.mean(predictions == labels))}


argmax = own.preprocess_logits_for_metrics == "argmax"
trainer = make(
    model(vocabulary=4096),
    args,
    Rows(vocabulary=256),
    eval_dataset=Rows((128,), 160),
    compute_metrics=metrics,
    preprocess_logits_for_metrics=(lambda logits, labels: logits.argmax(-1)) if argmax else None,
)
# phase: evaluate
leave(300)
trainer.train()
