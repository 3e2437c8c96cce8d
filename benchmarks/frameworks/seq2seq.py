import tiny
import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration


class Generates(Seq2SeqTrainer):
    def compute_loss(self, *args, **kwargs):
        seen.append(torch.ones(50_000))  # leak: seen
        return super().compute_loss(*args, **kwargs)


seen = []
torch.manual_seed(0)
config = T5Config(vocab_size=128, d_model=64, d_ff=128, num_layers=2, num_heads=2, d_kv=32, decoder_start_token_id=0)
arguments = Seq2SeqTrainingArguments(
    "out", max_steps=tiny.STEPS, per_device_train_batch_size=4, eval_strategy="steps", eval_steps=120,
    predict_with_generate=True, generation_max_length=8, report_to="none", use_cpu=True, disable_tqdm=True,
)  # fmt: skip
model = T5ForConditionalGeneration(config)
trainer = Generates(model, arguments, train_dataset=tiny.tokens(), eval_dataset=tiny.tokens(8))
print("loss", trainer.train().training_loss)
