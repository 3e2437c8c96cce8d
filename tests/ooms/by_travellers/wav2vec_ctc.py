"""Speech recognition: fine-tuning wav2vec 2.0 with CTC; clips from a crowd-sourced corpus, padded to the longest."""

import random
import resource

import torch
from transformers import Trainer, TrainingArguments, Wav2Vec2Config, Wav2Vec2ForCTC, set_seed

set_seed(0)
torch.set_num_threads(1)
LIMIT_MIB = 600
RATE = 16_000


def load_corpus(count=80):
    """Seconds and transcript of each clip; some uploader forgot to press stop."""
    chooser = random.Random(1)
    clips = []
    for number in range(count):
        seconds = chooser.uniform(1.0, 2.5)
        if number == 37:
            seconds = 58.0
        clips.append({"seconds": seconds, "labels": [chooser.randrange(1, 32) for _ in range(12)], "seed": number})
    return clips


class Clips(torch.utils.data.Dataset):
    def __init__(self, clips):
        self.clips = clips

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, index):
        clip = self.clips[index]
        generator = torch.Generator().manual_seed(clip["seed"])
        return {"input_values": torch.randn(int(clip["seconds"] * RATE), generator=generator), "labels": clip["labels"]}


def collate(features):
    values = torch.nn.utils.rnn.pad_sequence([f["input_values"] for f in features], batch_first=True)
    return {"input_values": values, "labels": torch.tensor([f["labels"] for f in features])}


def vm_data():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))


config = Wav2Vec2Config(
    vocab_size=32,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    conv_dim=(16,) * 7,
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
    mask_time_prob=0.0,
    ctc_zero_infinity=True,
    ctc_loss_reduction="mean",
)
model = Wav2Vec2ForCTC(config)
arguments = TrainingArguments(
    output_dir="out_wav2vec",
    per_device_train_batch_size=8,
    num_train_epochs=1,
    learning_rate=1e-4,
    logging_steps=5,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
clips = load_corpus()
trainer = Trainer(model=model, args=arguments, train_dataset=Clips(clips), data_collator=collate)
limit = vm_data() + LIMIT_MIB * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
trainer.train()
print("done")
